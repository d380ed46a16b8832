"""What importing PipePlan brings along, seen in fresh interpreters; and that no part of `planner` is without a layer.

Who may import whom is in pyproject.toml and checked by import-linter (scripts/check).
"""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

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


def test_every_part_of_the_planner_has_its_layer() -> None:
    root = Path(__file__).resolve().parent.parent
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = set(re.findall(r"planner\.(\w+)", " ".join(layers)))
    parts = {module.name for module in pkgutil.iter_modules([str(root / "planner")])}
    assert parts - named == set(), "add these to the layers contract of pyproject.toml"


def modules_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after `statement`."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))
