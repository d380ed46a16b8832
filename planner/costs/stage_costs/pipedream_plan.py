"""The `pipedream` model of a problem, and what it says of a plan.

A plan lists stages with devices; the model wants them nested. Consecutive stages that share their units of a level
(the same nodes) are one stage of that level, replicated over those units, with a pipeline inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.costs.model import CostModel, PricedPlan
from planner.costs.stage_costs.base import StageShape
from planner.costs.stage_costs.hierarchy import hierarchy, unit_sizes
from planner.costs.stage_costs.pipedream import CrossingTensor, PipeDreamCost
from planner.errors import InputError
from planner.ideals import group_layers, set_of
from planner.problem import Problem

Placed = tuple[int, tuple[int, ...]]
"""A stage: its layer groups as a bitset, and the numbers of its devices, ascending."""


def pipedream_refusal(problem: Problem) -> str:
    """Why the model does not describe the problem; empty when it does."""
    if problem.training is None:
        return "the pipedream search model prices training only"
    if problem.workload.tensor != 1:
        return f"the pipedream search model plans single devices, the tensor degree is {problem.workload.tensor}"
    if problem.graph.tied:
        return "the pipedream search model does not price tied parameters"
    if len({device.type for device in problem.cluster.devices}) > 1 or not problem.profile_of:
        return "the pipedream search model needs devices of one type"
    if hierarchy(problem) is None:
        return "the pipedream search model needs links that join equal units of consecutive devices, level by level"
    return ""


def pipedream_cost(problem: Problem, costs: CostModel, microbatch_size: int) -> PipeDreamCost:
    """The model with activation transfers; a minibatch is a microbatch of this size. InputError as refused above."""
    refusal, levels = pipedream_refusal(problem), hierarchy(problem)
    if refusal or levels is None:
        raise InputError(refusal, pointer="/options/search_model")
    index, groups = problem.index, group_layers(problem.index)
    prices = costs.layer_prices(problem.cluster.devices[0].type, microbatch_size, 1)
    return PipeDreamCost(
        groups=groups,
        work_s=[sum(prices.forward_s[i] + prices.backward_s[i] for i in members) for members in groups.layers],
        weight_bytes=[
            sum(index.layers[i].parameter_bytes for i in members if index.layers[i].trainable)
            for members in groups.layers
        ],
        tensors=tuple(
            CrossingTensor(
                source=groups.of_layer[tensor.source],
                targets=set_of({groups.of_layer[i] for i in tensor.targets}),
                num_bytes=microbatch_size * tensor.bytes_per_sample,
            )
            for tensor in index.tensors
        ),
        levels=levels,
    )


def pipedream_period_s(problem: Problem, priced: PricedPlan) -> float:
    """Seconds between minibatches: the largest of the nested stages. InputError for a plan that is not nested."""
    plan = priced.plan
    cost = pipedream_cost(problem, CostModel(problem), plan.microbatch_size)
    number = {device.id: i for i, device in enumerate(problem.cluster.devices)}
    placed = [
        (
            set_of({cost.groups.of_layer[i] for i in stage.layers}),
            tuple(sorted(number[d] for group in stage.stage.replicas for d in group)),
        )
        for stage in priced.stages
    ]
    return placed_period_s(cost, placed)


def placed_period_s(cost: PipeDreamCost, placed: Sequence[Placed]) -> float:
    """The same for stages in order, by the numbers of their devices."""
    return _Nest(cost).period_s(placed, len(cost.levels) - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """Some devices of a plan's stage, by the units of a level that they are in."""

    members: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, devices: Sequence[int], size: int) -> _Units:
        return cls(members={unit: tuple(found) for unit, found in groupby(devices, key=lambda d: d // size)})


class _Nest:
    """Prices placed stages level by level."""

    def __init__(self, cost: PipeDreamCost) -> None:
        self.cost = cost
        self.below = [1, *unit_sizes(cost.levels)]

    def period_s(self, placed: Sequence[Placed], level: int, before: int) -> float:
        """The period of one pipeline of this level; `before` are the layer groups ahead of it."""
        worst, first = 0.0, True
        units = [_Units.of(devices, self.below[level]) for _, devices in placed]
        pairs = zip(placed, units, strict=True)
        for _, found in groupby(pairs, key=lambda pair: frozenset(pair[1].members)):
            stages = list(found)
            layers = set_of({g for (groups, _), _ in stages for g in range(len(self.cost.groups)) if groups >> g & 1})
            shape = StageShape(
                layers=layers,
                before=before,
                degree=len(stages[0][1].members),
                level=level,
                first=first,
                inner_s=self._inner_s(stages, level, before) if level else None,
            )
            worst, first, before = max(worst, self.cost.seconds(shape)), False, before | layers
        return worst

    def _inner_s(self, stages: Sequence[tuple[Placed, _Units]], level: int, before: int) -> float:
        """The period within one of the units, which must all be arranged alike."""
        inner = []
        for (groups, devices), units in stages:
            shares = list(units.members.values())
            if len({len(share) for share in shares}) > 1:
                raise InputError(
                    f"the pipedream search model has no price for a stage on devices {devices}: it takes unequal "
                    f"numbers from the units of level {level}; use the same number of each",
                    pointer="/plan/stages",
                )
            inner.append((groups, shares[0]))
        return self.period_s(inner, level - 1, before)
