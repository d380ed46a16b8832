"""What a worker does with a request: check it, plan, estimate, or export. Each is a call into the library.

The library is imported by the task that needs it, so that the service itself stays light.
"""

from __future__ import annotations

from typing import Any

from api.http.answers import CheckedRequest, EstimateAnswer
from api.http.building import build_problem
from api.http.limits import Limits
from api.http.orders import Order, Outcome, Task
from api.http.problems import json_bytes
from api.http.requests import read_estimate_request, read_plan_request
from planner import codec
from planner.errors import InputError
from planner.plan import Plan
from planner.problem import Problem
from planner.result import PlanResult
from planner.timeline import Estimate


def perform(order: Order, parts: tuple[bytes, ...]) -> Outcome:
    """The answer to an order; PlannerError for what is wrong with it."""
    match order.task:
        case Task.CHECK:
            return _document(check(parts[0], order.limits))
        case Task.PLAN:
            return _document(plan(parts[0], order.limits))
        case Task.ESTIMATE:
            return _document(estimate(parts[0], order.limits))
        case Task.EXPORT:
            return export(parts[0], parts[1], order.limits, order.format)


def check(body: bytes, limits: Limits) -> CheckedRequest:
    """Everything that can be said about a planning request without solving it."""
    from planner.service import check_options

    request = read_plan_request(body, limits)
    problem = build_problem(request)
    check_options(problem, request.options)
    return CheckedRequest(
        model=problem.graph.name,
        num_layers=len(problem.graph.layers),
        num_devices=len(problem.cluster.devices),
        time_limit_s=request.options.time_limit_s,
    )


def plan(body: bytes, limits: Limits) -> PlanResult:
    """The result of the search that a planning request asks for."""
    from planner.service import answer

    request = read_plan_request(body, limits)
    return answer(build_problem(request), request.options).result


def estimate(body: bytes, limits: Limits) -> EstimateAnswer:
    """The price of the plan in the request, and what is wrong with it."""
    from planner.verify import verify

    request = read_estimate_request(body, limits)
    problem = build_problem(request)
    violations = verify(request.plan, problem)
    return EstimateAnswer(estimate=_price(problem, request.plan, valid=not violations), violations=violations)


def export(body: bytes, result: bytes, limits: Limits, format: str) -> Outcome:
    """The stored result of a planning request, written for an engine or a viewer."""
    from planner.exporters import EXPORTERS, ExportContext
    from planner.goals.base import changed_problem
    from planner.simulation.estimate import simulate_plan

    answered = codec.loads(PlanResult, result)
    found = answered.plan
    if found is None:
        raise InputError("this result has no plan (it is infeasible, or a limit was reached): nothing to export")
    exporter = EXPORTERS[format]
    problem = changed_problem(build_problem(read_plan_request(body, limits)), answered)
    timeline, price = simulate_plan(problem, found)
    context = ExportContext(problem=problem, plan=found, estimate=price, timeline=timeline)
    return Outcome(status=200, body=exporter.export(context).encode(), media_type=exporter.media_type)


def _price(problem: Problem, plan: Plan, *, valid: bool) -> Estimate | None:
    """The estimate of a plan; None for an invalid one that cannot even be simulated."""
    from planner.service import estimate as simulated

    try:
        return simulated(problem, plan)
    except InputError:
        if valid:
            raise
        return None


def _document(noun: Any) -> Outcome:
    return Outcome(status=200, body=json_bytes(codec.encode(noun)))
