"""Each contraction rule by hand: when it applies, when it must not, and where groups come back."""

import dataclasses
import math

import pytest

from planner.ideals import Groups, set_of
from planner.partition.contraction import contract
from planner.partition.instance import BottleneckInstance, Cut, DeviceClass


def instance(arcs, work_s, cuts, *, cpu_s=None, sizes=None, num_stages=None, count=2):
    """Groups 0, 1, ... with precedence `arcs`, tensors {groups: cost}, accelerators and perhaps a CPU."""
    n = len(work_s)
    sizes = sizes or [0] * n
    classes = [DeviceClass(count=count, work_s=work_s, size_bytes=sizes, limit_bytes=10)]
    if cpu_s:
        classes.append(DeviceClass(count=1, work_s=cpu_s, size_bytes=sizes, limit_bytes=10, pays=False))
    return BottleneckInstance(
        groups=Groups(
            layers=tuple((g,) for g in range(n)),
            of_layer=tuple(range(n)),
            before=tuple(set_of(a for a, b in arcs if b == g) for g in range(n)),
            after=tuple(set_of(b for a, b in arcs if a == g) for g in range(n)),
        ),
        cuts=tuple(Cut(groups=set_of(pins), cost_s=cost) for pins, cost in cuts.items()),
        classes=tuple(classes),
        num_stages=num_stages,
    )


CHAIN = [(0, 1), (1, 2)]


def members(smaller):
    return [f"{m:03b}" for m in smaller.members]


def test_a_light_group_joins_the_one_it_is_tied_to():
    smaller = contract(instance(CHAIN, [9, 1, 9], {(0, 1): 1, (1, 2): 3}), keep_memory=False)
    assert members(smaller) == ["001", "110"]  # 1 + 1 <= 3
    assert list(smaller.instance.classes[0].work_s) == [9, 10]
    assert [(cut.groups, cut.cost_s) for cut in smaller.instance.cuts] == [(0b11, 1)]
    assert smaller.instance.groups.of_layer == (0, 1, 1)
    assert smaller.expand([0b01, 0b10]) == (0b001, 0b110)


@pytest.mark.parametrize(
    "changes",
    [
        {"work_s": [9, 2.5, 9]},  # 2.5 + 1 > 3
        {"cpu_s": [9, 1, 9]},  # the CPU would work for it
        {"work_s": [9, math.inf, 9], "cpu_s": [9, 0, 9]},  # no accelerator runs it
        {"num_stages": 2},  # a stage could become empty
    ],
)
def test_it_does_not_where_that_could_cost(changes):
    values = {"work_s": [9, 1, 9]} | changes
    smaller = contract(instance(CHAIN, cuts={(0, 1): 1, (1, 2): 3}, **values), keep_memory=False)
    assert len(smaller.members) == 3


def test_bytes_keep_groups_where_they_are():
    held = instance(CHAIN, [9, 1, 9], {(0, 1): 1, (1, 2): 3}, sizes=[1, 1, 1])
    assert len(contract(held, keep_memory=True).members) == 3
    dropped = contract(held, keep_memory=False)
    assert len(dropped.members) == 2
    assert list(dropped.instance.classes[0].size_bytes) == [0, 0]
    buffered = dataclasses.replace(held, cuts=tuple(dataclasses.replace(c, received_bytes=1) for c in held.cuts))
    light = dataclasses.replace(held.classes[0], size_bytes=[0, 0, 0])
    assert len(contract(dataclasses.replace(buffered, classes=(light,)), keep_memory=True).members) == 3


def test_a_reader_after_a_reader_is_no_second_neighbour():
    """0 -> 1 -> 2 and 0 -> 2: group 1 is the only one next to 0, and the tensor to 2 cannot become worse."""
    smaller = contract(instance([*CHAIN, (0, 2)], [0, 5, 5], {(0, 1, 2): 3, (1, 2): 1}), keep_memory=False)
    assert members(smaller) == ["011", "100"]


def test_a_source_without_work_leaves_its_tensor_to_its_readers():
    smaller = contract(instance([(0, 1), (0, 2)], [0, 5, 5], {(0, 1, 2): 4}), keep_memory=False)
    assert members(smaller) == ["010", "100"] or members(smaller) == ["100", "010"]
    assert [cut.cost_s for cut in smaller.instance.cuts] == [4]
    assert smaller.instance.groups.of_layer[0] == -1
    first, second = (m.bit_length() - 1 for m in smaller.members)
    assert smaller.expand([0b01, 0b10]) == (1 << first | 1, 1 << second)
    assert smaller.expand([0b10, 0b01]) == (1 << second | 1, 1 << first)


def test_a_group_without_work_and_tensors_goes_and_comes_back_after_its_inputs():
    arcs = [(0, 2), (1, 2), (2, 3), (2, 4)]
    smaller = contract(instance(arcs, [5, 5, 0, 5, 5], {}), keep_memory=False)
    assert 0b00100 not in smaller.members
    position = {m.bit_length() - 1: g for g, m in enumerate(smaller.members)}
    stages = [1 << position[0], 1 << position[1] | 1 << position[3], 1 << position[4]]
    assert smaller.expand(stages) == (0b00001, 0b01110, 0b10000)
    groups = smaller.instance.groups
    assert groups.before[position[3]] == 1 << position[0] | 1 << position[1]


def test_groups_of_an_all_free_graph_do_not_vanish():
    smaller = contract(instance(CHAIN, [0, 0, 0], {}), keep_memory=False)
    assert len(smaller.members) == 1
    assert smaller.expand([1]) == (0b111,)


def test_below_t_costly_tensors_hold_their_groups_together():
    graph = instance(CHAIN, [1, 1, 1], {(0, 1): 7, (1, 2): 3}, sizes=[1, 1, 1])
    assert len(contract(graph, below=8.5, keep_memory=True).members) == 3
    assert members(contract(graph, below=8.0, keep_memory=True)) == ["011", "100"]
    assert members(contract(graph, below=5.0, keep_memory=True)) == ["111"]


def test_whatever_lies_between_joined_groups_is_joined():
    smaller = contract(instance(CHAIN, [5, 5, 5], {(0, 2): 4}), below=9.0, keep_memory=True)
    assert members(smaller) == ["111"]


def test_a_cpu_can_hold_one_end_of_a_costly_tensor():
    graph = instance(CHAIN, [5, 1, 0.5], {(0, 1): 3, (1, 2): 1}, cpu_s=[9, 9, 9], sizes=[1, 1, 1])
    assert len(contract(graph, below=8.0, keep_memory=True).members) == 3  # group 0 on the CPU, 1 + 3 < 8
    assert members(contract(graph, below=4.0, keep_memory=True))[0] == "011"
    two = dataclasses.replace(graph.classes[1], count=2)
    pair = dataclasses.replace(graph, classes=(graph.classes[0], two))
    assert len(contract(pair, below=4.0, keep_memory=True).members) == 3  # both ends on CPUs
