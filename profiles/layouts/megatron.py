"""Layouts in arguments of Megatron-LM: a launch script, or what the exporter `megatron` wrote.

`--pipeline-model-parallel-layout`, or the default split with `--decoder-{first,last}-pipeline-num-layers`,
`--account-for-{embedding,loss}-in-pipeline-split` and virtual stages. Data parallel size: WORLD_SIZE where the script
assigns it, else all devices of the cluster.

Read as something near: `--recompute-num-layers` of the method uniform (we recompute each layer from its own input).
Refused: the method block for a part of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.blocks import blocks_of
from planner.errors import InputError
from planner.exporters._megatron_layout import layout_faults, read_layout
from planner.exporters.megatron import WORLD_SIZE
from planner.plan import Plan
from planner.problem import Problem
from planner.workload import Recomputation
from profiles.layouts._arguments import Arguments, number
from profiles.layouts._blocks import check_count, counted, stages_of
from profiles.layouts.base import LAYOUTS, Layout, plan_of

LAYOUT = "pipeline-model-parallel-layout"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
VIRTUAL, PER_VIRTUAL = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
EMBEDDING, LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
MARKS = ("--pipeline-model-parallel", "--pipeline_model_parallel", "--num-layers", "--num_layers")


@LAYOUTS.register
class Megatron:
    """Reads arguments wherever they stand in a text."""

    name = "megatron"

    def sniff(self, text: str) -> bool:
        """Some argument about the pipeline or the layers."""
        return any(mark in text for mark in MARKS)

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan of all devices that the arguments use."""
        given = Arguments(text)
        size = given.count("pipeline-model-parallel-size") or 1
        blocks = len(blocks_of(problem.index).blocks)
        if (said := given.count("num-layers")) is not None:
            check_count(said, blocks, "decoder layers")
        chunks = _chunks(given, size, blocks)
        tensor, context = given.count("tensor-model-parallel-size") or 1, given.count("context-parallel-size") or 1
        layout = Layout(
            stages=stages_of(chunks, problem.index),
            pipeline_size=size,
            schedule="interleaved_1f1b" if len(chunks) > size else "1f1b",
            replicas=_replicas(given, size * tensor * context),
            tensor=tensor,
            context=context,
            expert=given.count("expert-model-parallel-size") or 1,
            recomputation=_recomputation(given, chunks),
            zero=int("use-distributed-optimizer" in given),
            microbatch_size=given.count("micro-batch-size"),
            global_batch_size=given.count("global-batch-size"),
        )
        return plan_of(layout, problem)


def _chunks(given: Arguments, size: int, blocks: int) -> Sequence[str]:
    """The letters of every chunk."""
    text = given.text(LAYOUT)
    if not 1 <= size <= blocks + len("EL"):
        raise InputError(f"--pipeline-model-parallel-size is {size}: it must be between 1 and {blocks + len('EL')}")
    if text is None:
        return counted(_default_counts(given, size, blocks))
    chunks = read_layout(text)
    virtual = max(1, len(chunks) // size)
    mtp = given.count("mtp-num-layers")
    predictions = "".join(chunks).count("m") if mtp is None else mtp
    faults = layout_faults(chunks, pipeline_size=size, virtual=virtual, num_layers=blocks, mtp=predictions)
    if faults:
        raise InputError(f"the layout {text[:80]!r} is not legal: {'; '.join(faults)}")
    return chunks


def _default_counts(given: Arguments, size: int, blocks: int) -> list[int]:
    """Decoder layers per chunk without a layout."""
    first, last = given.count(FIRST), given.count(LAST)
    virtual = _virtual(given, size, blocks)
    if first is None and last is None:
        at_start, at_end = int(EMBEDDING in given), int(LOSS in given)
        counts = [_share(blocks + at_start + at_end, size * virtual)] * (size * virtual)
        counts[0] -= at_start
        counts[-1] -= at_end
        return counts
    if virtual > 1:
        raise InputError(f"--{FIRST} and --{LAST} with virtual stages are not read: write a layout")
    ends = [count for count in (first, last) if count is not None]
    inner = size - len(ends)
    middle = [_share(blocks - sum(ends), inner)] * inner if inner else []
    return [*([] if first is None else [first]), *middle, *([] if last is None else [last])]


def _virtual(given: Arguments, size: int, blocks: int) -> int:
    """Virtual stages per pipeline rank."""
    layers = given.count(PER_VIRTUAL)
    return _share(_share(blocks, size), layers) if layers else given.count(VIRTUAL) or 1


def _share(blocks: int, ranks: int) -> int:
    if blocks < 0 or ranks < 1 or blocks % ranks:
        raise InputError(f"{blocks} layers cannot be shared evenly by {ranks}: change their number or write a layout")
    return blocks // ranks


def _replicas(given: Arguments, model_size: int) -> int | None:
    """The data parallel size that the number of processes leaves; None where the script does not say it."""
    text = given.variables.get(WORLD_SIZE, "")
    if not text.isdecimal():
        return None
    processes = number(text, WORLD_SIZE)
    if processes < 1 or processes % model_size:
        raise InputError(
            f"{WORLD_SIZE} is {processes}: it must be a multiple of {model_size} (tensor x pipeline x context)"
        )
    return processes // model_size


def _recomputation(given: Arguments, chunks: Sequence[str]) -> Recomputation:
    granularity = given.text("recompute-granularity")
    if granularity is None:
        return Recomputation.SELECTIVE if "recompute-activations" in given else Recomputation.NONE
    if granularity not in ("selective", "full"):
        raise InputError(f"--recompute-granularity is {granularity[:64]!r}: it must be selective or full")
    if granularity == "full" and given.text("recompute-method") == "block":
        layers, most = given.count("recompute-num-layers") or 1, max(chunk.count("t") for chunk in chunks)
        if layers < most:
            raise InputError(
                f"--recompute-method block with {layers} of {most} layers recomputes a part of a stage, which no plan "
                "says: use the method uniform"
            )
    return Recomputation(granularity)
