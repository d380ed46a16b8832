"""Fused attention with values of another size than queries and keys (multi-head latent attention), for records.

torch's fused kernel for CPUs wants equal sizes; without it a record would count, and keep, the whole matrix of scores.
Those for GPUs (cuDNN, memory-efficient) take unequal ones. The operators here have shapes only: what a fused kernel
returns and keeps (queries, keys, values, output, log-sum-exp of each row in float32).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from profiles.tracing.collectives import operator_name
from profiles.tracing.exchanges import ATTENTION, CAUSAL, VALUE

QUERY, KEY = 0, 1


@torch.library.custom_op("pipeplan::fused_attention", mutates_args=())
def fused_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, queries, size of values) and log-sum-exp (batch, heads, queries). Shapes only."""
    raise NotImplementedError("this operator stands for a GPU's kernel and runs on fake tensors only")


@torch.library.custom_op("pipeplan::fused_attention_backward", mutates_args=())
def fused_attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values. Shapes only."""
    raise NotImplementedError("this operator stands for a GPU's kernel and runs on fake tensors only")


@fused_attention.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = query.shape[:-1]
    return query.new_empty((*rows, value.shape[-1])), query.new_empty(rows, dtype=torch.float32)


@fused_attention_backward.register_fake
def _(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.is_causal = inputs[3]


def _differentiate(ctx: Any, gradient: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    query, key, value, *_rest = ctx.saved_tensors
    return (*fused_attention_backward(gradient, query, key, value, ctx.is_causal), None)


fused_attention.register_autograd(_differentiate, setup_context=_keep)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """The output alone, as `scaled_dot_product_attention` returns it."""
    output: torch.Tensor = fused_attention(query, key, value, is_causal)[0]
    return output


def fuse_unequal_heads(graph: fx.Graph) -> None:
    """Puts `attend` in the place of attention whose values have another size, where it has as many heads of each kind.

    Masks are left out: they are read, not kept, and the whole square is counted with one.
    """
    for node in graph.nodes:
        if operator_name(node) != ATTENTION:
            continue
        query, key, value = (node.args[position] for position in (QUERY, KEY, VALUE))
        shapes = [tensor.meta["val"].shape for tensor in (query, key, value)]
        if shapes[0][-1] != shapes[2][-1] and len({shape[:2] for shape in shapes}) == 1:
            causal = node.args[CAUSAL] if len(node.args) > CAUSAL else node.kwargs.get("is_causal", False)
            node.target, node.args, node.kwargs = attend, (query, key, value, bool(causal)), {}
