"""The MILP of one setting: which layers go to which stage, when the number of stages and the replication are fixed.

    y[v,s] = 1    layer v is in stage s or an earlier one       (binary; y[v,S-1] = 1)
    x[v,s] = y[v,s] - y[v,s-1]                                  (layer v is in stage s)
    y[v,s] >= y[v,s-1],  y[b,s] <= y[a,s] for every a -> b      (stages are convex and in order)
    sum_v x[v,s] >= 1                                           (no empty stage)
    in[t,s]  >= x[b,s] - x[a,s]   for every reader b of tensor t made by a      (stage s receives t, once)
    out[t,s] >= x[a,s] - x[b,s]                                                 (stage s sends t, once)
    pair[t,r,s] <= x[a,r],  sum_r pair[t,r,s] >= in[t,s]        (t goes from r to s; only where links or latency count)
    load[s]  <= P,   tail[s] <= T,   memory[s] <= limit
    min  sum of passes + sum of transfers + (M - 1) P + T       (iteration_time; throughput: P)

The cumulative form and the crossing variables are those of Tarnawski et al. 2020 (section 5.1) and Archer et al. 2024,
with y instead of z: acyclic quotients come for free. Only y is binary. Colocated layers share their y. Seconds and
bytes are scaled so that all passes together are 1000 and the memory limit is 1024. Variables are called x0, x1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulp

from planner.costs.parts import carries_gradient
from planner.optimizers._milp_prices import LATENCY_FIELDS, Price, SettingPrices
from planner.options import Objective, SearchModel

ALL_PASSES = 1000.0
MEMORY_LIMIT = 1024.0

Linear = Any
"""A pulp expression or variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor with a size: its number, maker and readers, bytes of one microbatch, and whether a gradient returns."""

    number: int
    source: int
    targets: tuple[int, ...]
    num_bytes: int
    back: bool


class PartitionModel:
    """Builds the model of one setting; turns stages into start values and values into stages."""

    def __init__(self, prices: SettingPrices, objective: Objective, search_model: SearchModel) -> None:
        self.prices, self.objective, self.search_model = prices, objective, search_model
        self.problem, self.index = prices.problem, prices.problem.index
        self.num_stages = prices.setting.num_stages
        self.stages = range(self.num_stages)
        self.layers = range(len(self.index))
        self.trains = self.problem.training is not None
        self.lp = pulp.LpProblem("partition", pulp.LpMinimize)
        self._count = 0
        self.tensors = self._sized_tensors()
        self.base = [prices.layer(v) for v in self.layers]
        self.unit_s = self._time_unit()
        self.y = self._partition()
        self.runs = self._runs_backward()
        self.received = [[self._new() for _ in self.stages] for _ in self.tensors]
        self.sent = [[self._new() for _ in self.stages] for _ in self.tensors]
        self._crossings()
        self.pairs = self._pairs()
        self.messages = self._messages()
        self._objective()
        self._memory()

    def cut_off(self, seconds: float) -> None:
        """Only plans whose objective is at most this are wanted."""
        self.lp.addConstraint(self.total <= seconds / self.unit_s)

    def exclude(self, stage_of: Sequence[int]) -> None:
        """Forbid one partition (it did not survive exact pricing)."""
        known = self.start(stage_of)
        flips = [(1 - var) if known[var.name] else 1 * var for var in self._binaries()]
        self.lp.addConstraint(pulp.lpSum(flips) >= 1)

    def start(self, stage_of: Sequence[int]) -> dict[str, float]:
        """The binaries of a known partition."""
        return {self.y[v][s].name: float(stage_of[v] <= s) for v in self.layers for s in range(self.num_stages - 1)}

    def stage_of(self, values: Mapping[str, float]) -> list[int]:
        """The stage of every layer in a solution, rounded."""
        return [sum(values[self.y[v][s].name] < 0.5 for s in range(self.num_stages - 1)) for v in self.layers]

    def _binaries(self) -> list[Any]:
        variables = {var.name: var for v in self.layers for var in self.y[v][:-1]}
        return list(variables.values())

    def _new(self, cat: str = "Continuous", low: float = 0.0, high: float | None = None) -> Any:
        self._count += 1
        return self.lp.add_variable(f"x{self._count - 1}", low, high, cat)

    def _at_least(self, var: Any, bounds: Iterable[Linear]) -> Any:
        for bound in bounds:
            self.lp.addConstraint(var >= bound)
        return var

    def _time_unit(self) -> float:
        total = sum(p.forward_s + p.backward_s for p in self.base)
        return total / ALL_PASSES if total > 0 else 1.0

    def _sized_tensors(self) -> list[_Tensor]:
        size = self.prices.setting.microbatch_size
        return [
            _Tensor(
                number=number,
                source=t.source,
                targets=t.targets,
                num_bytes=size * t.bytes_per_sample,
                back=self.trains and carries_gradient(self.index, number),
            )
            for number, t in enumerate(self.index.tensors)
            if t.bytes_per_sample
        ]

    def _x(self, v: int, s: int) -> Linear:
        return 1 * self.y[v][s] if s == 0 else self.y[v][s] - self.y[v][s - 1]

    def _partition(self) -> list[list[Any]]:
        """The y variables with order, precedence, colocation and no empty stage; y[v][S-1] is the number 1."""
        shared = _representatives(self.problem.graph.colocated, self.index.positions, len(self.index))
        own = {r: [self._new("Integer", 0, 1) for _ in range(self.num_stages - 1)] for r in sorted(set(shared))}
        self.y = [[*own[shared[v]], 1] for v in self.layers]
        for variables in own.values():
            for s in range(1, self.num_stages - 1):
                self.lp.addConstraint(variables[s] >= variables[s - 1])
        for v in self.layers:
            for before in self.index.predecessors[v]:
                if shared[v] != shared[before]:
                    for s in range(self.num_stages - 1):
                        self.lp.addConstraint(self.y[before][s] >= self.y[v][s])
        for s in self.stages:
            self.lp.addConstraint(pulp.lpSum(self._x(v, s) for v in self.layers) >= 1)
        return self.y

    def _runs_backward(self) -> list[Linear]:
        """Whether a stage runs a backward pass: 1 where every layer does."""
        flags = self.index.runs_backward
        if all(flags) or not self.trains:
            return [1 for _ in self.stages]
        return [self._at_least(self._new(), (self._x(v, s) for v in self.layers if flags[v])) for s in self.stages]

    def _crossings(self) -> None:
        for n, tensor in enumerate(self.tensors):
            for s in self.stages:
                for target in tensor.targets:
                    difference = self._x(target, s) - self._x(tensor.source, s)
                    self.lp.addConstraint(self.received[n][s] >= difference)
                    self.lp.addConstraint(self.sent[n][s] >= -difference)

    def _pairs(self) -> dict[tuple[int, int, int], Any]:
        """pair[t,r,s], where the model prices links or latencies; on chains only neighbours exchange tensors."""
        route = self.prices.route
        if route is None or (self.search_model is not SearchModel.OVERLAPPED and not route.latency_s):
            return {}
        reach = 1 if self.index.is_chain() else self.num_stages
        pairs: dict[tuple[int, int, int], Any] = {}
        for n, tensor in enumerate(self.tensors):
            for s in self.stages:
                sources = range(max(0, s - reach), s)
                for r in sources:
                    pairs[n, r, s] = self._new()
                    self.lp.addConstraint(pairs[n, r, s] <= self._x(tensor.source, r))
                self.lp.addConstraint(pulp.lpSum(pairs[n, r, s] for r in sources) >= self.received[n][s])
        return pairs

    def _messages(self) -> dict[tuple[int, int], Linear]:
        """Per pair of stages, how many messages go there and back for one microbatch; empty without latency."""
        route = self.prices.route
        if route is None or not route.latency_s:
            return {}
        ends = sorted({(r, s) for _, r, s in self.pairs})
        there = {e: self._new() for e in ends}
        back = {e: self._new() for e in ends}
        for (n, r, s), pair in self.pairs.items():
            self.lp.addConstraint(there[r, s] >= pair)
            if self.tensors[n].back:
                self.lp.addConstraint(back[r, s] >= pair)
        return {e: there[e] + back[e] for e in ends}

    def _objective(self) -> None:
        setting = self.prices.setting
        passes, tails = zip(*(self._stage_seconds(s) for s in self.stages), strict=True)
        period = self._new(low=self._largest_layer() / self.unit_s / self.prices.dealt)
        throughput = self.objective is Objective.THROUGHPUT
        share = 1.0 / setting.num_microbatches if throughput and self.trains else 0.0
        for s in self.stages:
            load = passes[s] * (1.0 / self.prices.dealt) + share * tails[s] + self._blocked(s)
            self.lp.addConstraint(period >= load)
        if self.search_model is SearchModel.OVERLAPPED:
            self._links(period)
        if throughput:
            total = period * (1.0 / setting.microbatch_size)
        else:
            tail = self._at_least(self._new(), tails)
            total = pulp.lpSum(passes) + self._moved() + (setting.num_microbatches - 1) * period + tail
        self.total = self._at_least(self._new(), [total])  # MPS files drop the constant of an objective
        self.lp.setObjective(1 * self.total)

    def _largest_layer(self) -> float:
        flags = self.index.runs_backward
        return max(p.forward_s + (p.backward_s if flags[v] else 0.0) for v, p in enumerate(self.base))

    def _stage_seconds(self, s: int) -> tuple[Linear, Linear]:
        """Seconds of the passes and of the tail of stage s, in units."""
        terms: list[tuple[Price, Linear, Linear]] = [(self.prices.constant, 1, self.runs[s])]
        terms += [(self.base[v], self._x(v, s), self._run_with(v, s)) for v in self.layers]
        terms += self._latencies(s)
        for price, inside in self._shared(s, lambda field: self.prices.unit(field)):
            terms.append((price, inside, inside))
        passes = pulp.lpSum(
            _scaled(price.forward_s, self.unit_s, there) + _scaled(price.backward_s, self.unit_s, back)
            for price, there, back in terms
        )
        tail = pulp.lpSum(_scaled(price.tail_s, self.unit_s, there) for price, there, _ in terms)
        return passes, tail + self._tied_tail(s)

    def _run_with(self, v: int, s: int) -> Linear:
        """Whether what layer v adds to the backward pass of stage s is paid: v is there and the stage runs one."""
        if self.index.runs_backward[v] or not self.base[v].backward_s:
            return self._x(v, s)
        return self._at_least(self._new(), [self._x(v, s) + self.runs[s] - 1])

    def _latencies(self, s: int) -> list[tuple[Price, Linear, Linear]]:
        """Latencies of the collectives that stage s takes part in."""
        terms: list[tuple[Price, Linear, Linear]] = []
        for field in LATENCY_FIELDS:
            price = self.prices.latency(field)
            inside = [v for v in self.layers if getattr(self.prices.layer_parts[v], field)]
            if inside and (price.forward_s or price.backward_s or price.tail_s):
                some = self._at_least(self._new(), (self._x(v, s) for v in inside))
                running = [v for v in inside if self.index.runs_backward[v]]
                both = some
                if len(running) < len(inside):
                    both = self._at_least(self._new(), (self._x(v, s) for v in running))
                    self._at_least(both, [some + self.runs[s] - 1])
                terms.append((price, some, both))
        return terms

    def _shared(self, s: int, unit: Callable[[str], Price]) -> list[tuple[Price, Linear]]:
        """What tied parameters, counted with every layer, are counted too often: (negative price, how often)."""
        terms: list[tuple[Price, Linear]] = []
        for tied in self.problem.graph.tied:
            everyone = self.index.positions(tied.layers)
            trainable = [v for v in everyone if self.index.layers[v].trainable]
            for field, members in (("parameter_bytes", everyone), ("trainable_bytes", trainable)):
                if len(members) > 1:
                    held = self._at_least(self._new(), (self._x(v, s) for v in members))
                    repeated = pulp.lpSum(self._x(v, s) for v in members) - held
                    terms.append((Price().plus(unit(field), -float(tied.parameter_bytes)), repeated))
        return terms

    def _tied_tail(self, s: int) -> Linear:
        """Sums of tied gradients, paid by both stages when the two trainable copies are apart."""
        terms = []
        for tied in self.problem.graph.tied:
            members = [v for v in self.index.positions(tied.layers) if self.index.layers[v].trainable]
            if len(members) == 2 and self.trains:
                difference = self._x(members[0], s) - self._x(members[1], s)
                apart = self._at_least(self._new(), [difference, -difference])
                terms.append(_scaled(self.prices.tied_s(tied.parameter_bytes), self.unit_s, apart))
        return pulp.lpSum(terms)

    def _wire_s(self, tensor: _Tensor, both_ways: bool = True) -> float:
        """One tensor (and its gradient) over its links, without latency."""
        route = self.prices.route
        if route is None:
            return 0.0
        split = self.prices.sharers * self.prices.work.tensor
        share = 1 if self.search_model is SearchModel.CLOSED else split
        ways = 2 if tensor.back and both_ways else 1
        return ways * tensor.num_bytes / share / route.bandwidth_bytes_per_s

    def _latency(self) -> float:
        return self.prices.route.latency_s / self.unit_s if self.prices.route is not None else 0.0

    def _moved(self) -> Linear:
        """Seconds of all transfers of one microbatch."""
        wires = [
            _scaled(self._wire_s(tensor), self.unit_s, self.received[n][s])
            for n, tensor in enumerate(self.tensors)
            for s in self.stages
        ]
        return pulp.lpSum(wires) + self._latency() * pulp.lpSum(self.messages.values())

    def _blocked(self, s: int) -> Linear:
        """What transfers cost stage s in the blocking model: each tensor once where it is made and where it is read."""
        if self.search_model is not SearchModel.BLOCKING or self.prices.is_cpu:
            return 0
        wires = [
            _scaled(self._wire_s(t) / self.prices.dealt, self.unit_s, self.received[n][s] + self.sent[n][s])
            for n, t in enumerate(self.tensors)
        ]
        count = pulp.lpSum(messages for ends, messages in self.messages.items() if s in ends)
        return pulp.lpSum(wires) + self._latency() / self.prices.dealt * count

    def _links(self, period: Any) -> None:
        """No link is taken for longer than a period; gradients are never more than what went there."""
        for r, s in sorted({(r, s) for _, r, s in self.pairs}):
            taken = [
                _scaled(self._wire_s(t, both_ways=False) / self.prices.dealt, self.unit_s, self.pairs[n, r, s])
                for n, t in enumerate(self.tensors)
                if (n, r, s) in self.pairs
            ]
            self.lp.addConstraint(period >= pulp.lpSum(taken))

    def _memory(self) -> None:
        """Every stage below the limit. Unrounded, so never stricter than the cost model."""
        limit = self.prices.limit_bytes
        unit = limit / MEMORY_LIMIT if limit else 1.0
        for s in self.stages:
            used = self._memory_terms(s, self.prices.in_flight(s), unit)
            self.lp.addConstraint(pulp.lpSum(used) <= limit / unit)

    def _memory_terms(self, s: int, in_flight: int, unit: float) -> list[Linear]:
        prices = self.prices

        def cost(field: str) -> float:
            return prices.unit(field, in_flight).memory_bytes

        terms = [_scaled(prices.layer(v, in_flight).memory_bytes, unit, self._x(v, s)) for v in self.layers]
        terms += [_scaled(p.memory_bytes, unit, times) for p, times in self._shared(s, prices.unit)]
        for field in ("workspace_bytes", "largest_activation_bytes"):
            largest = [cost(field) * getattr(prices.layer_parts[v], field) / unit for v in self.layers]
            if any(largest):
                terms.append(self._at_least(self._new(), (m * self._x(v, s) for v, m in enumerate(largest) if m)))
        for n, tensor in enumerate(self.tensors):
            terms.append(_scaled(cost("receive_bytes") * tensor.num_bytes, unit, self.received[n][s]))
            if tensor.back:
                terms.append(_scaled(cost("receive_gradient_bytes") * tensor.num_bytes, unit, self.sent[n][s]))
            keepers = [v for v in tensor.targets if self.index.runs_backward[v]]
            if keepers and cost("kept_input_bytes"):
                kept = self._at_least(self._new(), (self._x(v, s) for v in keepers))
                terms.append(_scaled(cost("kept_input_bytes") * tensor.num_bytes, unit, kept))
        return terms


def _scaled(value: float, unit: float, times: Linear) -> Linear:
    """`value / unit` times an expression; nothing where the value is zero."""
    return (value / unit) * times if value else 0


def _representatives(
    groups: Sequence[Sequence[str]], positions: Callable[[Iterable[str]], list[int]], count: int
) -> list[int]:
    """For every layer the first of those that must share its stage."""
    shared = list(range(count))
    for group in groups:
        members = positions(group)
        first = min(shared[v] for v in members)
        merged = {shared[v] for v in members}
        shared = [first if s in merged else s for s in shared]
    return shared
