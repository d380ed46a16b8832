"""Grouped products of experts: transformers' stand-in, which it exports, and torch's own, which it runs.

In an export transformers writes `transformers::grouped_mm_fallback` for dtypes other than bfloat16, because torch's
meta kernel takes no others. In eager mode it calls `aten::_grouped_mm`, which is faster (measured on a small Mixtral: a
whole pass 7 % less, since the stand-in fills the gradients of all experts with zeros first). A trace of real tensors
runs what the model runs; on fake tensors only the stand-in works.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

NATIVE = torch.ops.aten._grouped_mm.default
FALLBACK = "transformers::grouped_mm_fallback"


def run_natively(graph: fx.Graph, model: nn.Module) -> None:
    """Puts torch's own product in the place of the stand-in, where the model's parameters are real tensors."""
    if any(parameter.is_meta or isinstance(parameter, FakeTensor) for parameter in model.parameters()):
        return
    for node in graph.nodes:
        if _name(node) == FALLBACK:
            node.target = NATIVE


def run_on_fakes(graph: fx.Graph) -> None:
    """Puts the stand-in back, where torch's own product takes no fake tensors."""
    for node in graph.nodes:
        if node.target is NATIVE and node.meta["val"].dtype is not torch.bfloat16:
            node.target = torch.ops.transformers.grouped_mm_fallback.default


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name if schema is not None else ""
