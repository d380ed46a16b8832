"""Who runs what, what goes where, and which executor is taken: without processes and without torch."""

from __future__ import annotations

import pytest

from planner.errors import ExportError
from planner.plan import Plan, Stage
from planner.runtime.abilities import ExecutorKind, check_runnable, chosen
from planner.runtime.layout import Layout
from planner.runtime.routes import Piece, routes_of
from planner.workload import ReplicaMode


def layout(degrees: tuple[int, ...], size: int = 6, dealt: bool = False) -> Layout:
    """Stages with so many replicas each, four microbatches."""
    return Layout(
        groups=tuple(tuple((f"d{s}.{r}",) for r in range(degree)) for s, degree in enumerate(degrees)),
        group_of=tuple(range(len(degrees))),
        microbatch_size=size,
        num_microbatches=4,
        dealt=dealt,
    )


def plan(*replicas: tuple[str, ...], schedule: str = "1f1b", mode: ReplicaMode = ReplicaMode.SPLIT) -> Plan:
    """One layer per stage."""
    stages = tuple(
        Stage(layers=(f"L{s}",), replicas=tuple((device,) for device in devices)) for s, devices in enumerate(replicas)
    )
    return Plan(stages=stages, schedule=schedule, microbatch_size=4, num_microbatches=4, replica_mode=mode)


def test_processes_count_through_a_group_before_the_next_one() -> None:
    made = layout((2, 3))
    assert [made.rank(stage, replica) for stage, degree in enumerate((2, 3)) for replica in range(degree)] == [
        *range(5)
    ]
    assert [made.seat(rank) for rank in range(5)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert made.name(3) == "rank 3 (stage 1, replica 1, device d1.1)"


def test_virtual_stages_share_their_processes() -> None:
    made = check_runnable(plan(("a",), ("b",), ("b",), ("a",), schedule="zb_v"))
    assert (made.num_stages, made.num_ranks) == (4, 2)
    assert made.stages_on(0) == (0, 3)
    assert made.name(1) == "rank 1 (stages 1, 2, replica 0, device b)"


@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize("degrees", [(2, 1), (2, 3), (1, 3)])
def test_every_sample_travels_once(degrees: tuple[int, int], dealt: bool) -> None:
    made = layout(degrees, dealt=dealt)
    routes = routes_of(made, [("t",), ()], [(), ("t",)])
    way = routes.ways[0]
    for microbatch in range(4):
        sent = received = 0
        for stage, degree in enumerate(degrees):
            for replica in range(degree):
                pieces = routes.pieces(way, stage, replica, microbatch)
                count = sum(len(piece.samples) for piece in pieces)
                assert count == len(made.samples(stage, replica, microbatch))
                sent, received = (sent + count, received) if stage == 0 else (sent, received + count)
        assert sent == received == 6
    assert sum(made.share(1, replica) for replica in range(degrees[1])) == pytest.approx(1.0)


def test_pieces_are_what_both_replicas_have() -> None:
    routes = routes_of(layout((2, 3)), [("t",), ()], [(), ("t",)])
    assert routes.pieces(routes.ways[0], 0, 0, 0) == (Piece(2, range(0, 2)), Piece(3, range(2, 3)))
    assert routes.pieces(routes.ways[0], 1, 1, 0) == (Piece(0, range(0, 1)), Piece(1, range(1, 2)))


def test_a_tensor_goes_straight_to_each_of_its_readers() -> None:
    routes = routes_of(layout((1, 1, 1)), [("t",), ("u",), ()], [("data",), ("t",), ("u", "t")])
    assert [(way.name, way.source, way.target) for way in routes.ways] == [("t", 0, 1), ("u", 1, 2), ("t", 0, 2)]
    tags = {routes.tag(way, m, back) for way in routes.ways for m in range(4) for back in (False, True)}
    assert len(tags) == 3 * 4 * 2


@pytest.mark.parametrize(
    ("made", "executor"),
    [
        (plan(("a",), ("b",)), ExecutorKind.TORCH),
        (plan(("a", "b"), ("c", "d")), ExecutorKind.TORCH),
        (plan(("a", "b"), ("c",)), ExecutorKind.OWN),
        (plan(("a", "b"), ("c", "d"), mode=ReplicaMode.DEALT), ExecutorKind.OWN),
        (plan(("a",), ("b",), schedule="zb_h1"), ExecutorKind.OWN),
        (plan(*((name,) for name in "abcde")), ExecutorKind.OWN),
    ],
)
def test_torch_runs_what_it_can(made: Plan, executor: ExecutorKind) -> None:
    assert chosen(made, ExecutorKind.AUTO) is executor
    check_runnable(made)
    if executor is ExecutorKind.OWN:
        with pytest.raises(ExportError):
            check_runnable(made, ExecutorKind.TORCH)
