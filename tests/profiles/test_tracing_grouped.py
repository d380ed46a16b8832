# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Mixtures of experts: a trace of real tensors runs torch's grouped product as the model does; records count alike."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CONFIGS, SEQUENCE_LENGTH

from profiles.measuring.record import record
from profiles.tracing import TraceLoader

NATIVE, FALLBACK = "aten::_grouped_mm", "transformers::grouped_mm_fallback"


def _program(**how):
    return TraceLoader(source=CONFIGS["mixtral"], sequence_length=SEQUENCE_LENGTH, **how)(2)


def _products(program):
    names = [getattr(getattr(node.target, "_schema", None), "name", "") for node in program.module.graph.nodes]
    return {name for name in names if name in (NATIVE, FALLBACK)}


def test_real_tensors_run_torchs_product_with_the_models_output():
    program = _program()
    assert _products(program) == {NATIVE}
    inputs, _ = program.runnable.make_batch(2, 0)
    with torch.no_grad():
        torch.testing.assert_close(program.module(*inputs), program.runnable.model(*inputs))


def test_shapes_keep_the_product_that_takes_them():
    assert _products(_program(device="meta")) == {FALLBACK}
    assert _products(_program(device="meta", dtype="bfloat16")) == {NATIVE}


def test_both_are_recorded_alike():
    program = _program()
    real, shapes = record(program), record(_program(device="meta"))
    assert real.work == shapes.work
    assert _products(program) == {NATIVE}
