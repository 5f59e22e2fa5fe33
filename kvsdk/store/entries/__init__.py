"""What is kept: a prompt's chunks by name, and their KV as bytes.

`identity` says whose KV it is, `hinting` what else was said of it, `chunks` what a prompt's chunks are
called. `images` makes bytes of their KV and back, between the two `ends` that callers have, whose `tensors`
are looked at first. `known` remembers what is stored, in a `prefix_tree`.
"""
