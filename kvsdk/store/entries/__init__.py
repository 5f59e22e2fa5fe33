"""What is kept: a prompt's chunks by name, and their KV as bytes.

`identity` says whose KV it is, `chunks` what a prompt's chunks are called, `images` makes bytes of their KV
and back, between the two `ends` that callers have. `known` remembers what is stored, in a `prefix_tree`.
"""
