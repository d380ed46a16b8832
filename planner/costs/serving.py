"""Serving memory: how many tokens' keys and values fit beside the weights of a plan."""

from __future__ import annotations

from planner.costs.model import CostModel, PricedStage
from planner.errors import InputError
from planner.plan import Plan
from planner.problem import Problem


def max_kv_tokens(problem: Problem, plan: Plan, costs: CostModel | None = None) -> int:
    """Tokens whose keys and values the plan can hold at once, over all requests that are being served.

    The minimum over groups of devices of what is free on the fullest device divided by the bytes per token of all
    its stages, times the replicas: a request stays on one replica of each stage. Keys and values are divided by the
    tensor and the context degree. InputError for training, where no layer keeps keys and values, and for a plan that
    does not fit even without them (0 tokens are an answer).
    """
    if problem.training is not None:
        raise InputError(
            "max_kv_tokens is for serving, and this workload trains: give an inference workload", pointer="/workload"
        )
    priced = (costs or CostModel(problem)).price(plan)
    tokens = [
        len(replicas) * min(_tokens_on(problem, stages, group) for group in replicas)
        for replicas, stages in _by_replicas(priced.stages).items()
        if any(_kv_bytes(problem, stage) for stage in stages)
    ]
    if not tokens:
        raise InputError(
            "no layer of the model has kv_bytes_per_token: nothing limits the tokens that are served", pointer="/graph"
        )
    return min(tokens)


def _by_replicas(stages: tuple[PricedStage, ...]) -> dict[tuple[tuple[str, ...], ...], list[PricedStage]]:
    """Stages that share their devices (virtual stages) share the memory."""
    found: dict[tuple[tuple[str, ...], ...], list[PricedStage]] = {}
    for stage in stages:
        found.setdefault(stage.stage.replicas, []).append(stage)
    return found


def _tokens_on(problem: Problem, stages: list[PricedStage], group: tuple[str, ...]) -> int:
    """Tokens on one replica: its smallest device decides.

    A priced stage's memory is that of its device with all stages.
    """
    used = max(stage.memory.total_bytes for stage in stages)
    free = min(problem.memory_limits[device] for device in group) - used
    if free < 0:
        raise InputError(
            f"the stage that begins with {stages[0].stage.layers[0]!r} needs {used:,} bytes without any keys and "
            f"values, its devices have {free + used:,}: use more stages or more memory",
            pointer="/plan/stages",
        )
    divided = [(_kv_bytes(problem, stage), stage.stage.tensor * stage.stage.context) for stage in stages]
    per_token = sum(-(-size // share) for size, share in divided)
    return free // per_token


def _kv_bytes(problem: Problem, stage: PricedStage) -> int:
    return sum(problem.index.layers[i].kv_bytes_per_token for i in stage.layers)
