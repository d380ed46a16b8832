"""FLOPs and moved bytes per layer, from the operators of a chain. Real or fake tensors; no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from profiles.measuring import fused as fused  # registers the operators that are counted here
from profiles.measuring.chain import LayerChain, Phase

CAUSAL_SHARE = 0.5
"""Part of the score matrix that fused causal attention computes: kernels skip the blocks above the diagonal."""
MOVING_NOTHING = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
SELECTING = {"embedding", "gather", "index", "index_select", "nll_loss_forward"}
"""They read as much as they write, not their whole input."""
WEIGHT_GRADIENTS = {"embedding_dense_backward"}
"""They write the gradient of a weight, which belongs to the layer's weight bytes."""
FORWARD_PRODUCTS = (1, 1)
"""Over the size of queries and keys: scores. Over the size of values: output."""
BACKWARD_PRODUCTS = (3, 2)
"""Scores again, gradients of queries and keys; gradients of values and probabilities (Dao et al. 2022, appendix B)."""


def _attention_flops(
    products: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
) -> float:
    """Products over the s x s scores of every head: 2 * batch * heads * s_q * s_k * size each."""
    batch, heads, length, size = query.shape
    sizes = products[0] * size + products[1] * value.shape[-1]
    return 2 * batch * heads * length * key.shape[-2] * sizes * (CAUSAL_SHARE if causal else 1.0)


def _flash_forward(query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, **_: Any) -> float:
    return _attention_flops(FORWARD_PRODUCTS, query, key, value, causal=is_causal)


def _flash_backward(grad: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, dropout: float, is_causal: bool,
                    **_: Any) -> float:  # fmt: skip
    return _attention_flops(BACKWARD_PRODUCTS, query, key, value, causal=is_causal)


def _fused_forward(query: Any, key: Any, value: Any, is_causal: bool) -> float:
    return _attention_flops(FORWARD_PRODUCTS, query, key, value, causal=is_causal)


def _fused_backward(grad: Any, query: Any, key: Any, value: Any, is_causal: bool) -> float:
    return _attention_flops(BACKWARD_PRODUCTS, query, key, value, causal=is_causal)


def _grouped(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> float:
    """Each row meets one expert's matrix; for the weight gradient the groups split the summed dimension."""
    return 2.0 * left.shape[-2] * left.shape[-1] * right.shape[-1]


def _grouped_backward(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> float:
    """Gradients of the rows and of the experts' matrices."""
    return 2 * _grouped(left, right)


def _formulas() -> dict[Any, Callable[..., float]]:
    """torch's own formulas, and ours where it has none (CPU flash attention, grouped products of experts)."""
    own: dict[str, Callable[..., float]] = {
        "_scaled_dot_product_flash_attention_for_cpu": _flash_forward,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_backward,
        "_grouped_mm": _grouped,
    }
    formulas: dict[Any, Callable[..., float]] = dict(flop_registry)
    formulas |= {getattr(torch.ops.aten, name): f for name, f in own.items() if hasattr(torch.ops.aten, name)}
    own_operators = torch.ops.pipeplan
    formulas[own_operators.fused_attention] = _fused_forward
    formulas[own_operators.fused_attention_backward] = _fused_backward
    return formulas | _fallback_formulas()


def _fallback_formulas() -> dict[Any, Callable[..., float]]:
    """transformers' grouped product for CPUs and dtypes without one, where it is registered."""
    known = torch._C._dispatch_get_all_op_names()
    if not any(name.startswith("transformers::grouped_mm_fallback") for name in known):
        return {}
    operators = torch.ops.transformers
    return {operators.grouped_mm_fallback: _grouped, operators.grouped_mm_fallback_backward: _grouped_backward}


class WorkMeter:
    """Observer: FLOPs and moved bytes of each layer and phase.

    Operators with a FLOP formula (products, convolutions, attention) count FLOPs; all others (norms, activations,
    additions, copies) count the bytes that they read and write. Parameters are not among these bytes: they are
    the layer's weight bytes. Views move nothing.
    """

    def __init__(self, chain: LayerChain) -> None:
        self.flops: dict[tuple[str, Phase], float] = defaultdict(float)
        self.moved_bytes: dict[tuple[str, Phase], int] = defaultdict(int)
        self._formulas = _formulas()
        self._weights = {id(p) for p in chain.program.module.parameters()}

    @contextmanager
    def __call__(self, layer: str, phase: Phase) -> Iterator[None]:
        meter = _OperatorMeter(self._formulas, self._weights)
        with meter:
            yield
        self.flops[layer, phase] += meter.flops
        self.moved_bytes[layer, phase] += meter.moved_bytes


class _OperatorMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, formulas: dict[Any, Callable[..., float]], weights: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0
        self.moved_bytes = 0
        self._formulas, self._weights = formulas, weights

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            options = {"out_val": result} if func._overloadpacket in flop_registry else {}
            self.flops += formula(*args, **kwargs, **options)
        elif not _moves_nothing(func):
            self.moved_bytes += self._moved(func, (args, kwargs), result)
        return result

    def _moved(self, func: Any, given: Any, result: Any) -> int:
        read = sum(_bytes(t) for t in _tensors(given) if id(t) not in self._weights)
        written = sum(_bytes(t) for t in _tensors(result))
        name = func._overloadpacket.__name__
        if name in SELECTING:
            return 2 * written
        return read if name in WEIGHT_GRADIENTS else read + written


def _moves_nothing(func: Any) -> bool:
    """Views, mere allocations, and queries that make no tensor."""
    returns = func._schema.returns
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return is_view or func.namespace == "prim" or func._overloadpacket.__name__ in MOVING_NOTHING


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes that an operator touches: expanded tensors are read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
