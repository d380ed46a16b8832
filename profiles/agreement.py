"""Do two profiles of one model agree? Stage by stage, and what the reference workload says where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from planner.errors import InputError
from planner.profile import CostTable, Profile
from profiles.model import ProfiledModel

AGREEMENT_LIMIT = 0.03
"""Seconds of a stage that differ by more are not the same measurement (docs/measuring.md)."""
NUM_STAGES = 4


@dataclass(frozen=True, slots=True)
class StageAgreement:
    """Forward and backward seconds of some layers in a row, in both profiles."""

    layers: tuple[str, ...]
    earlier_s: float
    later_s: float

    @property
    def apart(self) -> float:
        """How far the later seconds are from the earlier ones, as a signed fraction."""
        return self.later_s / self.earlier_s - 1 if self.earlier_s else 0.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two measurements at one microbatch size. `reference` is how far the reference workloads are apart, None unknown.

    `drift` is the largest that one of the two measurements noticed within itself.
    """

    device_type: str
    microbatch_size: int
    stages: tuple[StageAgreement, ...]
    reference: float | None
    drift: float

    @property
    def apart(self) -> float:
        """The stage that differs most."""
        return max(abs(stage.apart) for stage in self.stages)

    @property
    def agrees(self) -> bool:
        return self.apart <= AGREEMENT_LIMIT

    @property
    def drifted(self) -> bool:
        """Whether the measurements themselves say that the host was not the same."""
        return abs(self.reference or 0.0) > AGREEMENT_LIMIT or self.drift > AGREEMENT_LIMIT

    def verdict(self) -> str:
        """One sentence."""
        head = f"microbatch size {self.microbatch_size}: stages are at most {self.apart:.1%} apart"
        if self.agrees:
            return f"{head}, the profiles agree (limit {AGREEMENT_LIMIT:.0%})"
        if self.drifted:
            return f"{head}, the host drifted ({self._reasons()}): measure again on a quiet machine"
        return (
            f"{head}, more than {AGREEMENT_LIMIT:.0%}, and no drift of the host was seen ({self._reasons()}): compare "
            "torch, environment and model of the two"
        )

    def _reasons(self) -> str:
        if self.reference is None:
            return "no reference workload in one of the two"
        return f"reference workload {self.reference:+.1%}, {self.drift:.1%} between halves of a measurement"


def agreements(earlier: ProfiledModel, later: ProfiledModel, num_stages: int = NUM_STAGES) -> tuple[Agreement, ...]:
    """One per device type and microbatch size that both profiles have.

    A stage is a row of layers; there are `num_stages` (fewer where there are fewer layers), as equal in the earlier
    profile's seconds as whole layers allow. InputError for other layers, or when nothing can be compared.
    """
    layers = [layer.id for layer in earlier.graph.layers]
    if layers != [layer.id for layer in later.graph.layers]:
        raise InputError("the two profiles have different layers: compare profiles of one model at one grain")
    others = {_key(profile, table): table for profile in later.profiles for table in profile.tables}
    made = tuple(
        _agreement(profile.device_type, layers, table, others[_key(profile, table)], num_stages)
        for profile in earlier.profiles
        for table in profile.tables
        if _key(profile, table) in others
    )
    if not made:
        raise InputError("the two profiles share no device type and microbatch size: measure both at the same sizes")
    return made


def _key(profile: Profile, table: CostTable) -> tuple[str, int, int, int | None]:
    return profile.device_type, table.microbatch_size, table.tensor, table.sequence_length


def _agreement(
    device_type: str, layers: Sequence[str], earlier: CostTable, later: CostTable, num_stages: int
) -> Agreement:
    shared = [layer for layer in layers if layer in earlier.layers and layer in later.layers]
    if not shared:
        raise InputError(f"no layer has costs in both profiles at microbatch size {earlier.microbatch_size}")
    one, two = earlier.measurement, later.measurement
    known = one is not None and two is not None and one.reference_s > 0
    return Agreement(
        device_type=device_type,
        microbatch_size=earlier.microbatch_size,
        stages=tuple(
            StageAgreement(part, sum(_seconds(earlier, i) for i in part), sum(_seconds(later, i) for i in part))
            for part in _stages(shared, [_seconds(earlier, layer) for layer in shared], num_stages)
        ),
        reference=two.reference_s / one.reference_s - 1 if known and one and two else None,
        drift=max((m.drift for m in (one, two) if m is not None), default=0.0),
    )


def _stages(layers: Sequence[str], seconds: Sequence[float], num_stages: int) -> list[tuple[str, ...]]:
    """Layers in a row whose middles fall into one of the equal parts of the whole time."""
    total, parts = sum(seconds), dict[int, list[str]]()
    for layer, end, own in zip(layers, accumulate(seconds), seconds, strict=True):
        part = min(num_stages - 1, int((end - own / 2) / total * num_stages)) if total else 0
        parts.setdefault(part, []).append(layer)
    return [tuple(part) for part in parts.values()]


def _seconds(table: CostTable, layer: str) -> float:
    cost = table.layers[layer]
    return cost.forward_s + cost.backward_s
