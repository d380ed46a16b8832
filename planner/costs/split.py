"""Seconds of a stage's split backward pass: the input gradient (I) and the weight gradient (W)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.costs.compute import LayerPrices
from planner.costs.parts import StageParts
from planner.costs.stage import StageSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSeconds:
    """Of one microbatch. Both 0 for a stage that runs no backward pass."""

    input_s: float
    weight_s: float


def split_seconds(
    parts: StageParts,
    whole: StageSeconds,
    prices: LayerPrices,
    layers: Sequence[int],
    overhead_s: float,
) -> SplitSeconds:
    """I has what a whole backward pass adds to its layers (collectives, gathers, recomputation), W an overhead and the
    reduce-scatter of the gradients.

    A stage that sends no gradient back has nothing to do in I: W is then its whole backward pass, which
    takes less than both parts (PyTorch's engine and ours; measured: `docs/truth.md`).
    """
    if not parts.runs_backward or not whole.backward_s:
        return SplitSeconds(input_s=0.0, weight_s=0.0)
    if not parts.sends_back:
        return SplitSeconds(input_s=overhead_s, weight_s=float(whole.backward_s))
    scatter = float(whole.scatter_s)
    added = float(whole.backward_s - parts.backward_s) - scatter
    return SplitSeconds(
        input_s=added + sum(prices.backward_input_s[i] for i in layers),
        weight_s=overhead_s + scatter + sum(prices.backward_weight_s[i] for i in layers),
    )
