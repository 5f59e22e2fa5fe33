"""What a ledger adds up to: lines, what they would have cost elsewhere, and a page of charts.

`sql` adds up in the database and `reading` row by row; `rows` are the lines; `elsewhere` runs other backends'
cache models over the ledger; `page` makes one HTML file of `charts` and `page_table`.
"""
