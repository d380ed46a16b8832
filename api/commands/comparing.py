"""`--compare-with`: the plan that is run today, priced beside the one that was found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from api.terminal.files import read_text
from planner.errors import InputError
from planner.plan import Plan
from planner.problem import Problem

if TYPE_CHECKING:
    from planner.result import PlanResult


def baseline_plan(name: str, problem: Problem, format: str | None = None) -> Plan:
    """The plan in a document of ours or in an engine's file, as a plan of this problem.

    InputError names the file, and what in it does not fit the problem; too much memory is no fault here.
    """
    from planner.verify import verify

    text = read_text(name)
    try:
        plan = _read(text, problem, format)
        fatal = [violation.message for violation in verify(plan, problem) if violation.code != "memory"]
    except InputError as fault:
        raise InputError(f"{name!r}: {fault}", pointer=fault.pointer) from None
    if fatal:
        raise InputError(f"{name!r} is no plan of this problem: {'; '.join(fatal[:3])}")
    return plan


def compared(result: PlanResult, plan: Plan, problem: Problem, name: str) -> PlanResult:
    """The result with the other plan beside it."""
    from planner.result import Baseline
    from planner.service import estimate
    from planner.verify import verify

    price = estimate(problem, plan)
    ours = None if result.estimate is None else result.estimate.iteration_time_s
    faults = tuple(violation.message for violation in verify(plan, problem))
    ratio = price.iteration_time_s / ours if ours else None
    return replace(result, baseline=Baseline(name=name, plan=plan, estimate=price, ratio=ratio, faults=faults))


def _read(text: str, problem: Problem, format: str | None) -> Plan:
    """A document of ours is known by its header or fields; fingerprints of other problems do not matter here."""
    from profiles.layouts import read_plan

    if format is not None or not _is_ours(text):
        return read_plan(text, problem, format=format)
    from api.plan_file import open_plan
    from planner import codec

    return replace(open_plan(text, codec.dumps(problem)).plan, problem_fingerprint="")


def _is_ours(text: str) -> bool:
    from api.plan_file import KINDS

    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(values, dict):
        return False
    return values["document"] in KINDS if isinstance(values.get("document"), str) else "num_microbatches" in values
