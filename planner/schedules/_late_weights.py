"""The order that ZB-H1 and ZB-H2 share: 1F1B with a split backward whose first weight gradients come late."""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedules.base import Order, PipelineShape, passes


def late_weights(shape: PipelineShape, stage: int, microbatches: Sequence[int], *, warm_up: int, late: int) -> Order:
    """`warm_up` forwards, then I, W and F in turn; the first `late` turns leave their W to the end.

    Both are cut to the number of microbatches.
    """
    f, i, w = passes(stage, microbatches, "FIW")
    count = len(microbatches)
    if shape.forward_only:
        return [f] * count
    warm_up, late = min(count, warm_up), min(count, late)
    turns = [[i, w, f]] * (count - warm_up) + [[i, w]] * warm_up
    turns[:late] = [[p for p in turn if p is not w] for turn in turns[:late]]
    return [f] * warm_up + [p for turn in turns for p in turn] + [w] * late
