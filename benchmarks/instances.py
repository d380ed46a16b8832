"""Where benchmark instances are, and how they become problems.

Two formats: device-placement files (`.json`, read by `profiles.importers`) and our own exports (`.json.gz`,
`benchmarks.compact`). Costs are per sample, transfers block, and every device runs one stage.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.compact import from_compact
from benchmarks.devices import accelerators
from planner import codec
from planner.checks import MAX_BYTES
from planner.cluster import DeviceKind
from planner.errors import InputError
from planner.problem import Problem
from profiles.importers import read_text

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "benchmarks" / "instances"
PUBLISHED = (
    ROOT.parent / "shared" / "bench" / "device-placement" / "throughput",
    ROOT / "tests" / "instances" / "device-placement",
)
"""Device-placement files: all of them where the checkout has them beside it, else the ones that the tests hold."""
SUFFIXES = (".json", ".json.gz")


def default_folders() -> tuple[Path, ...]:
    """The published instances that are there, and our own."""
    return (*[folder for folder in PUBLISHED if folder.is_dir()][:1], OWN)


def find_instances(folders: Sequence[Path]) -> dict[str, Path]:
    """Name (path below its folder, without suffix) -> file, by folder and name; InputError when a folder has none."""
    found: dict[str, Path] = {}
    for folder in folders:
        names = {_name(path, folder): path for path in sorted(folder.rglob("*.json*")) if _is_instance(path)}
        if not names:
            raise InputError(f"{str(folder)!r} holds no instance (*{', *'.join(SUFFIXES)}): give another folder")
        found |= names
    return found


def load_instance(path: Path) -> Problem:
    """The instance on the devices that it ships with. InputError when it is no instance or has no device."""
    if path.name.endswith(".gz"):
        model = from_compact(codec.parse(gzip.decompress(path.read_bytes())))
    else:
        model = read_text(path.read_text(encoding="utf-8"))
    if model.cluster is None or model.workload is None:
        raise InputError(f"{path.name!r} names no devices or no workload: it is a profile, not an instance")
    return Problem(graph=model.graph, profiles=model.profiles, cluster=model.cluster, workload=model.workload)


def on_accelerators(problem: Problem, k: int) -> Problem:
    """The same model on `k` accelerators without memory limit and without CPU (setting (i) of Archer et al. 2024)."""
    kind = next(t for t in problem.cluster.device_types if t.kind is DeviceKind.ACCELERATOR)
    bandwidth = max((link.bandwidth_bytes_per_s for link in problem.cluster.links), default=1e18)
    return replace(
        problem,
        profiles=tuple(p for p in problem.profiles if p.device_type == kind.name),
        cluster=accelerators(kind.name, k, bandwidth_bytes_per_s=bandwidth, memory_bytes=MAX_BYTES),
    )


def _is_instance(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def _name(path: Path, folder: Path) -> str:
    name = path.relative_to(folder).as_posix()
    return name.removesuffix(".gz").removesuffix(".json")
