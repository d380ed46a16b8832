"""Every file beside the repository that an importer is for: recognised, read, written as ours, read back equal."""

import json
from pathlib import Path

import pytest

from planner import codec
from planner.errors import InputError
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.reading import read_path

FILES = {
    "calculon": ("calculon/models/*.json", 13),
    "device-placement": ("device-placement/*/*Graphs/*.json", 14),
    "pipedream": ("pipedream/*.graph.txt", 6),
    "piper": ("piper/*.json", 2),
}
MODELS = {
    "pipeedge": ("pipeedge", ("google/vit-base-patch16-224", "google/vit-large-patch16-224")),
    "sailor": ("sailor", ("OPT-350", "OPT-30")),
}
NO_PROFILES = (
    "calculon/systems/*.json",  # devices
    "device-placement/human-experts/*.json",  # plans
    "sailor/configs/*.*",  # clusters and batches
    "sailor/providers/**/*.json",  # networks
    "simumax/**/*.json",  # another simulator's settings and measured runs
)


def paths(bench, pattern):
    return sorted(bench.glob(pattern))


@pytest.mark.parametrize("name", FILES)
def test_single_files_come_back_equal(shared_bench, name):
    pattern, count = FILES[name]
    found = paths(shared_bench, pattern)
    assert len(found) == count
    for path in found:
        text = path.read_text()
        assert [i.name for i in IMPORTERS if i.sniff(text[:65_536].encode())] == [name], path
        model = read_text(text)
        assert read_text(codec.dumps(model)) == model, path


@pytest.mark.parametrize("name", MODELS)
def test_folders_come_back_equal(shared_bench, name):
    folder, models = MODELS[name]
    for each in models:
        model = read_path(shared_bench / folder, options=ImportOptions(model=each))
        assert read_text(codec.dumps(model)) == model


def test_no_file_is_forgotten(shared_bench):
    """A file is read, part of a folder that is read, no profile, or says where files come from."""
    known = {path for pattern, _ in FILES.values() for path in paths(shared_bench, pattern)}
    known |= {path for pattern in NO_PROFILES for path in paths(shared_bench, pattern)}
    for name, (folder, _) in MODELS.items():
        base = shared_bench / folder
        known |= {p for p in base.rglob("*.*") if IMPORTERS[name].wants(p.relative_to(base).as_posix())}
    files = {p for p in shared_bench.rglob("*") if p.is_file() and p.name not in ("ORIGIN.md", "LICENSE")}
    assert files - known == set()


def test_what_is_no_profile_is_refused(shared_bench):
    for path in (p for pattern in NO_PROFILES for p in paths(shared_bench, pattern)):
        with pytest.raises(InputError):
            read_text(path.read_text())


def test_shapes_of_calculon_have_their_parameters_and_flops(shared_bench):
    """12 h^2 parameters where A = h and f = 4 h, in general 4 h A + 2 h f; 2 FLOPs for each per token."""
    for path in paths(shared_bench, FILES["calculon"][0]):
        raw = json.loads(Path(path).read_text())
        record = read_text(path.read_text())
        h, f, s = raw["hidden"], raw["feedforward"], raw["seq_size"]
        inner = raw["attn_heads"] * raw["attn_size"]
        parameters = raw["num_blocks"] * (4 * h * inner + 2 * h * f)
        assert sum(layer.parameter_bytes for layer in record.graph.layers) == 2 * parameters
        flops = 2 * s * parameters + raw["num_blocks"] * 4 * s * s * inner
        assert sum(work.forward_flops for work in record.work.values()) == pytest.approx(flops, rel=1e-12)
