"""The MILP of one setting: which layers go to which stage, when the number of stages and the replication are fixed.

    in[t,s]  >= x[b,s] - x[a,s]   for every reader b of tensor t made by a      (stage s receives t, once)
    out[t,s] >= x[a,s] - x[b,s]                                                 (stage s sends t, once)
    pair[t,r,s] <= x[a,r],  sum_r pair[t,r,s] >= in[t,s]        (t goes from r to s; only where links or latency count)
    load[s]  <= P,   tail[s] <= T,   memory[s] <= limit
    min  sum of passes + sum of transfers + (M - 1) P + T       (iteration_time; throughput: P)

x[v,s] says that layer v is in stage s (`_milp_partition`). With several classes of devices, s is a slot: a stage on one
class; all that is said of a stage here is said of its slots, and is nothing for those that are not used. The crossing
variables are those of Tarnawski et al. 2020 (section 5.1) and Archer et al. 2024. Seconds and bytes are scaled so that
all passes together are 1000 and the memory limit is 1024. Variables are called x0, x1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pulp

from planner.costs.parts import carries_gradient
from planner.optimizers._milp_partition import Linear, Partition
from planner.optimizers._milp_prices import (
    LARGEST_FIELDS,
    LATENCY_FIELDS,
    SHARED_FIELDS,
    Price,
    SettingPrices,
    shared_price,
)
from planner.options import Objective, SearchModel

ALL_PASSES = 1000.0
MEMORY_LIMIT = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor with a size: its number, maker and readers, bytes of one microbatch, and whether a gradient returns."""

    number: int
    source: int
    targets: tuple[int, ...]
    num_bytes: int
    back: bool


class PartitionModel:
    """Builds the model of one setting, priced for each class of devices.

    `partition` turns stages into start values and values into stages.
    """

    def __init__(self, classes: Sequence[SettingPrices], objective: Objective, search_model: SearchModel) -> None:
        self.classes, self.common = classes, classes[0]
        self.objective, self.search_model = objective, search_model
        self.problem, self.index = self.common.problem, self.common.problem.index
        self.trains = self.problem.training is not None
        self.partition = Partition(self.problem, self.common.setting, classes)
        self.lp, self._new, self._at_least = self.partition.lp, self.partition.new, self.partition.at_least
        self._x, self.layers, self.slots = self.partition.x, self.partition.layers, self.partition.slots
        self.stages = range(self.common.setting.num_stages)
        self.tensors = self._sized_tensors()
        self.base = [[self._price(c, v) for v in self.layers] for c in range(len(classes))]
        self.unit_s = self._time_unit()
        self.runs = self._runs_backward()
        self.received = [[self._new() for _ in self.slots] for _ in self.tensors]
        self.sent = [[self._new() for _ in self.slots] for _ in self.tensors]
        self._crossings()
        self.pairs = self._pairs()
        self.there, self.back = self._messages()
        self._objective()
        self._memory()

    def cut_off(self, seconds: float) -> None:
        """Only plans whose objective is at most this are wanted."""
        self.lp.addConstraint(self.total <= seconds / self.unit_s)

    def _price(self, c: int, v: int) -> Price:
        """What layer v adds to its stage on class c; nothing where it cannot be."""
        return self.classes[c].layer(v) if self.classes[c].runs(v) else Price()

    def _least_pass(self, v: int) -> float:
        """Seconds of layer v on the class that is quickest for it."""
        flag = self.index.runs_backward[v]
        prices = [self.base[c][v] for c, entry in enumerate(self.classes) if entry.runs(v)]
        return min(p.forward_s + (p.backward_s if flag else 0.0) for p in prices)

    def _time_unit(self) -> float:
        total = sum(p.forward_s + p.backward_s for prices in self.base for p in prices) / len(self.base)
        return total / ALL_PASSES if total > 0 else 1.0

    def _sized_tensors(self) -> list[_Tensor]:
        size = self.common.setting.microbatch_size
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

    def _runs_backward(self) -> list[Linear]:
        """Whether a slot runs a backward pass: if it is used, where every layer does."""
        flags = self.index.runs_backward
        if all(flags) or not self.trains:
            return [slot.used for slot in self.slots]
        return [self._at_least(self._new(), (self._x(v, s) for v in self.layers if flags[v])) for s in self.slots]

    def _crossings(self) -> None:
        for n, tensor in enumerate(self.tensors):
            for s, slot in enumerate(self.slots):
                for target in tensor.targets:
                    difference = self._x(target, slot) - self._x(tensor.source, slot)
                    self.lp.addConstraint(self.received[n][s] >= difference)
                    self.lp.addConstraint(self.sent[n][s] >= -difference)

    def _pairs(self) -> dict[tuple[int, int, int], Any]:
        """pair[t,r,s], where the model prices links or latencies; on chains only neighbours exchange tensors."""
        route = self.common.route
        if route is None or (self.search_model is not SearchModel.OVERLAPPED and not route.latency_s):
            return {}
        reach = 1 if self.index.is_chain() else len(self.stages)
        pairs: dict[tuple[int, int, int], Any] = {}
        for n, tensor in enumerate(self.tensors):
            for s in self.stages:
                sources = range(max(0, s - reach), s)
                for r in sources:
                    pairs[n, r, s] = self._new()
                    self.lp.addConstraint(pairs[n, r, s] <= self.partition.in_stage(tensor.source, r))
                received = pulp.lpSum(self.received[n][k] for k, slot in enumerate(self.slots) if slot.stage == s)
                self.lp.addConstraint(pulp.lpSum(pairs[n, r, s] for r in sources) >= received)
        return pairs

    def _messages(self) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], Any]]:
        """Per pair of stages, whether messages go there and back for one microbatch; empty without latency."""
        route = self.common.route
        if route is None or not route.latency_s:
            return {}, {}
        ends = sorted({(r, s) for _, r, s in self.pairs})
        there = {e: self._new() for e in ends}
        back = {e: self._new() for e in ends if self.trains}
        for (n, r, s), pair in self.pairs.items():
            self.lp.addConstraint(there[r, s] >= pair)
            if self.tensors[n].back:
                self.lp.addConstraint(back[r, s] >= pair)
        return there, back

    def _objective(self) -> None:
        setting = self.common.setting
        passes, tails, blocked = zip(*(self._stage_seconds(s) for s in self.stages), strict=True)
        period = self._new(low=max(map(self._least_pass, self.layers)) / self.unit_s / self.common.dealt)
        throughput = self.objective is Objective.THROUGHPUT
        share = 1.0 / setting.num_microbatches if throughput and self.trains else 0.0
        for s in self.stages:
            self.lp.addConstraint(period >= passes[s] * (1.0 / self.common.dealt) + share * tails[s] + blocked[s])
        if self.search_model is SearchModel.OVERLAPPED:
            self._links(period)
        if throughput:
            total = period * (1.0 / setting.microbatch_size)
        else:
            tail = self._at_least(self._new(), tails)
            total = pulp.lpSum(passes) + self._moved() + (setting.num_microbatches - 1) * period + tail
        self.total = self._at_least(self._new(), [total])  # MPS files drop the constant of an objective
        self.lp.setObjective(1 * self.total)

    def _stage_seconds(self, stage: int) -> tuple[Linear, Linear, Linear]:
        """Seconds of the passes, the tail and the blocking transfers of a stage, in units: sums over its slots."""
        slots = [s for s, slot in enumerate(self.slots) if slot.stage == stage]
        passes, tails = zip(*(self._slot_seconds(s) for s in slots), strict=True)
        blocked = [self._blocked(s) for s in slots]
        return pulp.lpSum(passes), pulp.lpSum(tails), pulp.lpSum([*blocked, self._blocked_latency(stage)])

    def _slot_seconds(self, s: int) -> tuple[Linear, Linear]:
        """Seconds of the passes and of the tail of slot s, in units."""
        slot, prices = self.slots[s], self.classes[self.slots[s].kind]
        terms: list[tuple[Price, Linear, Linear]] = [(prices.constant, slot.used, self.runs[s])]
        terms += [(self.base[slot.kind][v], self._x(v, slot), self._run_with(v, s)) for v in self.layers]
        terms += self._latencies(s)
        for price, inside in self._shared(s, lambda field: prices.unit(field)):
            terms.append((price, inside, inside))
        passes = pulp.lpSum(
            _scaled(price.forward_s, self.unit_s, there) + _scaled(price.backward_s, self.unit_s, back)
            for price, there, back in terms
        )
        tail = pulp.lpSum(_scaled(price.tail_s, self.unit_s, there) for price, there, _ in terms)
        return passes, tail + self._tied_tail(s)

    def _run_with(self, v: int, s: int) -> Linear:
        """Whether what layer v adds to the backward pass of slot s is paid: v is there and the slot runs one."""
        slot = self.slots[s]
        if self.index.runs_backward[v] or not self.base[slot.kind][v].backward_s:
            return self._x(v, slot)
        return self._at_least(self._new(), [self._x(v, slot) + self.runs[s] - 1])

    def _latencies(self, s: int) -> list[tuple[Price, Linear, Linear]]:
        """Latencies of the collectives that slot s takes part in."""
        slot, prices = self.slots[s], self.classes[self.slots[s].kind]
        terms: list[tuple[Price, Linear, Linear]] = []
        for field in LATENCY_FIELDS:
            price = prices.latency(field)
            inside = [v for v in self.layers if getattr(prices.layer_parts[v], field)]
            if inside and (price.forward_s or price.backward_s or price.tail_s):
                some = self._at_least(self._new(), (self._x(v, slot) for v in inside))
                running = [v for v in inside if self.index.runs_backward[v]]
                both = some
                if len(running) < len(inside):
                    both = self._at_least(self._new(), (self._x(v, slot) for v in running))
                    self._at_least(both, [some + self.runs[s] - 1])
                terms.append((price, some, both))
        return terms

    def _shared(self, s: int, unit: Callable[[str], Price]) -> list[tuple[Price, Linear]]:
        """What tied parameters, counted with every layer, are counted too often: (negative price, how often)."""
        terms: list[tuple[Price, Linear]] = []
        for tied in self.problem.graph.tied:
            everyone = self.index.positions(tied.layers)
            trainable = [v for v in everyone if self.index.layers[v].trainable]
            for names, members in zip(SHARED_FIELDS, (everyone, trainable), strict=True):
                if len(members) > 1:
                    inside = [self._x(v, self.slots[s]) for v in members]
                    repeated = pulp.lpSum(inside) - self._at_least(self._new(), inside)
                    terms.append((Price().plus(shared_price(tied, names, unit), -1.0), repeated))
        return terms

    def _tied_tail(self, s: int) -> Linear:
        """Sums of tied gradients, paid by both stages when the two trainable copies are apart."""
        terms, slot = [], self.slots[s]
        for tied in self.problem.graph.tied:
            members = [v for v in self.index.positions(tied.layers) if self.index.layers[v].trainable]
            if len(members) == 2 and self.trains:
                difference = self._x(members[0], slot) - self._x(members[1], slot)
                apart = self._at_least(self._new(), [difference, -difference])
                terms.append(_scaled(self.common.tied_s(tied.parameter_bytes), self.unit_s, apart))
        return pulp.lpSum(terms)

    def _wire_s(self, tensor: _Tensor, both_ways: bool = True) -> float:
        """One tensor (and its gradient) over its links, without latency."""
        route = self.common.route
        if route is None:
            return 0.0
        split = self.common.sharers * self.common.work.tensor
        share = 1 if self.search_model is SearchModel.CLOSED else split
        ways = 2 if tensor.back and both_ways else 1
        return ways * tensor.num_bytes / share / route.bandwidth_bytes_per_s

    def _latency(self) -> float:
        return self.common.route.latency_s / self.unit_s if self.common.route is not None else 0.0

    def _moved(self) -> Linear:
        """Seconds of all transfers of one microbatch."""
        wires = [
            _scaled(self._wire_s(tensor), self.unit_s, self.received[n][s])
            for n, tensor in enumerate(self.tensors)
            for s in range(len(self.slots))
        ]
        return pulp.lpSum(wires) + self._latency() * pulp.lpSum([*self.there.values(), *self.back.values()])

    def _blocked(self, s: int) -> Linear:
        """What transfers cost slot s in the blocking model: each tensor once where it is made and where it is read."""
        if self.search_model is not SearchModel.BLOCKING or self.classes[self.slots[s].kind].is_cpu:
            return 0
        return pulp.lpSum(
            _scaled(self._wire_s(t) / self.common.dealt, self.unit_s, self.received[n][s] + self.sent[n][s])
            for n, t in enumerate(self.tensors)
        )

    def _blocked_latency(self, stage: int) -> Linear:
        """What the messages of a stage cost it in the blocking model, unless it is on a class that pays nothing."""
        if self.search_model is not SearchModel.BLOCKING:
            return 0
        messages = [some[e] for some in (self.there, self.back) for e in some if stage in e]
        free = [slot.used for slot in self.slots if slot.stage == stage and self.classes[slot.kind].is_cpu]
        if free:
            messages = [self._at_least(self._new(), [message - pulp.lpSum(free)]) for message in messages]
        return self._latency() / self.common.dealt * pulp.lpSum(messages)

    def _links(self, period: Any) -> None:
        """No link is taken for longer than a period; gradients are never more than what went there."""
        for r, s in sorted({(r, s) for _, r, s in self.pairs}):
            taken = [
                _scaled(self._wire_s(t, both_ways=False) / self.common.dealt, self.unit_s, self.pairs[n, r, s])
                for n, t in enumerate(self.tensors)
                if (n, r, s) in self.pairs
            ]
            self.lp.addConstraint(period >= pulp.lpSum(taken))

    def _memory(self) -> None:
        """Every slot below its limit. Unrounded, so never stricter than the cost model."""
        for s, slot in enumerate(self.slots):
            prices = self.classes[slot.kind]
            limit = prices.limit_bytes
            unit = limit / MEMORY_LIMIT if limit else 1.0
            used = self._memory_terms(s, prices, prices.in_flight(slot.stage), unit)
            self.lp.addConstraint(pulp.lpSum(used) <= limit / unit)

    def _memory_terms(self, s: int, prices: SettingPrices, in_flight: int, unit: float) -> list[Linear]:
        slot = self.slots[s]

        def cost(field: str) -> float:
            return prices.unit(field, in_flight).memory_bytes

        terms = [_scaled(prices.layer(v, in_flight).memory_bytes, unit, self._x(v, slot)) for v in self.layers]
        terms += [_scaled(p.memory_bytes, unit, times) for p, times in self._shared(s, prices.unit)]
        for field in LARGEST_FIELDS:
            largest = [cost(field) * getattr(prices.layer_parts[v], field) / unit for v in self.layers]
            if any(largest):
                terms.append(self._at_least(self._new(), (m * self._x(v, slot) for v, m in enumerate(largest) if m)))
        for n, tensor in enumerate(self.tensors):
            terms.append(_scaled(cost("receive_bytes") * tensor.num_bytes, unit, self.received[n][s]))
            if tensor.back:
                terms.append(_scaled(cost("receive_gradient_bytes") * tensor.num_bytes, unit, self.sent[n][s]))
            keepers = [v for v in tensor.targets if self.index.runs_backward[v]]
            if keepers and cost("kept_input_bytes"):
                kept = self._at_least(self._new(), (self._x(v, slot) for v in keepers))
                terms.append(_scaled(cost("kept_input_bytes") * tensor.num_bytes, unit, kept))
        return terms


def _scaled(value: float, unit: float, times: Linear) -> Linear:
    """`value / unit` times an expression; nothing where the value is zero."""
    return (value / unit) * times if value else 0
