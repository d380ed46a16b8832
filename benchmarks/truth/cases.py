"""The plans that are predicted and then run: every schedule under several cuts, by both executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.plan import Plan, Stage
from planner.runtime.abilities import ExecutorKind
from planner.runtime.program import LOSS_LAYER
from planner.schedules import SCHEDULES, Placement, rank_at

NUM_RANKS = 2
OWN, TORCH = ExecutorKind.OWN, ExecutorKind.TORCH
DEVICES = tuple(f"core{rank}" for rank in range(NUM_RANKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan: cuts are positions in the model's layers (embedding 0, blocks 1 to 8, head 9)."""

    schedule: str
    cuts: tuple[int, ...]
    num_microbatches: int = 4
    executor: ExecutorKind = OWN

    @property
    def name(self) -> str:
        """In tables: `1f1b 5 x4`."""
        cuts = ",".join(map(str, self.cuts))
        return f"{self.schedule} {cuts} x{self.num_microbatches}{' torch' if self.executor is TORCH else ''}"

    def plan(self, layers: Sequence[str], microbatch_size: int) -> Plan:
        """Its stages on two devices, where the schedule wants them."""
        ends = (0, *self.cuts, len(layers))
        groups = [tuple(layers[a:b]) for a, b in pairwise(ends)]
        groups[-1] += (LOSS_LAYER,)
        placement = SCHEDULES[self.schedule].placement
        where = Placement.LOOP if placement is Placement.ANY else placement
        return Plan(
            stages=tuple(
                Stage(layers=group, replicas=((DEVICES[rank_at(where, number, NUM_RANKS)],),))
                for number, group in enumerate(groups)
            ),
            schedule=self.schedule,
            microbatch_size=microbatch_size,
            num_microbatches=self.num_microbatches,
        )


def cases(two: tuple[int, int], four: tuple[tuple[int, int, int], tuple[int, int, int]]) -> tuple[Case, ...]:
    """The plans of a model: `two` are cuts into two stages, `four` into two stages per device."""
    first, second = ((cut,) for cut in two)
    return (
        Case(schedule="1f1b", cuts=first),
        Case(schedule="1f1b", cuts=first, executor=TORCH),
        Case(schedule="1f1b", cuts=second),
        Case(schedule="1f1b", cuts=first, num_microbatches=8),
        Case(schedule="gpipe", cuts=first),
        Case(schedule="gpipe", cuts=first, executor=TORCH),
        Case(schedule="gpipe", cuts=second),
        Case(schedule="interleaved_1f1b", cuts=four[0]),
        Case(schedule="interleaved_1f1b", cuts=four[1]),
        Case(schedule="zb_h1", cuts=first),
        Case(schedule="zb_h1", cuts=second),
        Case(schedule="zb_v", cuts=four[0]),
    )


CASES = {
    "gpt": cases((5, 4), ((3, 5, 7), (2, 4, 6))),
    "unbalanced": cases((6, 7), ((3, 5, 7), (2, 4, 7))),
    "vit": cases((5, 6), ((3, 5, 7), (2, 5, 8))),
    "llama": cases((5, 6), ((3, 5, 7), (3, 4, 7))),
}
CALIBRATION_CASES = (
    Case(schedule="1f1b", cuts=(5,)),
    Case(schedule="interleaved_1f1b", cuts=(3, 5, 7)),
    Case(schedule="zb_h1", cuts=(5,)),
    Case(schedule="1f1b", cuts=(5,), executor=TORCH),
    Case(schedule="gpipe", cuts=(5,), executor=TORCH),
)
