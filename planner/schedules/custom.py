"""A schedule that the plan writes out: per rank, every action in the order in which it runs.

The plan's `actions` hold one list per rank, such as these (two stages, three microbatches):

    stage 0 | 0F0 0F1     0B0 0F2 0B1     0B2
    stage 1 |     1F0 1B0 1F1 1B1 1F2 1B2

In training every microbatch needs F and either B or both I and W at every stage, in inference F alone. A forward
waits for that of the stage before, a backward (B or I) for that of the stage after, W for its own I.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain

from planner.errors import InputError
from planner.schedules._checks import refuse_dealt, refuse_options
from planner.schedules.base import SCHEDULES, Order, Pass, PipelineShape, Worker
from planner.schedules.live import most_held
from planner.schedules.placement import Placement
from planner.timeline import Action, ActionKind

PRINTED = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")

WHOLE = Counter({ActionKind.FORWARD: 1, ActionKind.BACKWARD: 1})
SPLIT = Counter({ActionKind.FORWARD: 1, ActionKind.INPUT_GRADIENT: 1, ActionKind.WEIGHT_GRADIENT: 1})
FORWARD_ONLY = Counter({ActionKind.FORWARD: 1})


@SCHEDULES.register
class Custom:
    """The plan's own action lists, checked: known stages, nothing missing or double, an order that can run."""

    name = "custom"
    placement = Placement.ANY
    splits_backward = True

    def check(self, shape: PipelineShape) -> None:
        """InputError naming the rank and the action that is wrong. O(actions)."""
        refuse_options(self.name, shape)
        refuse_dealt(self.name, shape)
        if len(shape.actions) != shape.pipeline_size:
            raise InputError(
                f"schedule 'custom' has {len(shape.actions)} lists of actions for pipeline size {shape.pipeline_size}: "
                "give one list per rank",
                pointer="/plan/actions",
            )
        rows = _rows(shape)
        _check_complete(shape, rows)
        _check_order(shape, rows)

    def workers(self, shape: PipelineShape) -> tuple[Worker, ...]:
        """One worker per rank."""
        return tuple(
            Worker(stages=shape.stages_on(rank), replica=0, order=_order(row)) for rank, row in enumerate(_rows(shape))
        )

    def in_flight(self, shape: PipelineShape, stage: int) -> int:
        """Counted over the order."""
        return most_held(self, shape, stage)


def _order(row: list[Action]) -> Order:
    """Passes over the listed microbatches; B and I share their numbering."""
    numbers: dict[tuple[int, ActionKind], list[int]] = {}
    made: dict[tuple[int, ActionKind], Pass] = {}
    order = []
    for action in row:
        counted = ActionKind.BACKWARD if action.kind is ActionKind.INPUT_GRADIENT else action.kind
        over = numbers.setdefault((action.stage, counted), [])
        over.append(action.microbatch)
        order.append(made.setdefault((action.stage, action.kind), Pass(action.stage, action.kind, over)))
    return order


def _rows(shape: PipelineShape) -> list[list[Action]]:
    return [[_action(shape, rank, text) for text in row] for rank, row in enumerate(shape.actions)]


def _action(shape: PipelineShape, rank: int, text: str) -> Action:
    match = PRINTED.fullmatch(text)
    if match is None:
        raise _fault(rank, text[:32], "is no action: write stage, one of F, B, I, W, and microbatch, such as 2F0")
    action = Action(int(match[1]), ActionKind(match[2]), int(match[3]))
    if action.stage >= shape.num_stages:
        raise _fault(rank, text, f"names an unknown stage: the plan has stages 0 to {shape.num_stages - 1}")
    if action.microbatch >= shape.num_microbatches:
        raise _fault(rank, text, f"names an unknown microbatch: there are 0 to {shape.num_microbatches - 1}")
    if shape.ranks[action.stage] != rank:
        raise _fault(rank, text, f"belongs to rank {shape.ranks[action.stage]}, whose devices the stage names: move it")
    if shape.forward_only and action.kind is not ActionKind.FORWARD:
        raise _fault(rank, text, "is a backward action, but inference runs forwards only: remove it")
    return action


def _check_complete(shape: PipelineShape, rows: list[list[Action]]) -> None:
    """Every stage and microbatch: F once, and B once or I and W once each."""
    found: dict[tuple[int, int], Counter[ActionKind]] = {}
    for action in chain.from_iterable(rows):
        found.setdefault((action.stage, action.microbatch), Counter())[action.kind] += 1
    allowed = [FORWARD_ONLY] if shape.forward_only else [WHOLE, SPLIT]
    wanted = "F" if shape.forward_only else "F and either B or both I and W"
    for stage in range(shape.num_stages):
        for microbatch in range(shape.num_microbatches):
            kinds = found.get((stage, microbatch), Counter())
            if kinds not in allowed:
                listed = ", ".join(f"{stage}{kind}{microbatch}" for kind in kinds.elements()) or "none"
                raise InputError(
                    f"schedule 'custom' needs {wanted} of stage {stage} for microbatch {microbatch}, once each; on "
                    f"rank {shape.ranks[stage]} it has {listed}: add what is missing, remove what is double",
                    pointer=f"/plan/actions/{shape.ranks[stage]}",
                )


def _check_order(shape: PipelineShape, rows: list[list[Action]]) -> None:
    """Run all rows side by side; what cannot go on contradicts the dependencies."""
    done: set[Action] = set()
    at = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and not _missing(shape, row[at[rank]], done):
                done.add(row[at[rank]])
                at[rank] += 1
                moved = True
    stuck = {rank: row[at[rank]] for rank, row in enumerate(rows) if at[rank] < len(row)}
    if stuck:
        raise _deadlock(shape, stuck, done)


def _deadlock(shape: PipelineShape, stuck: dict[int, Action], done: set[Action]) -> InputError:
    """Names an action that stands before what it needs on its own rank, else the first one that waits."""
    missing = {rank: _missing(shape, action, done) for rank, action in stuck.items()}
    at_home = [rank for rank, needs in missing.items() if shape.ranks[needs[0].stage] == rank]
    rank = (at_home or list(stuck))[0]
    others = "".join(f"; rank {r} is at {a}" for r, a in stuck.items() if r != rank)
    needed = " or ".join(map(str, missing[rank]))
    return _fault(
        rank,
        str(stuck[rank]),
        f"can never run: it waits for {needed}, which does not come before it{others}; reorder the actions",
    )


def _missing(shape: PipelineShape, action: Action, done: set[Action]) -> list[Action]:
    """What must run before the action and has not, as alternatives (B or I); empty when it may run."""
    stage, m = action.stage, action.microbatch
    if action.kind is ActionKind.FORWARD:
        needs = [[Action(stage - 1, ActionKind.FORWARD, m)]] if stage else []
    elif action.kind is ActionKind.WEIGHT_GRADIENT:
        needs = [[Action(stage, ActionKind.INPUT_GRADIENT, m)]]
    else:
        needs = [[Action(stage, ActionKind.FORWARD, m)]]
        if stage + 1 < shape.num_stages:
            needs.append([Action(stage + 1, kind, m) for kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)])
    return next((choice for choice in needs if done.isdisjoint(choice)), [])


def _fault(rank: int, text: str, what: str) -> InputError:
    return InputError(f"schedule 'custom', rank {rank}: {text!r} {what}", pointer=f"/plan/actions/{rank}")
