"""KV from one layout or number of devices into another, and the proof that it is the same.

`convert`, `reshard` and `certificate` are what is called. `sides` brings source and destination to blocks
of one size, which must lie `apart`; `transfer` chooses how they are moved: by compiled code (`fast`), as
`rows`, or as strided copies. `casting` does so with numbers of another dtype (`fast_casts`). Compiled code
goes by `tiles`; its loops are in `kernels`.
"""
