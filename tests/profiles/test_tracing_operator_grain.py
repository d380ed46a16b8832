# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Grain `operator`, beyond what test_tracing_models checks for every grain."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from planner.runtime.program import RunnableModel
from profiles.model import Grain
from profiles.tracing import trace


class Branches(nn.Module):
    """Two products of one input, a view behind each, and a sum of them with a scaled parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), self.right(x)
        joined = left.view(-1, 2, 2) + right.view(-1, 2, 2).transpose(1, 2)
        first, second = joined.flatten(1).chunk(2, dim=1)
        return torch.cat([first.relu(), second], dim=1) * self.scale.exp()


@pytest.fixture(scope="module")
def program():
    def make_batch(batch_size, seed):
        return (torch.ones(batch_size, 4),), torch.zeros(batch_size, 4)

    runnable = RunnableModel(name="branches", model=Branches(), make_batch=make_batch, loss=nn.functional.mse_loss)
    return trace(runnable, 2, Grain.OPERATOR)


def test_one_layer_per_operator_that_does_work(program):
    """The views follow their products, the halves the sum, the scale's exponential the product that reads it."""
    assert [layer.id for layer in program.graph.layers] == [
        "left.linear", "right.linear", "add", "relu", "cat", "mul", "loss",
    ]  # fmt: skip


def test_branches_stay_parallel(program):
    arcs = {(edge.source, edge.target) for edge in program.graph.edges}
    assert arcs == {
        ("left.linear", "add"),
        ("right.linear", "add"),
        ("add", "relu"),
        ("add", "cat"),
        ("relu", "cat"),
        ("cat", "mul"),
        ("mul", "loss"),
    }


def test_parameters_are_where_they_are_read(program):
    held = {layer.id: layer.parameter_bytes for layer in program.graph.layers if layer.parameter_bytes}
    assert held == {"left.linear": 80, "right.linear": 80, "mul": 16}


def test_finer_than_modules(program):
    modules = trace(program.runnable, 2, Grain.MODULE)
    assert len(modules.graph.layers) < len(program.graph.layers)
