# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""In-place operators are made out of place where nothing else can see the change."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from planner.runtime.program import RunnableModel
from profiles.tracing.capture import capture
from profiles.tracing.in_place import make_out_of_place


class Private(nn.Module):
    """A sum in place: nothing else reads the changed tensor."""

    def forward(self, x):
        y = x * 2
        y += x
        return y.relu_()


class Seen(nn.Module):
    """The change is made through a view, and the whole tensor is read afterwards."""

    def forward(self, x):
        y = x * 2
        y[:, 0].add_(1)
        return y


def captured(model):
    def make_batch(batch_size, seed):
        return (torch.arange(4.0).reshape(2, 2),), torch.zeros(2)

    return capture(RunnableModel(name="m", model=model, make_batch=make_batch, loss=nn.functional.mse_loss), 2)


def operators(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_private_changes_become_new_tensors():
    module = captured(Private())
    assert operators(module) == ["aten.mul.Tensor", "aten.add_.Tensor", "aten.relu_.default"]
    make_out_of_place(module)
    assert operators(module) == ["aten.mul.Tensor", "aten.add.Tensor", "aten.relu.default"]
    x = torch.arange(4.0).reshape(2, 2)
    assert torch.equal(module(x), Private()(x))


def test_changes_that_others_see_stay():
    module = captured(Seen())
    before = operators(module)
    assert "aten.add_.Tensor" in before
    make_out_of_place(module)
    assert operators(module) == before
