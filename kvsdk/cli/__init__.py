"""The command line: `kvsdk` and `python -m kvsdk`. One file per command.

Exit status: 0 fine, 1 something failed or a check found a fault, 2 wrong use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kvsdk.errors import ConfigurationError, InvalidRequest, KvsdkError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status."""
    from kvsdk.cli.app import app

    try:
        status = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except KvsdkError as error:
        print(f"kvsdk: {error}", file=sys.stderr)  # noqa: T201  # the command line's own words
        status = 2 if isinstance(error, ConfigurationError | InvalidRequest) else 1
    except KeyboardInterrupt:
        status = 130
    except OSError as error:
        if error.filename is not None:
            raise
        status = _output_failed(error)
    except Exception as error:
        from kvsdk.cli.app import usage_error

        status = usage_error(error)
        if status is None:
            raise
    sys.exit(status if isinstance(status, int) else 0)


def _output_failed(error: OSError) -> int:
    """Say that standard output takes no more, and keep the interpreter from trying again at its end."""
    print(f"kvsdk: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
