"""What all tests share: one thread per process, hypothesis profiles, and the files that lie beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch or numpy starts, so before any test imports them

# No deadlines: a busy machine is not a bug. `ci` draws the same examples in every run; the default explores.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_bench() -> Path:
    """Foreign profiles (PipeDream, device placement) that lie beside the repository and not in it."""
    return _beside("bench")


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Hand-computed cases and real configurations that lie beside the repository."""
    return _beside("cases")


def _beside(name: str) -> Path:
    folder = ROOT.parent / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"../shared/{name} is not on this machine")
    return folder
