"""`PlanFile`: what `pipeplan plan -o` writes, and how commands open a plan.

A plan names layers and devices of its problem, so the file holds both, and the recipe of the model where there is one:
`estimate`, `simulate`, `export` and `run` then need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from planner import codec
from planner.errors import InputError
from planner.graph import NOUN_CONFIG
from planner.plan import Plan
from planner.problem import Problem
from planner.result import PlanResult
from profiles.model import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A planning result with the problem that it answers. `source` is None where the model cannot be built again."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    result: PlanResult
    problem: Problem
    source: ModelSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPlan:
    """A plan with its problem, from whichever document."""

    plan: Plan
    problem: Problem
    source: ModelSource | None = None


KINDS: dict[str, type] = {codec.kind_of(noun): noun for noun in (PlanFile, PlanResult, Plan)}


def open_plan(text: str, problem_text: str | None = None) -> OpenedPlan:
    """The plan in a `plan_file`, `plan_result` or `plan` document; the latter two need the text of their problem.

    InputError for other documents, for a result without a plan, and for a problem that is missing.
    """
    values = codec.parse(text)
    found: Any = codec.decode(KINDS[_kind(values)], values)
    if isinstance(found, PlanFile) and problem_text is None:
        return OpenedPlan(plan=_plan_of(found.result), problem=found.problem, source=found.source)
    if problem_text is None:
        raise InputError("this document holds no problem: give it with --problem, or use the file of `plan -o`")
    problem = codec.loads(Problem, problem_text)
    source = found.source if isinstance(found, PlanFile) else None
    return OpenedPlan(plan=_plan_of(found), problem=problem, source=source)


def _plan_of(found: Any) -> Plan:
    if isinstance(found, Plan):
        return found
    result = found.result if isinstance(found, PlanFile) else found
    assert isinstance(result, PlanResult)
    if result.plan is None:
        raise InputError(
            f"this result holds no plan (its status is {result.report.status}): plan again with other limits"
        )
    return result.plan


def _guess(values: dict[str, Any]) -> str:
    """The kind of a document without a header, by the fields that only this one has."""
    if "problem" in values:
        return codec.kind_of(PlanFile)
    if "workload" in values and "stages" not in values:
        return codec.kind_of(Problem)
    return codec.kind_of(PlanResult if "report" in values else Plan)


def _kind(values: Any) -> str:
    """The document's header; without one, the field that only one of them has."""
    if not isinstance(values, dict):
        raise InputError("a plan document is a JSON object")
    kind = values.get("document", _guess(values))
    if kind == codec.kind_of(Problem):
        raise InputError(
            "this is a problem and holds no plan: plan it first (pipeplan plan FILE -o PLAN), then give PLAN",
            pointer="/document",
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"this is a {str(kind)[:64]!r} document: give one of {', '.join(KINDS)}", pointer="/document")
    return kind
