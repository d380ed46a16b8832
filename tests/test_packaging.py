"""The package's outside: pins, extras, the wheel's contents, the Dockerfile's sources and the scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = ("planner", "profiles", "api")

INSTRUCTION = re.compile(r"^([A-Z]+) (.+)$", re.MULTILINE)


def pins() -> dict[str, str]:
    """Distribution -> version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pinned}


def requirements() -> list[Requirement]:
    """All requirements of the package and its extras, but not the package itself."""
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return [r for r in map(Requirement, texts) if r.name != PROJECT["name"]]


def instructions(keyword: str) -> list[str]:
    """Arguments of the Dockerfile's instructions of one kind, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [arguments for found, arguments in INSTRUCTION.findall(text) if found == keyword]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_pins_name_releases_and_no_place() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^(-|.*@)", text, re.MULTILINE)
    assert [name for name, version in pins().items() if Version(version).local] == []


def test_torch_is_a_plain_range_in_an_extra_only() -> None:
    core = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert core.isdisjoint({"torch", "transformers", "fastapi", "uvicorn", "highspy"})
    torch = next(r for r in map(Requirement, EXTRAS["torch"]) if r.name == "torch")
    assert {s.operator for s in torch.specifier} == {">="}


def test_the_wheel_holds_the_packages_with_their_data_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in files} == set(PACKAGES)
    sources = {p for package in PACKAGES for p in (ROOT / package).rglob("*") if p.is_file()}
    wanted = {p.relative_to(ROOT).as_posix() for p in sources if "__pycache__" not in p.parts}
    assert wanted <= files


@pytest.mark.parametrize("arguments", [copied for copied in instructions("COPY") if "--from=" not in copied])
def test_what_the_dockerfile_copies_exists_and_is_not_ignored(arguments: str) -> None:
    *sources, _ = (word for word in arguments.split() if not word.startswith("--"))
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in allowed


def test_the_dockerfile_installs_extras_that_exist() -> None:
    commands = " ".join(instructions("RUN"))
    extras = {e for group in re.findall(r"\.\[([\w,]+)\]", commands) for e in group.split(",")}
    assert extras
    assert extras <= EXTRAS.keys()
    assert extras.isdisjoint({"torch", "all", "dev"})


def test_the_dockerfile_runs_as_a_fixed_user_that_is_not_root() -> None:
    user = instructions("USER")[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert instructions("HEALTHCHECK")


def test_the_images_python_is_allowed() -> None:
    versions = [re.match(r"python:(\d+\.\d+\.\d+)-slim", image) for image in instructions("FROM")]
    assert versions
    allowed = Requirement(f"python{PROJECT['requires-python']}").specifier
    assert all(found and allowed.contains(found[1]) for found in versions)


@pytest.mark.parametrize("script", ["scripts/test", "scripts/check", "scripts/demo", ".ci/run"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_the_license_is_the_one_that_is_declared() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
