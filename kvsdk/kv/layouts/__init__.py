"""Where each element of a KV cache lies.

`layout` is the value and its text, `registry` has the engines' layouts by name, `planes` makes strided
views of tensors that lie so. `detect` and `infer` go the other way, from tensors to layout and sizes;
`dynamic_cache` is the bridge to transformers.
"""
