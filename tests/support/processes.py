"""What a process of a test needs to find the modules that the test has, the wheel's among them."""

from __future__ import annotations

import os
import sys

SEARCH = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""Its environment."""
