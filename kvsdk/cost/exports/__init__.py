"""The vendors' usage and cost exports, held against the ledger.

`reading` makes lines of a file (`json_reading` its values), `rows` adds up the ledger's side, `reconcile`
compares.
"""
