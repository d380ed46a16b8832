"""Placements: which rank runs which stage. A rank is the devices that run the same stages.

With S stages, P ranks (the pipeline size) and v = S / P virtual stages per rank:

    LINE   stage s on rank s, every rank one stage
    LOOP   stage s on rank s mod P                               (Narayanan et al. 2021)
    V      stage s on rank s, or 2P - 1 - s from s = P on; v = 2 (Qi et al. 2024)
    ANY    as the plan says
"""

from __future__ import annotations

from enum import StrEnum


class Placement(StrEnum):
    """Where a schedule wants the stages."""

    LINE = "line"
    LOOP = "loop"
    V = "v"
    ANY = "any"


def rank_at(placement: Placement, stage: int, pipeline_size: int) -> int:
    """The rank of `stage` under LINE, LOOP or V."""
    if placement is Placement.LINE:
        return stage
    if placement is Placement.V and stage >= pipeline_size:
        return 2 * pipeline_size - 1 - stage
    return stage % pipeline_size
