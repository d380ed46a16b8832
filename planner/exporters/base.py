"""The protocol of exporters: a plan written for an engine or a viewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.plan import Plan
from planner.problem import Problem
from planner.registry import Registry
from planner.timeline import Estimate, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportContext:
    """What an exporter may read. `estimate` and `timeline` are None where the plan was not simulated, `measured` where
    it was not run."""

    problem: Problem
    plan: Plan
    estimate: Estimate | None = None
    timeline: Timeline | None = None
    measured: Timeline | None = None


class Exporter(Protocol):
    """One target format. `name` is how requests call it; `media_type` and `file_suffix` describe its text."""

    name: str
    media_type: str
    file_suffix: str

    def export(self, context: ExportContext) -> str:
        """The plan as text; ExportError naming the stage when the target cannot express it."""


EXPORTERS: Registry[Exporter] = Registry("exporter", "planner.exporters")
