"""The real worker on a machine without HiGHS, so that the solver is CBC, a process of its own."""

from __future__ import annotations

import sys

from api.http import worker

if __name__ == "__main__":
    sys.modules["highspy"] = None  # type: ignore[assignment]
    worker.main()
