"""Hostile inputs are the same in every run; `--hypothesis-profile=explore` looks for new ones."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=5000)
settings.load_profile("same")
