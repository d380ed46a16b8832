"""Shapes for every registered schedule, and its order run with one second per action."""

from __future__ import annotations

from hypothesis import strategies as st

from planner.schedules import SCHEDULES, PipelineShape, Placement, Worker, rank_at
from planner.simulation.engine import Run, Task, simulate
from planner.timeline import Action, ActionKind

GRADIENTS = (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
VIRTUAL = {Placement.LINE: (1,), Placement.LOOP: (1, 2, 3), Placement.V: (2,), Placement.ANY: (1, 2)}
"""Virtual stages per rank that are tried under each placement."""

ONE_PER_RANK = tuple(s.name for s in SCHEDULES if s.placement is Placement.LINE)


def shape_of_ranks(
    name: str,
    ranks: int,
    microbatches: int,
    virtual: int | None = None,
    *,
    forward_only: bool = False,
    options: dict[str, int] | None = None,
) -> PipelineShape:
    """The schedule's own placement of `virtual` stages (as few as it takes) on every rank."""
    placement = SCHEDULES[name].placement
    stages = ranks * (virtual or VIRTUAL[placement][0])
    on = Placement.LOOP if placement is Placement.ANY else placement
    shape = PipelineShape(
        num_stages=stages,
        num_microbatches=microbatches,
        dealt=(1,) * stages,
        forward_only=forward_only,
        rank_of=tuple(rank_at(on, stage, ranks) for stage in range(stages)),
        options=options or {},
        actions=(),
    )
    return with_actions(shape) if name == "custom" else shape


def with_actions(shape: PipelineShape) -> PipelineShape:
    """The shape with the actions of a schedule that runs microbatch after microbatch, for `custom`."""
    rows: list[list[str]] = [[] for _ in range(shape.pipeline_size)]
    for m in range(shape.num_microbatches):
        for stage in range(shape.num_stages):
            rows[shape.ranks[stage]].append(f"{stage}F{m}")
        if not shape.forward_only:
            for stage in reversed(range(shape.num_stages)):
                whole = (stage + m) % 2 == 0
                rows[shape.ranks[stage]] += [f"{stage}B{m}"] if whole else [f"{stage}I{m}", f"{stage}W{m}"]
    return PipelineShape(
        num_stages=shape.num_stages,
        num_microbatches=shape.num_microbatches,
        dealt=shape.dealt,
        forward_only=shape.forward_only,
        rank_of=shape.rank_of,
        actions=tuple(map(tuple, rows)),
    )


@st.composite
def legal_shapes(draw: st.DrawFn, name: str, *, training: bool = False, most_ranks: int = 5) -> PipelineShape:
    """Any shape that the schedule has, up to 5 ranks of up to 3 stages."""
    ranks = draw(st.integers(1, most_ranks))
    virtual = draw(st.sampled_from(VIRTUAL[SCHEDULES[name].placement]))
    microbatches = draw(st.integers(1, 10))
    options = {}
    if name == "interleaved_1f1b":
        microbatches = ranks * draw(st.integers(1, 3))
    if name == "dualpipe_v":
        microbatches += 2 * ranks - 1
    if name == "kfkb":
        options["k"] = draw(st.sampled_from([k for k in range(1, microbatches + 1) if microbatches % k == 0]))
    forward_only = not training and draw(st.integers(0, 3)) == 0
    return shape_of_ranks(name, ranks, microbatches, virtual, forward_only=forward_only, options=options)


def needs_of(action: Action, known: dict[Action, int]) -> list[int]:
    """The tasks that an action waits for, of those that there are."""
    stage, m = action.stage, action.microbatch
    if action.kind is ActionKind.FORWARD:
        before = [Action(stage - 1, ActionKind.FORWARD, m)]
    elif action.kind is ActionKind.WEIGHT_GRADIENT:
        before = [Action(stage, ActionKind.INPUT_GRADIENT, m)]
    else:
        before = [Action(stage, ActionKind.FORWARD, m), *(Action(stage + 1, kind, m) for kind in GRADIENTS)]
    return [known[a] for a in before if a in known]


def run_of_unit_actions(
    workers: tuple[Worker, ...], seconds: dict[ActionKind, float] | None = None
) -> tuple[dict[Action, float], Run]:
    """Start times when every action takes one second (or what `seconds` says) and transfers none."""
    tasks: list[Task] = []
    number: dict[Action, int] = {}
    for n, worker in enumerate(workers):
        for action in worker.actions:
            number[action] = len(tasks)
            takes = (seconds or {}).get(action.kind, 1.0)
            tasks.append(Task(label=str(action), category="compute", seconds=takes, resources=(n,), queue=n))
    for action, task in number.items():
        tasks[task].needs += needs_of(action, number)
    run = simulate(tasks, len(workers))
    return {action: run.start_s[task] for action, task in number.items()}, run
