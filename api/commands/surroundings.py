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
def like_a_rank() -> Iterator[dict[str, str]]:
    """One core, and an allocator that keeps its pages: set for the process, which cannot restart for it.

    Yields what was set, by name, for the profile.
    """
    allocator = _keep_pages()
    if not hasattr(os, "sched_setaffinity"):
        yield allocator
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield {**allocator, "core": str(max(before))}
    finally:
        os.sched_setaffinity(0, before)


def _keep_pages() -> dict[str, str]:
    """The ranks' allocator variables, for this process; elsewhere than on glibc there is nothing to set."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):
        return {}
    made = {variable: min(int(ALLOCATOR_VARIABLES[variable]), MAX_INT) for variable in ALLOCATOR_OPTIONS}
    for variable, value in made.items():
        library.mallopt(ALLOCATOR_OPTIONS[variable], value)  # type: ignore[union-attr]
    return {variable: str(value) for variable, value in made.items()}
