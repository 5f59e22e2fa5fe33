"""Prices: the list, what corrects it, contracts, and from a bill to dollars.

`rules` (entries of TOML files) → `book` (which rates apply) → `pricing` (counts times rates) → `rating` (a
bill). `machine` is the price of an engine of one's own.
"""
