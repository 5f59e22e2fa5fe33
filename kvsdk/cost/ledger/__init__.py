"""The ledger: what a row is, how it lies in SQL, how it gets there, and what happens when it does not.

`row` is the value, `schema` the tables by version, `records` the way between them; `database` opens them and
brings them up to date, `writer` orders the writes, `spill` keeps what the database does not take, `rerate`
prices anew.
"""
