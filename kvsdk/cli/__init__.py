"""The command line: `kvsdk` and `python -m kvsdk`. One file per command.

Exit status: 0 fine, 1 something failed or a check found a fault, 2 wrong use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvsdk.errors import ConfigurationError, InvalidRequest, KvsdkError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status."""
    from kvsdk.cli.app import app

    try:
        status = app(args=arguments, standalone_mode=False)
    except KvsdkError as error:
        print(f"kvsdk: {error}", file=sys.stderr)  # noqa: T201  # the command line's own words
        status = 2 if isinstance(error, ConfigurationError | InvalidRequest) else 1
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        from kvsdk.cli.app import usage_error

        status = usage_error(error)
        if status is None:
            raise
    sys.exit(status if isinstance(status, int) else 0)
