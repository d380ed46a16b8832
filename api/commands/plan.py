"""`pipeplan plan`: where to cut, how often to replicate, which devices, which schedule, and how good that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.fixing import fixed
from api.commands.options import (
    AUTO,
    FormatOption,
    JsonOption,
    MinibatchOption,
    ModelOption,
    OutputOption,
    SeedOption,
    count_or_auto,
    degree_or_auto,
    recomputation_or_auto,
    switch_or_auto,
)
from api.commands.problems import built_problem
from api.commands.sourcing import Reading
from api.commands.workload import GivenWorkload, Precision
from planner.errors import InputError, InternalError
from planner.options import Decision, Front, Objective, Replication, SearchModel, SearchOptions
from planner.workload import Communication, Recomputation, ReplicaMode
from profiles.model import Grain

if TYPE_CHECKING:
    from api.plan_file import PlanFile
    from planner.problem import Problem
    from planner.result import PlanResult

INFEASIBLE, LIMIT_REACHED = 3, 4
RUNTIME = "runtime"
COUNT = {"parser": count_or_auto, "metavar": "N|auto"}
RECOMPUTE = {"parser": recomputation_or_auto, "metavar": f"{'|'.join(Recomputation)}|auto"}
DEGREE = {"parser": degree_or_auto, "metavar": "N|auto"}
SWITCH = {"parser": switch_or_auto, "metavar": "on|off|auto"}


SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Catalogue model, profile, problem, config.json, module:factory, graph.txt, placement file, or -.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="C", help="local:2, 8xH100-80G-SXM, 2x8xA100-80G-SXM, or a .toml or .json file."),
]


def command(
    source: SourceArgument,
    cluster: ClusterOption = None,
    objective: Annotated[Objective, typer.Option("--objective", help="What is sought.")] = Objective.ITERATION_TIME,
    max_iteration_time_s: Annotated[
        float | None, typer.Option("--max-iteration-time-s", metavar="S", help="What min_devices must reach.")
    ] = None,
    front: Annotated[Front, typer.Option("--front", help="What pareto trades iteration time against.")] = Front.DEVICES,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", min=1, metavar="N", help="Samples per iteration, exactly.")
    ] = None,
    microbatch: Annotated[int | None, typer.Option("--microbatch", help="Samples per microbatch.", **COUNT)] = None,
    num_microbatches: Annotated[
        int | None, typer.Option("--num-microbatches", help="Microbatches per iteration.", **COUNT)
    ] = None,
    num_stages: Annotated[int | None, typer.Option("--num-stages", help="Pipeline stages.", **COUNT)] = None,
    schedule: Annotated[str, typer.Option("--schedule", metavar="NAME", help="See `catalogue schedules`.")] = AUTO,
    recompute: Annotated[
        Any, typer.Option("--recompute", help="What the backward pass computes again.", **RECOMPUTE)
    ] = None,
    cost_model: Annotated[
        SearchModel | None,
        typer.Option("--cost-model", help="Closed form to search (default: by communication)."),
    ] = None,
    communication: Annotated[
        Communication | None, typer.Option("--communication", help="How transfers meet compute.")
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", metavar="NAME", help="See `catalogue optimizers`.")] = AUTO,
    tensor: Annotated[Any, typer.Option("--tensor", help="Tensor degree.", **DEGREE)] = None,
    zero: Annotated[Any, typer.Option("--zero", help="ZeRO stage of the replicas.", **DEGREE)] = None,
    context: Annotated[Any, typer.Option("--context", help="Devices that share a sample's tokens.", **DEGREE)] = None,
    expert: Annotated[Any, typer.Option("--expert", help="Groups that share routed experts.", **DEGREE)] = None,
    reshard: Annotated[
        Any, typer.Option("--reshard", help="Whether ZeRO 3 gathers weights for every pass.", **SWITCH)
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option("--sequence-parallel/--no-sequence-parallel", help="Divide what lies between a group's products."),
    ] = None,
    offload_optimizer: Annotated[
        bool | None,
        typer.Option("--offload-optimizer/--no-offload-optimizer", help="Optimizer state in the host's memory."),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", metavar="ENGINE", help="Search only what this engine can run.")
    ] = "",
    compare_with: Annotated[
        str | None,
        typer.Option("--compare-with", metavar="FILE", help="A plan or an engine's layout, priced beside it."),
    ] = None,
    cut: Annotated[
        list[str] | None, typer.Option("--cut", metavar="LAYER", help="A stage starts here (repeat; all cuts).")
    ] = None,
    fix: Annotated[
        str, typer.Option("--fix", metavar="K=V,...", help="Pin decisions: tensor=8,stages=16,microbatch=2,...")
    ] = "",
    replication: Annotated[
        Replication, typer.Option("--replication", help="Replication degrees that are searched.")
    ] = Replication.ANY,
    replica_mode: Annotated[
        ReplicaMode, typer.Option("--replica-mode", help="How replicas share the work.")
    ] = ReplicaMode.SPLIT,
    precision: Annotated[
        Precision | None, typer.Option("--precision", help="Bytes per parameter (default: by the source's dtype).")
    ] = None,
    weight_bytes: Annotated[
        float | None, typer.Option("--weight-bytes", min=0, metavar="X", help="Per parameter, over --precision.")
    ] = None,
    gradient_bytes: Annotated[
        float | None, typer.Option("--gradient-bytes", min=0, metavar="X", help="Per parameter, over --precision.")
    ] = None,
    optimizer_bytes: Annotated[
        float | None, typer.Option("--optimizer-bytes", min=0, metavar="X", help="Per parameter, over --precision.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, metavar="N", help="Tokens per sample.")
    ] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Forward passes only.")] = False,
    minibatch: MinibatchOption = 1,
    model: ModelOption = None,
    device_type: Annotated[
        str | None, typer.Option("--device-type", metavar="TYPE", help="Device of costs whose file names none.")
    ] = None,
    grain: Annotated[Grain, typer.Option("--grain", help="Cut into repeated blocks or single modules.")] = Grain.BLOCK,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit-s", metavar="S", help="Limit of the whole search.")
    ] = 60.0,
    seed: SeedOption = 0,
    format: FormatOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Find the best plan for a model on a cluster, with a proof of how good it is.

    Exit status: 0 plan found, 2 bad input, 3 proven infeasible, 4 limit reached without a plan.

    The file of -o is what `estimate`, `simulate`, `export` and `run` open.
    """
    from api.terminal.files import check_writable
    from planner.portfolio import INTERRUPTED

    check_writable(output)
    decided = {"tensor": tensor, "context": context, "expert": expert}
    decided |= {"zero": zero, "reshard": reshard, "recomputation": recompute}
    given = GivenWorkload(
        global_batch_size=global_batch,
        microbatch_size=microbatch,
        num_microbatches=num_microbatches,
        sequence_length=sequence_length,
        weight_bytes_per_parameter=weight_bytes,
        gradient_bytes_per_parameter=gradient_bytes,
        optimizer_bytes_per_parameter=optimizer_bytes,
        communication=communication,
        sequence_parallel=sequence_parallel,
        offload_optimizer=offload_optimizer,
        **{name: None if word == AUTO else word for name, word in decided.items()},
        auto=tuple(decision for decision in Decision if decided[decision.value] == AUTO),
        inference=inference,
        precision=precision,
    )
    how = Reading(
        format=format,
        minibatch_size=minibatch,
        device_type=device_type,
        model=model,
        sequence_length=sequence_length,
        grain=grain,
        seed=seed,
    )
    options = SearchOptions(
        objective=objective,
        search_model=cost_model,
        optimizer=optimizer,
        schedule=schedule,
        num_stages=num_stages,
        replication=replication,
        replica_mode=replica_mode,
        target=target,
        cuts=tuple(cut or ()),
        max_iteration_time_s=max_iteration_time_s,
        front=front,
        time_limit_s=time_limit_s,
        seed=seed,
    )
    given, options = fixed(fix, given, options)
    found = _planned(source, cluster, given, how, options, compare_with)
    _tell(found, output, json)
    if INTERRUPTED in found.result.report.notes:
        raise KeyboardInterrupt
    _leave(found.result)


def _planned(
    source: str,
    cluster: str | None,
    given: GivenWorkload,
    how: Reading,
    options: SearchOptions,
    compare_with: str | None,
) -> PlanFile:
    from api.commands.comparing import baseline_plan, compared
    from api.plan_file import PlanFile
    from api.terminal.progress import spinner
    from planner.service import answer

    built = built_problem(source, cluster, given, how, any_tensor=compare_with is not None)
    problem, options = built.problem, _for_the_runtime(built.problem, replace(options, searched=built.searched))
    theirs = None if compare_with is None else baseline_plan(compare_with, problem)
    with spinner(f"planning {len(problem.graph.layers)} layers on {len(problem.cluster.devices)} devices"):
        found = answer(problem, options)
    result = found.result if theirs is None else compared(found.result, theirs, problem, str(compare_with))
    return PlanFile(result=result, problem=found.problem, source=built.recipe)


def _for_the_runtime(problem: Problem, options: SearchOptions) -> SearchOptions:
    """On this machine's cores plans are to be run: the runtime is the target unless another one is named, or it cannot
    express what is asked for."""
    from api.commands.pricing import is_local
    from planner.targets import check_target

    aimed = replace(options, target=RUNTIME)
    if options.target or not is_local(problem.cluster) or problem.training is None:
        return options
    try:
        check_target(problem, aimed)
    except InputError:
        return options
    return aimed


def _tell(found: PlanFile, output: Path | None, json: bool) -> None:
    """The file first, so that it is whole before anything is said about it."""
    from api.terminal.console import output as console
    from api.terminal.files import write_text
    from api.terminal.result_view import show_result
    from planner import codec

    if output is not None:
        write_text(output, codec.dumps(found))
    if json:
        typer.echo(codec.dumps(found.result), nl=False)
    else:
        show_result(found.result, found.problem, console())


def _leave(result: PlanResult) -> None:
    """End with the exit status of the result."""
    from planner.result import Status

    match result.report.status:
        case Status.INFEASIBLE:
            raise typer.Exit(INFEASIBLE)
        case Status.LIMIT if result.plan is None:
            raise typer.Exit(LIMIT_REACHED)
        case Status.ERROR:
            raise InternalError("; ".join(result.report.notes) or "the search failed without a word")
