"""Ideals against brute force, groups of colocated layers, limits."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import LimitError
from planner.graph import Edge, GraphIndex, Layer, LayerGraph
from planner.ideals import bits, enumerate_ideals, group_layers, set_of
from profiles.importers import read_text

INSTANCES = Path(__file__).parent.parent / "instances" / "device-placement"


def index_of(count, arcs, colocated=()):
    """Layers "0", "1", ... with edges (i, j) for i < j."""
    return GraphIndex(
        LayerGraph(
            layers=tuple(Layer(id=str(i)) for i in range(count)),
            edges=tuple(Edge(source=str(a), target=str(b)) for a, b in arcs),
            colocated=tuple(tuple(map(str, names)) for names in colocated),
        )
    )


@st.composite
def indices(draw):
    """Random graphs of up to seven layers, some of them colocated."""
    count = draw(st.integers(1, 7))
    pairs = list(itertools.combinations(range(count), 2))
    arcs = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    together = (
        draw(st.lists(st.sets(st.integers(0, count - 1), min_size=2, max_size=3), max_size=2)) if count > 2 else []
    )
    return index_of(count, sorted(arcs), [sorted(names) for names in together])


def brute_force(index):
    """Sets of layer positions that are closed towards the inputs and hold colocated sets whole or not at all."""
    colocated = [set(index.positions(names)) for names in index.graph.colocated]
    found = set()
    for chosen in itertools.product((False, True), repeat=len(index)):
        layers = {i for i, inside in enumerate(chosen) if inside}
        closed = all(index.predecessors[i] <= layers for i in layers)
        if closed and all(not names & layers or names <= layers for names in colocated):
            found.add(frozenset(layers))
    return found


@given(indices())
def test_ideals_are_those_of_brute_force(index):
    groups = group_layers(index)
    ideals = enumerate_ideals(groups, 2**7)
    assert {frozenset(groups.positions(ideal)) for ideal in ideals} == brute_force(index)
    assert len(set(ideals)) == len(ideals)
    assert list(ideals) == sorted(ideals, key=lambda ideal: (ideal.bit_count(), ideal))
    assert (ideals[0], ideals[-1]) == (0, groups.everything)


@given(indices())
def test_groups_are_topological_and_whole(index):
    groups = group_layers(index)
    assert sorted(itertools.chain(*groups.layers)) == list(range(len(index)))
    assert all(g < h for g in range(len(groups)) for h in bits(groups.after[g]))
    for names in index.graph.colocated:
        assert len({groups.of_layer[i] for i in index.positions(names)}) == 1


@given(indices())
def test_maximal_and_addable_groups_are_the_steps_between_ideals(index):
    groups = group_layers(index)
    ideals = set(enumerate_ideals(groups, 2**7))
    for ideal in ideals:
        assert groups.is_ideal(ideal)
        assert {g for g in bits(ideal) if ideal & ~(1 << g) in ideals} == set(bits(groups.maximal(ideal)))
        outside = set(range(len(groups))) - set(bits(ideal))
        assert {g for g in outside if ideal | 1 << g in ideals} == set(bits(groups.addable(ideal)))


def test_a_layer_between_colocated_ones_joins_them():
    groups = group_layers(index_of(4, [(0, 1), (1, 2), (2, 3)], [(0, 2)]))
    assert groups.layers == ((0, 1, 2), (3,))


def test_colocated_sets_that_overlap_are_one():
    groups = group_layers(index_of(5, [], [(0, 2), (2, 4)]))
    assert sorted(groups.layers) == [(0, 2, 4), (1,), (3,)]


def test_a_chain_has_one_ideal_per_prefix():
    groups = group_layers(index_of(2000, [(i, i + 1) for i in range(1999)]))
    assert len(enumerate_ideals(groups, 2001)) == 2001


def test_more_ideals_than_the_limit_are_refused_with_the_count():
    groups = group_layers(index_of(20, []))
    with pytest.raises(LimitError, match="the graph of 20 groups has more than 1000 ideals"):
        enumerate_ideals(groups, 1000)
    assert len(enumerate_ideals(group_layers(index_of(10, [])), 1024)) == 1024


@pytest.mark.parametrize(("name", "most"), [("bert24_inference", 242), ("resnet50_inference", 242)])
def test_published_graphs_have_few_ideals(name, most):
    model = read_text((INSTANCES / f"{name}.json").read_text())
    assert len(enumerate_ideals(group_layers(GraphIndex(model.graph)), most)) <= most


def test_bitsets_and_positions():
    assert list(bits(0b10110)) == [1, 2, 4]
    assert set_of([4, 1, 2]) == 0b10110
