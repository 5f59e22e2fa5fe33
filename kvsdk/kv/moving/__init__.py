"""KV from one layout or number of devices into another, and the proof that it is the same.

`convert`, `reshard` and `certificate` are what is called. `sides` brings source and destination to blocks
of one size, `transfer` chooses how they are moved: by compiled code (`fast`, whose loops are in `kernels`),
as `rows`, or as strided copies.
"""
