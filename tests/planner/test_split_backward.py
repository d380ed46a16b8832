"""A backward pass in two parts leaves the gradients of the ordinary one, and computes nothing that I has computed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from running_plans import GRADIENT_TOLERANCE, LOSS_TOLERANCE, TIMEOUT_S, cut, placed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from planner.plan import Plan
from planner.runtime import ExecutorKind, run
from planner.runtime.split_backward import input_gradients
from profiles.tracing import TraceLoader

N = 4
T5_LAYERS = (
    "encoder.embed_tokens", "encoder.block.0", "encoder.block.1",
    "decoder.embed_tokens", "decoder.block.0", "decoder.block.1", "lm_head", "loss",
)  # fmt: skip
T5 = {
    "model_type": "t5", "vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "d_model": 16,
    "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 2,
}  # fmt: skip


class Twice(nn.Module):
    """One weight read by the first and the third product, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(N, N)
        self.between = nn.Linear(N, N)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.tanh(self.shared(torch.tanh(self.between(torch.tanh(self.shared(x)))))),)


class Aside(nn.Module):
    """A second output that depends on no input, by a weight that is read nowhere else; a third is a weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Linear(N, N)
        self.side = nn.Linear(N, N)
        self.bare = nn.Parameter(torch.randn(N, N))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tanh(self.main(x)), torch.tanh(self.side(torch.ones(N, N))), self.bare


class BothSides(nn.Module):
    """T5's way: scores of two blocks are shifted by a bias that is an output too."""

    def __init__(self, *, as_view: bool) -> None:
        super().__init__()
        self.bias = nn.Embedding(N, N)
        self.first = nn.Linear(N, N)
        self.second = nn.Linear(N, N)
        self.as_view = as_view

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bias = self.bias(torch.arange(N))
        bias = bias.transpose(0, 1) if self.as_view else bias * 2
        x = torch.softmax(self.first(x) + bias, -1)
        return torch.softmax(self.second(x) + bias, -1), bias


class TwoOutputs(nn.Module):
    """Two outputs on the path; the weight of one is read by the other too."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(N, N)
        self.last = nn.Linear(N, N)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.tanh(self.shared(x))
        return first, torch.tanh(self.last(first) @ self.shared.weight)


class Plain(nn.Module):
    """Every weight is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(N, N), nn.LayerNorm(N), nn.Tanh(), nn.Linear(N, N), nn.Tanh())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.body(x),)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


MODULES = {
    "plain": Plain,
    "twice": Twice,
    "aside": Aside,
    "both_sides": lambda: BothSides(as_view=False),
    "both_sides_view": lambda: BothSides(as_view=True),
    "two_outputs": TwoOutputs,
}


def _gradients(module: nn.Module, x: torch.Tensor, *, split: bool) -> dict[str, torch.Tensor]:
    """After two microbatches, so that gradients are also added to existing ones."""
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    for microbatch in range(2):
        outputs = module(leaf)
        given = [torch.randn(o.shape, generator=torch.Generator().manual_seed(microbatch)) for o in outputs]
        if split:
            input_gradients(outputs, given, [leaf], list(module.parameters())).run()
        else:
            torch.autograd.backward(outputs, given)
    assert leaf.grad is not None
    made = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {"the input": leaf.grad} | made


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_those_of_the_ordinary_backward_pass(name: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(N, N)
    whole, parts = _gradients(module, x, split=False), _gradients(module, x, split=True)
    assert whole.keys() == parts.keys() == {"the input"} | {label for label, _ in module.named_parameters()}
    for label, gradient in whole.items():
        most = 0.0 if name == "plain" else 1e-6
        torch.testing.assert_close(parts[label], gradient, rtol=0.0, atol=most, msg=f"{name}: {label}")


@pytest.mark.parametrize(("name", "inputs", "weights"), [("plain", 2, 2), ("twice", 3, 4), ("both_sides", 2, 2)])
def test_products_are_computed_once(name: str, inputs: int, weights: int) -> None:
    """A product each for input and weight; where a weight is read twice, its upper place's input once more."""
    module, leaf = MODULES[name](), torch.randn(N, N, requires_grad=True)
    outputs = module(leaf)
    with Products() as first:
        work = input_gradients(outputs, [torch.ones(N, N) for _ in outputs], [leaf], list(module.parameters()))
    with Products() as second:
        work.run()
    assert (first.count, second.count) == (inputs, weights)


def _checked(plan: Plan) -> None:
    loader = TraceLoader(source=T5, sequence_length=8)
    report = run(plan, loader, num_steps=1, check=True, executor=ExecutorKind.OWN, timeout_s=TIMEOUT_S)
    assert report.loss_relative_difference is not None
    assert report.gradient_max_difference is not None
    assert report.loss_relative_difference <= LOSS_TOLERANCE
    assert report.gradient_max_difference <= GRADIENT_TOLERANCE
    assert any("relative_attention_bias" in name for name in report.gradient_differences)


@pytest.mark.parametrize("cuts", [(1,), (2, 5)])
def test_t5_under_zb_h1(cuts: tuple[int, ...]) -> None:
    """Stages that read a bias in two blocks, and such that send it on."""
    _checked(cut(T5_LAYERS, cuts, schedule="zb_h1", num_microbatches=3))


def test_t5_under_zb_v() -> None:
    """The second stage makes the encoder's bias for the third, the fourth reads the decoder's."""
    _checked(placed(T5_LAYERS, (1, 2, 5), "zb_v"))
