"""Layouts in shell text for vLLM: `VLLM_PP_LAYER_PARTITION` and the degrees of `vllm serve`."""

from __future__ import annotations

from planner.errors import InputError
from planner.exporters.vllm import PARTITION
from planner.plan import Plan
from planner.problem import Problem
from profiles.layouts._arguments import Arguments, number
from profiles.layouts._blocks import counted, stages_of
from profiles.layouts.base import LAYOUTS, Layout, plan_of


@LAYOUTS.register
class VLLM:
    """Reads the partition; degrees that are not given are 1."""

    name = "vllm"

    def sniff(self, text: str) -> bool:
        """The variable's name."""
        return PARTITION in text

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan; every stage has a decoder layer."""
        given = Arguments(text)
        partition = given.variables.get(PARTITION)
        if partition is None:
            raise InputError(f"{PARTITION} is not assigned: write {PARTITION}=24,40")
        counts = [number(count.strip(), PARTITION) for count in partition.split(",")]
        size = given.count("pipeline-parallel-size") or len(counts)
        if size != len(counts):
            raise InputError(f"{PARTITION} has {len(counts)} stages, --pipeline-parallel-size is {size}: give as many")
        layout = Layout(
            stages=stages_of(counted(counts), problem.index),
            pipeline_size=size,
            replicas=given.count("data-parallel-size") or 1,
            tensor=given.count("tensor-parallel-size") or 1,
        )
        return plan_of(layout, problem)
