"""The surroundings of a rank: allocator variables, threads, one core of its own, death with its parent.

The same surroundings must hold where costs are measured, or profile and run do not agree: glibc otherwise gives pages
back and faults them in again, which cost up to 13 % of a forward pass in our measurements.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

ALLOCATOR_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
"""Read by glibc when a process starts: 32 MiB is the largest threshold that it takes, 8 GiB never trims."""
THREAD_VARIABLES = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LOOPBACK_NAMES = ("lo", "lo0")
STEAL_FIELD = 8
"""Of a line of `/proc/stat`, the name included."""
PR_SET_PDEATHSIG = 1
"""Linux `prctl` option: the signal that a process gets when its parent dies."""


def child_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables for a rank: those of this process, allocator and threads fixed, imports as here.

    gloo talks over the loopback interface only, where there is one.
    """
    made = dict(os.environ if base is None else base)
    made |= ALLOCATOR_VARIABLES | THREAD_VARIABLES
    made["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    made["PYTHONUNBUFFERED"] = "1"
    loopback = next((name for _, name in socket.if_nameindex() if name in LOOPBACK_NAMES), None)
    if loopback is not None:
        made["GLOO_SOCKET_IFNAME"] = loopback
    return made


def pin(rank: int) -> int | None:
    """Bind this process to the core of its rank (ranks share cores where these are too few); None where impossible."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    core = cores[rank % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when process `parent` dies, and end now when it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this rank is gone")


def run_queue_delay_s() -> float | None:
    """Seconds that this thread has waited for a core so far; None where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def stolen_s(core: int | None) -> float:
    """Seconds in which the host gave this core to another machine so far; 0 where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        fields = next(line.split() for line in lines if line.startswith(f"cpu{core} "))
        return int(fields[STEAL_FIELD]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return 0.0
