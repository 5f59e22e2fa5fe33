"""Several tiers as one.

`levels` is the whole; each tier stands behind its `guard`, may have a `writer` that writes behind, and what
blocks is done by `workers`.
"""
