"""The search models: closed forms of a priced plan. `docs/cost-model.md` section 6.

    iteration_time = sum of passes + sum of transfers + (M - 1) * period + max of the ranks' tails
    throughput     = period / microbatch size: seconds per sample (training: with the tail's share in the period)

The models differ in the period. Only the simulator says what an iteration takes. `pipedream` is a paper's own model
(`planner.costs.stage_costs`): it has a period and no iteration.
"""

from __future__ import annotations

from planner.costs.model import PricedPlan, PricedTransfer
from planner.costs.parts import carries_gradient
from planner.costs.stage_costs.pipedream_plan import pipedream_period_s
from planner.errors import InputError
from planner.options import Objective, SearchModel
from planner.problem import Problem


def objective_s(problem: Problem, priced: PricedPlan, objective: Objective, model: SearchModel) -> float:
    """The value that a search in `model` minimises, for one plan. InputError where the model has no such value."""
    if model is SearchModel.PIPEDREAM:
        return _pipedream_s(problem, priced, objective)
    if objective is Objective.THROUGHPUT:
        return period_s(problem, priced, model, with_tail=problem.training is not None) / priced.plan.microbatch_size
    passes = sum(stage.pass_s for stage in priced.stages)
    moved = sum(sum(transfer_s(t, model)) for t in priced.transfers)
    steady = (priced.plan.num_microbatches - 1) * period_s(problem, priced, model)
    return passes + moved + steady + _tail_s(priced)


def _pipedream_s(problem: Problem, priced: PricedPlan, objective: Objective) -> float:
    if objective is not Objective.THROUGHPUT:
        raise InputError(
            f"the pipedream search model has no {objective}: use the objective throughput", pointer="/options/objective"
        )
    return pipedream_period_s(problem, priced) / priced.plan.microbatch_size


def _tail_s(priced: PricedPlan) -> float:
    """The longest tail of a rank: the longest sum of gradients of its stages, then one optimizer step for all."""
    summing, stepping = [0.0] * priced.shape.pipeline_size, [0.0] * priced.shape.pipeline_size
    for rank, stage in zip(priced.shape.ranks, priced.stages, strict=True):
        summing[rank] = max(summing[rank], stage.summing_s)
        stepping[rank] += float(stage.seconds.optimizer_s)
    return max(sums + step for sums, step in zip(summing, stepping, strict=True))


def period_s(problem: Problem, priced: PricedPlan, model: SearchModel, *, with_tail: bool = False) -> float:
    """Seconds between microbatches in the steady state: the busiest rank, in `overlapped` also the busiest link."""
    tail = 1.0 / priced.plan.num_microbatches if with_tail else 0.0
    loads = [stage.pass_s / stage.dealt + tail * stage.tail_s for stage in priced.stages]
    if model is SearchModel.BLOCKING:
        ends = blocking_ends_s(problem, priced)
        loads = [load + end for load, end in zip(loads, ends, strict=True)]
    loads = _per_rank(priced, loads)
    if model is SearchModel.OVERLAPPED:
        loads += [_occupied_s(priced, t) for t in priced.transfers]
    return max(loads)


def _per_rank(priced: PricedPlan, loads: list[float]) -> list[float]:
    """A device that runs several stages runs them one after the other."""
    ranks = priced.shape.ranks
    summed = [0.0] * priced.shape.pipeline_size
    for rank, load in zip(ranks, loads, strict=True):
        summed[rank] += load
    return summed


def transfer_s(transfer: PricedTransfer, model: SearchModel) -> tuple[float, float]:
    """Forward and backward seconds of one transfer. In `closed` the whole tensor crosses one link."""
    if model is SearchModel.CLOSED:
        return transfer.route.seconds(transfer.forward_bytes), transfer.route.seconds(transfer.backward_bytes)
    return transfer.forward_s(), transfer.backward_s()


def blocking_ends_s(problem: Problem, priced: PricedPlan) -> list[float]:
    """Transfer seconds per microbatch at each stage: every tensor once at its maker and once at each reader.

    A CPU stage pays none. A tensor with several reading stages costs its maker the slowest of the sends; latency is
    paid once per message.
    """
    ends = [0.0] * len(priced.stages)
    made: dict[tuple[int, int], float] = {}
    for transfer in priced.transfers:
        share = _dealt(priced, transfer)
        ends[transfer.target] += (transfer.forward_s() + transfer.backward_s()) / share
        messages = bool(transfer.forward_bytes) + bool(transfer.backward_bytes)
        ends[transfer.source] += messages * transfer.route.latency_s / share
        for tensor in transfer.tensors:
            key = (transfer.source, tensor)
            made[key] = max(made.get(key, 0.0), _wire_s(problem, priced, transfer, tensor) / share)
    for (source, _), seconds in made.items():
        ends[source] += seconds
    return [0.0 if stage.is_cpu else end for stage, end in zip(priced.stages, ends, strict=True)]


def _wire_s(problem: Problem, priced: PricedPlan, transfer: PricedTransfer, tensor: int) -> float:
    """One tensor and its gradient over the transfer's route, without latency."""
    num_bytes = priced.plan.microbatch_size * problem.index.tensors[tensor].bytes_per_sample / transfer.share
    back = problem.training is not None and carries_gradient(problem.index, tensor)
    return num_bytes / transfer.route.bandwidth_bytes_per_s * (2 if back else 1)


def _occupied_s(priced: PricedPlan, transfer: PricedTransfer) -> float:
    """How long the busier direction of the pair's link is taken per microbatch (latency occupies nothing)."""
    busiest = max(transfer.forward_bytes, transfer.backward_bytes) / transfer.share
    return busiest / transfer.route.bandwidth_bytes_per_s / _dealt(priced, transfer)


def _dealt(priced: PricedPlan, transfer: PricedTransfer) -> int:
    """Pairs of replicas that transfer different microbatches at the same time."""
    return min(priced.stages[transfer.source].dealt, priced.stages[transfer.target].dealt)
