# Sourced by the scripts beside it: goes to the tree's root and names a Python that is new enough.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

find_python() {
    local name
    for name in python3.11 python3; do
        if "$name" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "kvsdk needs Python 3.11 or newer as python3.11 or python3; found: $(python3 --version 2>&1 || true)" >&2
    return 1
}
