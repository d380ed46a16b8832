"""What importing PipePlan brings along, seen in fresh interpreters. Who may import whom is import-linter's business."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "fastapi", "starlette", "uvicorn", "pulp", "highspy")
"""Extras, and what starts slowly: none of it may be loaded before it is used."""


@pytest.mark.parametrize("module", ["planner", "profiles", "api.cli", "api.client"])
def test_importing_stays_light(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not written yet")
    loaded = modules_after(f"import {module}")
    assert module in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_a_heavy_import_would_be_seen() -> None:
    assert "wsgiref" not in modules_after("import json")
    assert "wsgiref" in modules_after("import wsgiref")


def modules_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after `statement`."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))
