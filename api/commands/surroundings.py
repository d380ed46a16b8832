"""The surroundings in which costs are measured: those that the ranks of a run get (`planner.runtime.environment`)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from planner.runtime.environment import ALLOCATOR_VARIABLES

ALLOCATOR_OPTIONS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""glibc's numbers of these parameters for `mallopt` (malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD)."""
MAX_INT = 2**31 - 1
"""`mallopt` takes an int, the environment variable more; above some GiB there is no difference."""


@contextmanager
def like_a_rank() -> Iterator[None]:
    """One core, and an allocator that keeps its pages: set for the process, which cannot restart for it."""
    _keep_pages()
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _keep_pages() -> None:
    """The ranks' allocator variables, for this process; elsewhere than on glibc there is nothing to set."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    for variable, option in ALLOCATOR_OPTIONS.items():
        if hasattr(library, "mallopt"):
            library.mallopt(option, min(int(ALLOCATOR_VARIABLES[variable]), MAX_INT))  # type: ignore[union-attr]
