"""KV in files: `docs/format.md` has the format.

`file` is a file as bytes in memory, and what opens one checks everything. `manifest` is what a file says of
itself, `header` the text of it, `payload` which tensors there are, `codec` their compression, `plan` where
all of it lies. `saving` goes to and from a disk, by names that `replacing` lets appear only once they are
whole; `ranks` are the files of several devices, `shards` what is in them; `convert` makes one file of another
as `wanted` has it, and `verify` proves it.
"""
