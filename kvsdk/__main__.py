"""`python -m kvsdk`."""

from kvsdk.cli import main

main()
