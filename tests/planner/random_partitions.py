"""Random partition instances and their optimum by definition: no code of planner.partition but its nouns."""

import functools
import itertools
import math
import random

from planner.graph import Edge, GraphIndex, Layer, LayerGraph
from planner.ideals import group_layers
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass


def random_instance(seed, most=8):
    """Up to `most` groups with tensors, backward tensors between any groups, zero-work groups, groups that a class
    cannot run, one or two classes (the second pays no transfers), and memory in half of the cases."""
    draw = random.Random(seed)
    count = draw.randint(1, most)
    density = draw.choice((0.15, 0.3, 0.5))
    arcs = [pair for pair in itertools.combinations(range(count), 2) if draw.random() < density]
    layers = tuple(Layer(id=str(i)) for i in range(count))
    graph = LayerGraph(layers=layers, edges=tuple(Edge(source=str(a), target=str(b)) for a, b in arcs))
    index = GraphIndex(graph)
    groups = group_layers(index)
    memory = draw.random() < 0.5
    return BottleneckInstance(
        groups=groups,
        cuts=tuple(_cuts(draw, index, groups, memory)),
        classes=tuple(_classes(draw, count, memory)),
        num_stages=draw.choice((None, None, None, 1, 2, 3)),
    )


def _cuts(draw, index, groups, memory):
    heavy = draw.choice((2, 10, 40))
    for tensor in index.tensors:
        ends = {groups.of_layer[i] for i in (tensor.source, *tensor.targets)}
        held = [draw.randint(0, 5) if memory else 0 for _ in range(2)]
        yield Cut(groups=_set(ends), cost_s=draw.randint(0, heavy), received_bytes=held[0], returned_bytes=held[1])
    for _ in range(draw.choice((0, 0, 2)) if len(groups) > 2 else 0):
        ends = draw.sample(range(len(groups)), draw.randint(2, 3))
        yield Cut(groups=_set(ends), cost_s=draw.randint(0, heavy))


def _classes(draw, count, memory):
    sizes = [draw.choice((0, 1, 4, 9)) if memory else 0 for _ in range(count)]
    kinds = draw.choice(((True,), (True, False), (True, False), (True, True), (False,), (True, False, False)))
    for number, pays in enumerate(kinds):
        yield DeviceClass(
            count=draw.randint(0 if number else 1, 3),
            work_s=[math.inf if draw.random() < 0.08 else draw.choice((0, 0, 1, 2, 5, 9)) for _ in range(count)],
            size_bytes=sizes,
            limit_bytes=draw.randint(5, 40) if memory else 0,
            overhead_s=draw.choice((0, 0, 2)),
            pays=pays,
        )


def _set(numbers):
    return sum(1 << number for number in numbers)


def optimum_s(instance):
    """The smallest bottleneck over all chains of stages and classes, by definition."""
    groups, everything = instance.groups, instance.groups.everything
    counts = tuple(entry.count for entry in instance.classes)

    @functools.cache
    def rest(done, used):
        """The best bottleneck for what is not in `done` on what is left of the devices."""
        if done == everything:
            return 0.0 if instance.num_stages in (None, sum(used)) else math.inf
        best = math.inf
        todo = everything & ~done
        stage = todo
        while stage:
            if all(not groups.before[g] & ~(done | stage) for g in range(len(groups)) if stage >> g & 1):
                for c in range(len(counts)):
                    if used[c] < counts[c]:
                        after = (*used[:c], used[c] + 1, *used[c + 1 :])
                        best = min(best, max(stage_s(instance, c, done, stage), rest(done | stage, after)))
            stage = stage - 1 & todo
        return best

    return rest(0, (0,) * len(counts))


def stage_s(instance, c, done, stage):
    """Load of one stage after the groups `done`; infinite when it does not run or fit."""
    entry = instance.classes[c]
    members = [g for g in range(len(instance.groups)) if stage >> g & 1]
    seconds = entry.overhead_s + sum(entry.work_s[g] for g in members)
    held = sum(entry.size_bytes[g] for g in members)
    for cut in instance.cuts:
        if cut.groups & stage and cut.groups & ~stage:
            seconds += cut.cost_s if entry.pays else 0.0
            held += cut.received_bytes if cut.groups & done else cut.returned_bytes
    return seconds if held <= entry.limit_bytes else math.inf


def value_s(instance, stages):
    """The bottleneck of (class, groups) stages; infinite when they are no valid partition."""
    done, worst, used = 0, 0.0, [0] * len(instance.classes)
    for c, stage in stages:
        used[c] += 1
        inputs = [instance.groups.before[g] for g in range(len(instance.groups)) if stage >> g & 1]
        if stage & done or not stage or any(before & ~(done | stage) for before in inputs):
            return math.inf
        worst, done = max(worst, stage_s(instance, c, done, stage)), done | stage
    fits = all(n <= entry.count for n, entry in zip(used, instance.classes, strict=True))
    whole = done == instance.groups.everything and instance.num_stages in (None, len(stages))
    return worst if fits and whole else math.inf
