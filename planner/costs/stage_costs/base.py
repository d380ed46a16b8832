"""`StageCost`: the one question that every search model answers, for the models that papers define themselves.

The project's own models (`closed`, `blocking`, `overlapped`) price whole plans, in `planner.costs.objective`. The
models here price a stage as its paper does, from that paper's own figures, so that published values come out again.
All of them minimise the bottleneck: the largest `seconds` over the stages of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """One stage as a search model sees it.

    `layers` are its layer groups and `before` all groups of earlier stages, as bitsets. `degree` replicas share the
    microbatches, each is a group of `tensor` devices. `level` counts the levels of a hierarchy from the devices up
    (a stage of level 1 is replicated over units that hold `inner_s` seconds of work arranged by level 0); `first`
    stages have no stage of the same unit before them. `in_flight` microbatches are held, and the groups in
    `recomputed` keep their inputs only.
    """

    layers: int
    before: int
    degree: int = 1
    tensor: int = 1
    level: int = 0
    first: bool = True
    inner_s: float | None = None
    in_flight: int = 1
    recomputed: int = 0


class StageCost(Protocol):
    """One search model, bound to a model and a cluster."""

    name: str

    def seconds(self, stage: StageShape) -> float:
        """Seconds per microbatch (or per sample, where the paper counts so) that the stage and its transfers take;
        infinite where the stage does not fit into memory or has no such degree."""
