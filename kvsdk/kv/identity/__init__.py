"""Whose KV it is.

`fingerprint` says which model, numbers and layout made it, with what `checkpoint` reads of the weights;
`hashing` has the keys of a prompt's blocks.
"""
