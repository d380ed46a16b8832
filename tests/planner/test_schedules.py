"""Schedules: every action once, in an order that can run; what they hold; closed forms; tables of the docstrings."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_shapes import GRADIENTS, ONE_PER_RANK, legal_shapes, run_of_unit_actions, shape_of_ranks

from planner.errors import InputError
from planner.schedules import ONE, SCHEDULES, Kept, PipelineShape, Placement, peak_live
from planner.timeline import Action, ActionKind

UNSPLIT = {ActionKind.FORWARD: 1.0, ActionKind.BACKWARD: 2.0}


@st.composite
def dealt_shapes(draw: st.DrawFn) -> PipelineShape:
    """Pipelines of 1 to 5 stages; replicas are dealt to at most as many as there are microbatches."""
    microbatches = draw(st.integers(1, 8))
    dealt = draw(st.lists(st.integers(1, min(3, microbatches)), min_size=1, max_size=5))
    return PipelineShape(
        num_stages=len(dealt),
        num_microbatches=microbatches,
        dealt=tuple(dealt),
        forward_only=draw(st.booleans()),
    )


def assert_complete(name: str, shape: PipelineShape) -> None:
    """Legal, every stage and microbatch once per kind on the right worker, and no waiting in a circle."""
    SCHEDULES[name].check(shape)
    workers = SCHEDULES[name].workers(shape)
    assert {s for w in workers for s in w.stages} == set(range(shape.num_stages))
    done: dict[tuple[int, int], Counter[ActionKind]] = {}
    for worker in workers:
        for action in worker.actions:
            assert action.stage in worker.stages
            assert action.microbatch % shape.dealt[action.stage] == worker.replica
            done.setdefault((action.stage, action.microbatch), Counter())[action.kind] += 1
    assert set(done) == {(s, m) for s in range(shape.num_stages) for m in range(shape.num_microbatches)}
    for kinds in done.values():
        backward = "" if shape.forward_only else "B" if kinds[ActionKind.BACKWARD] else "IW"
        assert kinds == Counter(map(ActionKind, f"F{backward}"))
    run_of_unit_actions(workers)  # raises when it is stuck


@pytest.mark.parametrize("name", SCHEDULES.names())
@given(data=st.data())
def test_every_action_runs_exactly_once_and_nothing_waits_for_itself(name: str, data: st.DataObject) -> None:
    assert_complete(name, data.draw(legal_shapes(name)))


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@given(shape=dealt_shapes())
def test_dealt_microbatches_run_exactly_once(name: str, shape: PipelineShape) -> None:
    assert_complete(name, shape)


def held_at_most(shape: PipelineShape, name: str) -> dict[int, int]:
    """Per stage, counted action by action: from F to B or W."""
    most: dict[int, int] = dict.fromkeys(range(shape.num_stages), 0)
    for worker in SCHEDULES[name].workers(shape):
        held: Counter[int] = Counter()
        for action in worker.actions:
            held[action.stage] += {"F": 1, "I": 0}.get(action.kind.value, -1)
            most[action.stage] = max(most[action.stage], held[action.stage])
    return most


@pytest.mark.parametrize("name", SCHEDULES.names())
@given(data=st.data())
def test_in_flight_is_what_the_order_holds_at_most(name: str, data: st.DataObject) -> None:
    shapes = st.one_of(legal_shapes(name), dealt_shapes()) if name in ("1f1b", "gpipe") else legal_shapes(name)
    shape = data.draw(shapes)
    most = held_at_most(shape, name)
    for stage in range(shape.num_stages):
        assert SCHEDULES[name].in_flight(shape, stage) == (1 if shape.forward_only else most[stage])


@pytest.mark.parametrize("name", SCHEDULES.names())
@given(data=st.data())
def test_peak_live_is_the_running_sum(name: str, data: st.DataObject) -> None:
    shape = data.draw(legal_shapes(name))
    sizes = st.integers(0, 9)
    kept = {s: Kept(from_forward=data.draw(sizes), from_input_gradient=data.draw(sizes)) for s in range(3)}
    for worker in SCHEDULES[name].workers(shape):
        live = peak = 0
        for action in worker.actions:
            live += kept[action.stage].change(action.kind) if action.stage in kept else 0
            peak = max(peak, live)
        assert peak_live(worker.order, kept) == peak
        assert shape.forward_only or live == 0


@given(stages=st.integers(1, 8), microbatches=st.integers(1, 12))
def test_in_flight_counts_of_the_literature(stages: int, microbatches: int) -> None:
    shape = PipelineShape(num_stages=stages, num_microbatches=microbatches, dealt=(1,) * stages)
    for s in range(stages):
        assert SCHEDULES["gpipe"].in_flight(shape, s) == microbatches
        assert SCHEDULES["1f1b"].in_flight(shape, s) == min(microbatches, stages - s)
        assert SCHEDULES["zb_h1"].in_flight(shape, s) == min(microbatches, stages)
        assert SCHEDULES["zb_h2"].in_flight(shape, s) == min(microbatches, 2 * stages - 1)


def test_in_flight_with_dealt_replicas() -> None:
    """PipeDream's NOAM: ceil(workers / workers of the input stage), here 3 + 1 workers."""
    shape = PipelineShape(num_stages=2, num_microbatches=12, dealt=(3, 1))
    assert [SCHEDULES["1f1b"].in_flight(shape, s) for s in (0, 1)] == [2, 1]
    assert [SCHEDULES["gpipe"].in_flight(shape, s) for s in (0, 1)] == [4, 12]


def chunks_held(name: str, ranks: int, microbatches: int, virtual: int) -> list[int]:
    """Per rank, the most (stage, microbatch) pairs held at once."""
    shape = shape_of_ranks(name, ranks, microbatches, virtual)
    return [peak_live(w.order, dict.fromkeys(w.stages, ONE)) for w in SCHEDULES[name].workers(shape)]


@pytest.mark.parametrize(
    ("size", "virtual", "held"),
    [(8, 3, 31), (35, 3, 35 * 3 + 34), (8, 2, 8 * 2 + 7)],
)
def test_interleaved_first_rank_holds_the_factor_of_korthikanti(size: int, virtual: int, held: int) -> None:
    """L (1 + (p - 1) / (p v)) layers, that is p v + p - 1 of the p v stages' shares (arXiv 2205.05198, section 4)."""
    assert chunks_held("interleaved_1f1b", size, 4 * size, virtual)[0] == held


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_v_schedules_hold_what_their_papers_say(size: int) -> None:
    """ZB-V: p microbatches of both stages on every rank, as 1F1B's first; DualPipeV: one stage's share more at most."""
    assert set(chunks_held("zb_v", size, 4 * size, 2)) == {2 * size}
    assert max(chunks_held("dualpipe_v", size, 4 * size, 2)) <= 2 * size + 1


@pytest.mark.parametrize(
    ("size", "virtual", "microbatches"), [(2, 1, 4), (2, 3, 6), (4, 2, 8), (4, 4, 4), (8, 3, 64), (8, 1, 64)]
)
def test_interleaving_divides_the_bubble(size: int, virtual: int, microbatches: int) -> None:
    """(M + (P - 1) / v) t, t the seconds of all stages of a rank."""
    workers = SCHEDULES["interleaved_1f1b"].workers(shape_of_ranks("interleaved_1f1b", size, microbatches, virtual))
    _, run = run_of_unit_actions(workers, UNSPLIT)
    assert run.makespan_s == 3.0 * (virtual * microbatches + size - 1)


@pytest.mark.parametrize(("size", "microbatches"), [(1, 1), (2, 4), (4, 4), (4, 12), (7, 9)])
@pytest.mark.parametrize(("f", "i", "w"), [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (1.0, 1.5, 0.5)])
def test_zb_h1_has_a_third_of_the_bubble(size: int, microbatches: int, f: float, i: float, w: float) -> None:
    """(p - 1)(F + I - W), in 1F1B's memory (Qi et al. 2024, table 2); W no longer than F."""
    shape = shape_of_ranks("zb_h1", size, microbatches)
    seconds = {ActionKind.FORWARD: f, ActionKind.INPUT_GRADIENT: i, ActionKind.WEIGHT_GRADIENT: w}
    _, run = run_of_unit_actions(SCHEDULES["zb_h1"].workers(shape), seconds)
    assert run.makespan_s == pytest.approx(microbatches * (f + i + w) + (size - 1) * (f + i - w))


def idle_inside(name: str, size: int, microbatches: int, virtual: int = 1) -> list[float]:
    """Per rank, the seconds between its first and its last action in which it idles; all actions take 1 s."""
    workers = SCHEDULES[name].workers(shape_of_ranks(name, size, microbatches, virtual))
    start, _ = run_of_unit_actions(workers)
    times = [[start[a] for a in w.actions] for w in workers]
    return [max(row) + 1 - min(row) - len(row) for row in times]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_zero_bubble_schedules_never_idle_when_f_i_and_w_are_equal(size: int, more: int) -> None:
    """Qi et al. 2024, figures 3 and 5: with 2p - 1 (H2) or 2p (V) microbatches and more."""
    assert not any(idle_inside("zb_h2", size, 2 * size - 1 + more))
    assert not any(idle_inside("zb_v", size, 2 * size + more, 2))


@given(size=st.integers(1, 6), microbatches=st.integers(1, 12))
def test_kfkb_lies_between_1f1b_and_gpipe(size: int, microbatches: int) -> None:
    def actions(name: str, **options: int) -> list[tuple[Action, ...]]:
        shape = shape_of_ranks(name, size, microbatches, options=options)
        return [w.actions for w in SCHEDULES[name].workers(shape)]

    assert actions("kfkb", k=1) == actions("kfkb") == actions("1f1b")
    assert actions("kfkb", k=microbatches) == actions("gpipe")


@given(size=st.integers(1, 5), microbatches=st.integers(1, 8))
def test_looped_bfs_with_one_stage_is_gpipe_from_the_last_microbatch_on(size: int, microbatches: int) -> None:
    shape = shape_of_ranks("looped_bfs", size, microbatches)
    assert [SCHEDULES["looped_bfs"].in_flight(shape, s) for s in range(size)] == [microbatches] * size
    last = [w.actions[-1] for w in SCHEDULES["looped_bfs"].workers(shape)]
    assert last == [Action(s, ActionKind.BACKWARD, 0) for s in range(size)]


def drawn_shape(name: str) -> PipelineShape:
    """The shape of the docstring's table."""
    if SCHEDULES[name].placement is Placement.ANY:
        drawn = [row.split() for row in table_of(name)]
        shape = PipelineShape(num_stages=2, num_microbatches=3, dealt=(1, 1))
        return replace(shape, actions=tuple(tuple(cells) for cells in drawn))
    virtual = 1 if SCHEDULES[name].placement is Placement.LINE else 2
    microbatches = {"interleaved_1f1b": 2, "looped_bfs": 2, "dualpipe_v": 4, "kfkb": 4}.get(name, 3)
    return shape_of_ranks(name, 2, microbatches, virtual, options={"k": 2} if name == "kfkb" else {})


def table_of(name: str) -> list[str]:
    """The rows that the module's docstring draws, 4 characters per second."""
    module = inspect.getmodule(type(SCHEDULES[name]))
    assert module is not None
    assert module.__doc__ is not None
    lines = (line.strip() for line in module.__doc__.splitlines())
    return [line.split("|")[1] for line in lines if line.startswith(("stage ", "rank ")) and "|" in line]


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_the_table_of_the_docstring_is_what_runs(name: str) -> None:
    rows = table_of(name)
    assert len(rows) == 2
    workers = SCHEDULES[name].workers(drawn_shape(name))
    start, _ = run_of_unit_actions(workers)
    for worker, row in zip(workers, rows, strict=True):
        drawn = {row[at : at + 3]: (at - 1) // 4 for at in range(1, len(row), 4) if row[at : at + 3].strip()}
        assert drawn == {str(a): round(start[a]) for a in worker.actions}


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_too_few_microbatches_for_dealt_replicas_are_refused(name: str) -> None:
    shape = PipelineShape(num_stages=2, num_microbatches=2, dealt=(3, 1))
    with pytest.raises(InputError, match="stage 0 of 2 deals 2 microbatches to 3 replicas"):
        SCHEDULES[name].check(shape)


@pytest.mark.parametrize("name", sorted(set(SCHEDULES.names()) - {"1f1b", "gpipe"}))
def test_dealt_replicas_are_refused_by_schedules_of_ranks(name: str) -> None:
    shape = replace(shape_of_ranks(name, 2, 4), dealt=(2,) * shape_of_ranks(name, 2, 4).num_stages)
    with pytest.raises(
        InputError, match="stage 0 deals whole microbatches to 2 replicas: use the replica mode 'split'"
    ):
        SCHEDULES[name].check(shape)


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_options_and_actions_that_mean_nothing_are_refused(name: str) -> None:
    shape = shape_of_ranks(name, 2, 4)
    with pytest.raises(InputError, match="got depth: remove"):
        SCHEDULES[name].check(replace(shape, options={"depth": 2}))
    if name != "custom":
        with pytest.raises(InputError, match="makes its own actions"):
            SCHEDULES[name].check(replace(shape, actions=(("0F0",),)))


@pytest.mark.parametrize("name", ONE_PER_RANK)
def test_stages_that_share_a_rank_are_refused_by_schedules_of_one_stage_per_rank(name: str) -> None:
    shape = replace(shape_of_ranks(name, 4, 4), rank_of=(0, 1, 0, 1))
    with pytest.raises(InputError, match="runs one stage per rank, but 4 stages share 2 ranks"):
        SCHEDULES[name].check(shape)


@pytest.mark.parametrize(
    ("name", "rank_of", "message"),
    [
        ("interleaved_1f1b", (0, 1, 1, 0), "stage 2 of 4 on rank 0 of 2, but it names the devices of rank 1"),
        ("looped_bfs", (0, 0, 1, 1), "stage 1 of 4 on rank 1 of 2, but it names the devices of rank 0"),
        ("zb_v", (0, 1, 0, 1), "stage 2 of 4 on rank 1 of 2, but it names the devices of rank 0"),
        ("dualpipe_v", (0, 1, 0, 1), "give it those of stage 1"),
        (
            "zb_v",
            (0, 1, 2),
            "needs 2 virtual stages per rank, but pipeline size 3 with 8 microbatches has 3 stages: use 6",
        ),
        ("looped_bfs", (0, 1, 0), "pipeline size 2 with 8 microbatches has 3 stages: use 2 or 4 stages"),
    ],
)
def test_a_placement_that_is_not_the_schedules_is_refused(name: str, rank_of: tuple[int, ...], message: str) -> None:
    n = len(rank_of)
    shape = PipelineShape(num_stages=n, num_microbatches=8, dealt=(1,) * n, rank_of=rank_of)
    with pytest.raises(InputError, match=message):
        SCHEDULES[name].check(shape)


@pytest.mark.parametrize(
    ("name", "size", "virtual", "microbatches", "options", "nearest"),
    [
        ("interleaved_1f1b", 6, 2, 3, {}, "use 6 microbatches"),
        ("interleaved_1f1b", 4, 2, 10, {}, "use 8 or 12 microbatches"),
        ("dualpipe_v", 3, 2, 5, {}, "use 6 microbatches"),
        ("kfkb", 2, 1, 7, {"k": 3}, "use 6 or 9 microbatches"),
        ("kfkb", 2, 1, 4, {"k": 5}, "the option k is 5, use 1 to 4"),
        ("kfkb", 2, 1, 4, {"k": 0}, "the option k is 0, use 1 to 4"),
    ],
)
def test_an_illegal_size_names_all_sizes_and_the_nearest_legal(
    name: str, size: int, virtual: int, microbatches: int, options: dict[str, int], nearest: str
) -> None:
    with pytest.raises(InputError) as fault:
        SCHEDULES[name].check(shape_of_ranks(name, size, microbatches, virtual, options=options))
    named = f"pipeline size {size}, {microbatches} microbatches and {virtual} virtual stages per rank"
    assert named in str(fault.value)
    assert nearest in str(fault.value)


def test_actions_print_as_in_schedule_tables() -> None:
    assert str(Action(2, ActionKind.FORWARD, 0)) == "2F0"


def test_split_schedules_give_the_input_gradient_first() -> None:
    """Nobody waits for W: it never comes before its I."""
    for schedule in SCHEDULES:
        if not schedule.splits_backward:
            continue
        for worker in schedule.workers(shape_of_ranks(schedule.name, 3, 6)):
            at = {str(a): n for n, a in enumerate(worker.actions)}
            for action in worker.actions:
                if action.kind is ActionKind.WEIGHT_GRADIENT:
                    gradient = Action(action.stage, GRADIENTS[1], action.microbatch)
                    assert at[str(gradient)] < at[str(action)]


@pytest.mark.parametrize("name", SCHEDULES.names())
@given(stages=st.integers(1, 6), microbatches=st.integers(1, 7))
def test_in_flight_of_any_line_of_stages_can_be_asked_for(name: str, stages: int, microbatches: int) -> None:
    """Searches ask before they know whether a shape is legal."""
    shape = PipelineShape(num_stages=stages, num_microbatches=microbatches, dealt=(1,) * stages)
    assert all(0 <= SCHEDULES[name].in_flight(shape, s) <= microbatches for s in range(stages))
