"""The linear program of `virtual`: layers in stages, with what every rank does and holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.bounds._budget import Budget
from planner.bounds._linear import SLACK, Linear, Session
from planner.bounds.base import BoundQuery
from planner.costs.memory import kept_bytes_per_microbatch
from planner.costs.parts import StageParts, parts_of
from planner.costs.stage import StageSetting, stage_memory
from planner.schedules import ONE, PipelineShape, Schedule
from planner.workload import Recomputation

MOST_KINDS = 12
"""Kinds of layers that are told apart; the rarest are joined to one that is as cheap as any of them."""
MOST_MOMENTS = 4
"""Moments per rank at which its memory is looked at."""
ROUNDS = 2
"""Orders are walked for this many microbatches per rank at most."""
ROUNDING_BYTES = 8
"""Sizes of single layers are rounded up one by one."""
ROOM = 1.001
"""How far above the known plan's time the program may go: what is above is no plan of interest."""


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A kind of recomputation: seconds that it adds to a backward pass, bytes kept per microbatch."""

    again_s: float
    kept_bytes: float


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Layers with the same least prices: seconds of one microbatch, bytes that a device always holds."""

    forward_s: float
    backward_s: float
    held_bytes: float
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How many layers of each kind, and the memory of a device."""

    counts: dict[Kind, int]
    limit_bytes: int

    @classmethod
    def of(cls, query: BoundQuery, batch: tuple[int, int], degree: int) -> Kinds:
        """O(layers), and prices for layers that differ."""
        pricing = _Pricing(query, batch[0], degree)
        found = Counter(pricing.kind(layer) for layer in range(len(query.problem.index)))
        counts = dict(found.most_common(MOST_KINDS - 1))
        rest = [kind for kind in found if kind not in counts]
        if rest:
            counts[_cheapest(rest)] = sum(found[kind] for kind in rest)
        return cls(counts=counts, limit_bytes=max(query.problem.memory_limits.values()))


class _Pricing:
    """The kinds of layers at one microbatch size and degree; layers alike are priced once."""

    def __init__(self, query: BoundQuery, microbatch_size: int, degree: int) -> None:
        self.query, self.size, self.degree = query, microbatch_size, degree
        (self.device_type,) = query.groups
        work = query.problem.workload
        self.prices = query.costs.layer_prices(self.device_type, microbatch_size / (degree * work.context), work.tensor)
        ((self.forward, self.backward),) = query.both_passes(microbatch_size, degree)
        self.shared = {name for tied in query.problem.graph.tied for name in tied.layers}
        self._known: dict[object, Kind] = {}

    def kind(self, layer: int) -> Kind:
        """The layer's, made once for all that are alike."""
        own, prices = self.query.problem.index.layers[layer], self.prices
        key = (
            replace(own, id="", op="", entry=""), own.id in self.shared, self._own_inputs(layer),
            self.forward[layer], self.backward[layer], self.query.problem.index.runs_backward[layer],
            prices.activation_bytes[layer], prices.selective_bytes[layer], prices.selective_s[layer],
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = self._kind(layer)
        return self._known[key]

    def _kind(self, layer: int) -> Kind:
        problem = self.query.problem
        parts = replace(parts_of(problem, self.prices, [layer], self.size), kept_input_bytes=self._own_inputs(layer))
        shared = problem.index.layers[layer].id in self.shared
        return Kind(
            forward_s=self.forward[layer],
            backward_s=self.backward[layer],
            held_bytes=0.0 if shared else max(0.0, min(self._held(parts)) - ROUNDING_BYTES),
            choices=tuple(self._choices(layer, parts)),
        )

    def _choices(self, layer: int, parts: StageParts) -> Iterator[Choice]:
        """What every allowed recomputation adds and keeps. Where all recompute fully, the passes have it already."""
        work, runs = self.query.problem.workload, self.query.problem.index.runs_backward[layer]
        allowed = sorted({level.recomputation for level in self.query.levels})
        again = {Recomputation.SELECTIVE: float(parts.selective_s), Recomputation.FULL: self.forward[layer]}
        for recomputation in allowed:
            kept = kept_bytes_per_microbatch(parts, work, recomputation, work.tensor, self.degree, work.context)
            free = allowed == [Recomputation.FULL] or not runs
            yield Choice(
                again_s=0.0 if free else again.get(recomputation, 0.0), kept_bytes=max(0.0, kept - ROUNDING_BYTES)
            )

    def _own_inputs(self, layer: int) -> int:
        """Bytes of the tensors that no other layer reads: those that others read may be kept for them too."""
        index = self.query.problem.index
        tensors = [index.tensors[t] for t in index.inputs[layer]] if index.runs_backward[layer] else []
        return self.size * sum(t.bytes_per_sample for t in tensors if len(t.targets) == 1)

    def _held(self, parts: StageParts) -> Iterator[float]:
        """Weights, gradients and optimizer state of the layer under every level."""
        work = self.query.problem.workload
        for level in self.query.levels:
            setting = StageSetting(
                device_type=self.device_type,
                tensor=work.tensor,
                replicas=self.degree,
                sharers=self.degree,
                zero=level.zero,
                recomputation=level.recomputation,
                group_route=None,
                replica_route=None,
                context=work.context,
                expert=work.expert,
                reshard=level.reshard,
            )
            memory = stage_memory(self.query.problem, parts, setting, 0)
            yield float(memory["weights_bytes"] + memory["gradients_bytes"] + memory["optimizer_bytes"])


def _cheapest(kinds: list[Kind]) -> Kind:
    """One that is nowhere dearer than any of them."""
    return Kind(
        forward_s=min(kind.forward_s for kind in kinds),
        backward_s=min(kind.backward_s for kind in kinds),
        held_bytes=min(kind.held_bytes for kind in kinds),
        choices=tuple(
            Choice(again_s=min(c.again_s for c in each), kept_bytes=min(c.kept_bytes for c in each))
            for each in zip(*(kind.choices for kind in kinds), strict=True)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What the program is about; `in_a_chain`: stages wait for each other in their order, there and back."""

    schedule: Schedule
    shape: PipelineShape
    kinds: Kinds
    in_a_chain: bool


def crowded_s(crowd: Crowd, upper_s: float, budget: Budget) -> float:
    """A lower bound on the iteration time of every plan of the shape, at most `upper_s` (infeasible: no plan fits)."""
    answer = Session(_Program(crowd, upper_s).model, budget).solve()
    return min(upper_s, max(0.0, answer.bound) * upper_s)


class _Program:
    """Seconds are shares of the known plan's, bytes of the memory."""

    def __init__(self, crowd: Crowd, upper_s: float) -> None:
        self.crowd, self.unit_s, self.model = crowd, upper_s, Linear()
        self.num_stages, self.count = crowd.shape.num_stages, crowd.shape.num_microbatches
        self.time = self.model.add(1.0, high=ROOM)
        self.layers = [
            [(kind, choice, self.model.add(high=float(many))) for kind, many in counts for choice in kind.choices]
            for counts in [list(crowd.kinds.counts.items())] * self.num_stages
        ]
        self._everywhere()
        self._times()
        self._memory()

    def _everywhere(self) -> None:
        """Every layer is in a stage, and in every stage is a layer."""
        for kind, many in self.crowd.kinds.counts.items():
            columns = [column for stage in self.layers for its, _, column in stage if its is kind]
            self.model.row(((column, 1.0) for column in columns), many, many)
        for stage in self.layers:
            self.model.row(((column, 1.0) for _, _, column in stage), 1.0)

    def _times(self) -> None:
        """T >= ahead + M load for every stage."""
        ahead, later = -1, dict[int, int]()
        loads = [0] * self.num_stages
        for stage in reversed(range(self.num_stages)):
            rank = self.crowd.shape.ranks[stage]
            terms = [
                (column, (k.forward_s + k.backward_s + c.again_s) / self.unit_s) for k, c, column in self.layers[stage]
            ]
            loads[stage] = self._sum(terms, later.get(rank, -1), ROOM / self.count)
            later[rank] = loads[stage]
        for stage in range(self.num_stages):
            before = [(ahead, -1.0)] if ahead >= 0 else []
            self.model.row([(self.time, 1.0), (loads[stage], -float(self.count)), *before], 0.0)
            if self.crowd.in_a_chain:
                ahead = self._sum(list(self._passed(stage)), ahead, ROOM)

    def _passed(self, stage: int) -> Iterator[tuple[int, float]]:
        """What others wait for at this stage: its passes, of a split one the forward."""
        for kind, choice, column in self.layers[stage]:
            back = 0.0 if self.crowd.schedule.splits_backward else kind.backward_s + choice.again_s
            yield column, (kind.forward_s + back) / self.unit_s

    def _sum(self, terms: list[tuple[int, float]], others: int, high: float) -> int:
        """A column that is at least the terms, on top of another one (-1: of none)."""
        column = self.model.add(high=high)
        rest = [(others, -1.0)] if others >= 0 else []
        self.model.row([(column, 1.0), *((c, -factor) for c, factor in terms), *rest], 0.0)
        return column

    def _memory(self) -> None:
        """At some moments of every rank's order."""
        limit = float(self.crowd.kinds.limit_bytes)
        for stages, moments in moments_of(self.crowd.schedule, self.crowd.shape):
            for live in moments:
                terms = (
                    (column, (kind.held_bytes + live.get(stage, 0) * choice.kept_bytes) / limit)
                    for stage in stages
                    for kind, choice, column in self.layers[stage]
                )
                self.model.row(terms, high=1.0 + SLACK)


def moments_of(schedule: Schedule, shape: PipelineShape) -> Iterator[tuple[tuple[int, ...], list[dict[int, int]]]]:
    """Per rank its stages, and per moment how many microbatches of each it holds: when it holds most of all together,
    and when it holds most of one of them."""
    few = replace(shape, num_microbatches=few_microbatches(shape))
    for worker in schedule.workers(few):
        live, most, moments = Counter[int](), Counter[int](), dict[int, dict[int, int]]()
        together = 0
        for action in worker.order:
            live[action.stage] += ONE.change(action.kind)
            if live.total() > together:
                together, moments[-1] = live.total(), dict(live)
            if live[action.stage] > most[action.stage]:
                most[action.stage], moments[action.stage] = live[action.stage], dict(live)
        distinct = {tuple(sorted(moment.items())): moment for _, moment in sorted(moments.items())}
        yield worker.stages, list(distinct.values())[:MOST_MOMENTS]


def few_microbatches(shape: PipelineShape) -> int:
    """No more than fill the pipeline some times."""
    return min(shape.num_microbatches, ROUNDS * shape.pipeline_size)
