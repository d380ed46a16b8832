"""Where the command `pipeplan` begins: what an interrupt means while the rest is still being imported."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the signal's number, as shells have it."""


def main() -> int:
    """Import the command line and run it; the exit status. Ctrl-C at any moment gives one line and `INTERRUPTED`."""
    try:
        from api.cli import main as run  # this import is what may be interrupted

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
