"""The engine's KV in a `KVStore`: what breakpoints and sessions ask for, and nothing else.

`config` says which tiers there are, `wishes` what a request asks for, `jobs` what the scheduler tells the
worker, `told` what the request hears in the end. `scheduling` is the scheduler's side, `moving` the worker's;
`identity` is whose KV it is, and `shared` the store of both where they are in one process.
`kvsdk_vllm.connector` joins it to vLLM.
"""
