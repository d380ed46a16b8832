# shellcheck shell=bash
# Shared by the scripts beside this file: source it, then call `environment`.
# Gives ROOT (the repository, which becomes the working directory), VENV (its own environment) and `say`.

set -euo pipefail

ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
STAMP="$VENV/made-from.txt"
export PIP_DISABLE_PIP_VERSION_CHECK=1
cd -- "$ROOT"

say() { printf '==> %s\n' "$*"; }

# What the environment is made from; a change of any of it makes the next call install again.
sources() { printf '%s\n' "$ROOT" "$(cat constraints.txt pyproject.toml | cksum)"; }

up_to_date() { [ -x "$VENV/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(sources)" ]; }

# A Python that can make environments. The pins were made with 3.11, so that comes first; PYTHON=... overrides.
find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
        if "$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v -- "$name"
            return
        fi
    done
    echo "No Python 3.11 or newer with the venv module on PATH: install one (Debian: python3 and python3-venv)," >&2
    echo "or name it: PYTHON=/path/to/python $0" >&2
    return 1
}

# An environment that moved with its folder, or whose Python is gone, is made anew; else it is kept.
make_venv() {
    local python
    if "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && [ "$(head -n 1 "$STAMP" 2>/dev/null)" = "$ROOT" ]; then
        return
    fi
    python="$(find_python)"
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear "$VENV"
    printf '%s\nincomplete\n' "$ROOT" >"$STAMP"
}

# pip with the pins; its long listing only where somebody watches.
pinned_install() {
    local quiet=-qq
    [ -t 1 ] && quiet=--progress-bar=on
    "$VENV/bin/python" -m pip install "$quiet" --constraint constraints.txt "$@"
}

# The build backend comes first and from the same pins, so that a repeated install needs no network.
install() {
    say "installing pipeplan (editable) and the packages that constraints.txt pins: some minutes the first time"
    pinned_install hatchling editables
    pinned_install --no-build-isolation --editable '.[all,dev]'
    sources >"$STAMP"
}

# Makes VENV complete; does nothing when it is. Where flock exists, two calls at once wait for each other.
environment() {
    local began=$SECONDS
    up_to_date && return
    (
        exec 9<constraints.txt
        if command -v flock >/dev/null; then flock 9; fi
        if up_to_date; then exit 0; fi
        make_venv
        install
    )
    say "environment ready in $((SECONDS - began)) s"
}
