"""The bill of an engine of one's own, divided among its requests: `allocation` has the method."""
