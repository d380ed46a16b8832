"""Layouts in torchtitan configurations (TOML): module lists per model part, or its own even split.

Without `module_fqns_per_model_part` torchtitan deals layers evenly, the first and the last stage some fewer
(`pipeline_parallel_{first,last}_stage_less_layers`, 1 each). Its selective checkpointing keeps the results of chosen
operators; it is read as `selective`, which is near and not the same.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from math import ceil
from typing import Any

from planner.blocks import blocks_of
from planner.errors import InputError
from planner.exporters.torch_pipelining import TORCH_SCHEDULES
from planner.exporters.torchtitan import BLOCK, FIRST
from planner.plan import Plan
from planner.problem import Problem
from planner.schedules import SCHEDULES, Placement
from planner.workload import Recomputation
from profiles.layouts._blocks import counted, stages_of
from profiles.layouts.base import LAYOUTS, MAX_STAGES, Layout, plan_of

HEADS = ("lm_head", "output")
NORM = "norm"
OUR_SCHEDULES = {theirs.lower(): ours for ours, theirs in TORCH_SCHEDULES.items()}
_SECTION = re.compile(r"^\s*\[parallelism\]", re.MULTILINE)


@LAYOUTS.register
class TorchTitan:
    """Reads the sections parallelism, training and activation_checkpoint."""

    name = "torchtitan"

    def sniff(self, text: str) -> bool:
        """A section `parallelism`."""
        return _SECTION.search(text) is not None

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan of the devices that the degrees take."""
        values = sections(text)
        parallel = values.section("parallelism")
        size = parallel.count("pipeline_parallel_degree", 1)
        schedule = _schedule(parallel.text("pipeline_parallel_schedule", "1F1B"))
        letters = _letters(parallel, size, schedule, len(blocks_of(problem.index).blocks))
        replicate, shard = parallel.count("data_parallel_replicate_degree", 1), _sharding(parallel)
        if replicate > 1 and (shard is None or shard > 1):
            raise InputError("sharding within groups of replicas (HSDP) is in no plan: use one of the two degrees")
        micro = parallel.count("pipeline_parallel_microbatch_size", 1)
        layout = Layout(
            stages=stages_of(letters, problem.index),
            pipeline_size=size,
            schedule=schedule,
            replicas=replicate if shard == 1 else shard,
            tensor=parallel.count("tensor_parallel_degree", 1),
            context=parallel.count("context_parallel_degree", 1),
            expert=parallel.count("expert_parallel_degree", 1),
            recomputation=_recomputation(values.section("activation_checkpoint").text("mode", "selective")),
            zero=0 if shard == 1 else _zero(size, parallel.text("fsdp_reshard_after_forward", "default")),
            microbatch_size=micro,
            global_batch_size=values.section("training").positive("global_batch_size"),
        )
        return plan_of(layout, problem)


class Section:
    """The values of one section of a configuration, with checks that name the field."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        self._name, self._values = name, values

    def get(self, field: str) -> Any:
        """The value as it stands; None where it is missing."""
        return self._values.get(field)

    def text(self, field: str, otherwise: str) -> str:
        """A text."""
        value = self._values.get(field, otherwise)
        if not isinstance(value, str):
            raise self.fault(field, "a text")
        return value

    def count(self, field: str, otherwise: int) -> int:
        """A whole number of at least 1."""
        value = self._values.get(field, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_STAGES:
            raise self.fault(field, f"a whole number between 1 and {MAX_STAGES}")
        return value

    def positive(self, field: str) -> int | None:
        """The number where it is given and above 0: torchtitan's -1 leaves it open."""
        value = self._values.get(field)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def fault(self, field: str, wanted: str) -> InputError:
        """What the field must be."""
        shown = str(self._values.get(field))[:64]
        return InputError(f"{self._name}.{field} is {shown!r}: it must be {wanted}", pointer=f"/{self._name}/{field}")


class Sections:
    """A parsed configuration."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def section(self, name: str) -> Section:
        """A section; an empty one where it is missing."""
        found = self._values.get(name, {})
        if not isinstance(found, dict):
            raise InputError(f"{name} is no section of the configuration: write [{name}]", pointer=f"/{name}")
        return Section(name, found)


def sections(text: str) -> Sections:
    """The configuration in a text; InputError where it is no TOML."""
    try:
        return Sections(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as fault:
        raise InputError(f"the configuration is no TOML: {fault}") from None


def even_counts(stages: int, layers: int, first_less: int, last_less: int) -> list[int]:
    """Layers per stage as torchtitan deals them; the earlier stages get what is left over."""
    if stages == 1:
        return [layers]
    each, more = divmod(layers + first_less + last_less, stages)
    counts = [each + (number < more) for number in range(stages)]
    counts[0] -= first_less
    counts[-1] -= last_less
    if min(counts) < 0:
        raise InputError(f"{layers} layers are too few for {stages} stages: use fewer stages")
    return counts


def _schedule(name: str) -> str:
    found = OUR_SCHEDULES.get(name.lower())
    if found is None:
        known = ", ".join(TORCH_SCHEDULES.values())
        raise InputError(
            f"parallelism.pipeline_parallel_schedule is {name[:64]!r}: of torch's schedules we read {known}"
        )
    return found


def _letters(parallel: Section, size: int, schedule: str, blocks: int) -> Sequence[str]:
    """The letters of every model part."""
    listed = parallel.get("module_fqns_per_model_part")
    if listed is not None:
        return _listed(parallel, listed)
    first = parallel.count("pipeline_parallel_first_stage_less_layers", 1)
    last = parallel.count("pipeline_parallel_last_stage_less_layers", 1)
    stages = size * (1 if SCHEDULES[schedule].placement is Placement.LINE else 2)
    if (per_stage := parallel.positive("pipeline_parallel_layers_per_stage")) is not None:
        stages = ceil((blocks + first + last) / per_stage)
    return counted(even_counts(stages, blocks, first, last))


def _listed(parallel: Section, listed: Any) -> list[str]:
    """Module names to letters; blocks must come in order."""
    field = "module_fqns_per_model_part"
    if not isinstance(listed, list) or not all(isinstance(part, list) for part in listed):
        raise parallel.fault(field, "a list of lists of module names")
    names = [name for part in listed for name in part]
    blocks = [name for name in names if isinstance(name, str) and name.startswith(BLOCK)]
    if blocks != [f"{BLOCK}{number}" for number in range(len(blocks))]:
        raise parallel.fault(field, f"all blocks {BLOCK}0, {BLOCK}1, ... in this order")
    return ["".join(_letter(name, parallel) for name in part) for part in listed]


def _letter(name: Any, parallel: Section) -> str:
    known = {FIRST: "E", NORM: "", **dict.fromkeys(HEADS, "L")}
    if isinstance(name, str) and name.startswith(BLOCK):
        return "t"
    if not isinstance(name, str) or name not in known:
        raise parallel.fault("module_fqns_per_model_part", f"names of {FIRST}, {BLOCK}N, {NORM} and {HEADS[0]}")
    return known[name]


def _sharding(parallel: Section) -> int | None:
    """The sharding degree; None for all devices that are left."""
    value = parallel.get("data_parallel_shard_degree")
    return None if value in (None, -1) else parallel.count("data_parallel_shard_degree", 1)


def _recomputation(mode: str) -> Recomputation:
    try:
        return Recomputation(mode)
    except ValueError:
        raise InputError(
            f"activation_checkpoint.mode is {mode[:64]!r}: we read {', '.join(Recomputation)}",
            pointer="/activation_checkpoint/mode",
        ) from None


def _zero(pipeline_size: int, reshards: str) -> int:
    """FSDP as a ZeRO stage: in a pipeline torch keeps gathered weights and whole gradients to the last microbatch."""
    return 1 if pipeline_size > 1 or reshards == "never" else 3
