"""What a model's KV is made of.

`spec` is the value; `hf_config` makes one of a Hugging Face configuration, which `hf_keys` reads key by
key; `hf_layers` and `hf_models` say what each layer is where the configuration does not, and `layer_kinds`
which kinds there are.
"""
