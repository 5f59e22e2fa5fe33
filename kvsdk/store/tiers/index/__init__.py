"""What a tier has, and what of it may go.

`index` is what tiers call. `database` is its connection, `schema` its tables, `rows` and `uses` what is
said to them; `policy` is the order in which entries go.
"""
