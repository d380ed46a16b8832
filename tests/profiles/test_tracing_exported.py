# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Exported programs (.pt2) as sources: the layers, bytes and values of the model that was exported."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER
from profiles.measuring.record import record
from profiles.model import Grain, ModelRecord
from profiles.sources import SourceOptions, load_source
from profiles.tracing import SourceKind, TraceLoader, from_exported

ROWS, LENGTH, SIZE, VOCABULARY = 4, 8, 16, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, SIZE)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)) for _ in range(3))
        self.head = nn.Linear(SIZE, VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden).view(hidden.shape[0], -1, SIZE)
        return self.head(hidden)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module", params=["static", "dynamic"])
def file(request, model, tmp_path_factory):
    shapes = {"ids": {0: torch.export.Dim.DYNAMIC}} if request.param == "dynamic" else None
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH))
    program = torch.export.export(model, (ids,), strict=False, dynamic_shapes=shapes)
    path = tmp_path_factory.mktemp(request.param) / "model.pt2"
    torch.export.save(program, path)
    return path


def _loader(file, grain=Grain.BLOCK):
    return TraceLoader(source=str(file), kind=SourceKind.EXPORTED, grain=grain)


def test_the_layers_are_those_of_the_model(file):
    graph = _loader(file)(ROWS).graph
    blocks = [f"layers.{i}" for i in range(3)]
    assert [layer.id for layer in graph.layers] == ["embedding", *blocks, "head", LOSS_LAYER]
    assert [layer.op for layer in graph.layers[:-1]] == ["Embedding", *["Sequential"] * 3, "Linear"]
    assert {edge.bytes_per_sample for edge in graph.edges[:-1]} == {LENGTH * SIZE * 4}
    (tied,) = graph.tied
    assert (tied.layers, tied.parameter_bytes) == (("embedding", "head"), VOCABULARY * SIZE * 4)


@pytest.mark.parametrize("grain", Grain)
def test_bytes_and_values_are_the_models(file, model, grain):
    program = _loader(file, grain)(ROWS)
    graph = program.graph
    held = sum(layer.parameter_bytes for layer in graph.layers)
    held -= sum(tied.parameter_bytes * (len(tied.layers) - 1) for tied in graph.tied)
    assert held == sum(p.numel() * p.element_size() for p in model.parameters())
    inputs, _ = program.runnable.make_batch(ROWS, 1)
    torch.testing.assert_close(program.module(*inputs), model(*inputs))


def test_its_work_is_recorded_per_sample(file):
    loader = _loader(file)
    made = record(loader(loader.smallest_batch_size()), dtype="float32")
    assert made.work["layers.1"].forward_flops == 2 * LENGTH * SIZE * SIZE
    assert made.work["head"].forward_flops == 2 * LENGTH * SIZE * VOCABULARY


def test_a_dynamic_batch_is_any_and_a_static_one_is_its_own(file):
    loader = _loader(file)
    if loader.smallest_batch_size() == 1:
        assert loader(3).graph.layers == loader(2).graph.layers
    else:
        with pytest.raises(InputError, match=r"exported for batches of 4, 3 is asked: .*dynamic batch"):
            loader(3)


def test_it_is_loaded_where_code_may_run_only(file):
    with pytest.raises(InputError, match="run by the command line only"):
        load_source(str(file))
    assert isinstance(load_source(str(file), options=SourceOptions(allow_code=True)), ModelRecord)


def test_what_is_no_program_is_refused(tmp_path):
    (tmp_path / "text.pt2").write_text("no zip")
    with pytest.raises(InputError, match=r"text.pt2' is no exported program .*torch.export.save"):
        from_exported(str(tmp_path / "text.pt2"))
    with pytest.raises(InputError, match="is no file"):
        from_exported(str(tmp_path / "missing.pt2"))
