"""The workload that the options of `pipeplan plan` ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from planner.errors import InputError
from planner.options import BY_WORD, Decision
from planner.workload import Communication, Inference, Recomputation, Training


class Precision(StrEnum):
    """Presets of bytes per parameter."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterBytes:
    """Bytes per parameter of weights, gradients and optimizer state."""

    weight_bytes_per_parameter: float
    gradient_bytes_per_parameter: float
    optimizer_bytes_per_parameter: float


PARAMETER_BYTES = {
    Precision.FP32: ParameterBytes(
        weight_bytes_per_parameter=4, gradient_bytes_per_parameter=4, optimizer_bytes_per_parameter=8
    ),
    Precision.BF16: ParameterBytes(
        weight_bytes_per_parameter=2, gradient_bytes_per_parameter=4, optimizer_bytes_per_parameter=12
    ),
}
"""Adam keeps two float32 moments; bf16 training adds float32 gradients and master weights (Megatron-LM's default)."""
OF_TRAINING = (Decision.ZERO, Decision.RESHARD, Decision.RECOMPUTATION)
DTYPE_OF = {Precision.FP32: "float32", Precision.BF16: "bfloat16"}
FLAGS = {
    "zero": "--zero",
    "reshard": "--reshard",
    "sequence_parallel": "--sequence-parallel",
    "offload_optimizer": "--offload-optimizer",
    "recomputation": "--recompute",
    "gradient_bytes_per_parameter": "--gradient-bytes",
    "optimizer_bytes_per_parameter": "--optimizer-bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWorkload:
    """What the options say; None where they say nothing. Fields are called as those of the workloads.

    `auto` are the decisions that are to be searched by word.
    """

    global_batch_size: int | None = None
    microbatch_size: int | None = None
    num_microbatches: int | None = None
    sequence_length: int | None = None
    weight_bytes_per_parameter: float | None = None
    gradient_bytes_per_parameter: float | None = None
    optimizer_bytes_per_parameter: float | None = None
    recomputation: Recomputation | None = None
    communication: Communication | None = None
    tensor: int | None = None
    context: int | None = None
    expert: int | None = None
    zero: int | None = None
    reshard: bool | None = None
    sequence_parallel: bool | None = None
    offload_optimizer: bool | None = None
    auto: tuple[Decision, ...] = ()
    inference: bool = False
    precision: Precision | None = None

    def dtype(self) -> str | None:
        """The dtype that the named precision computes in; None for the source's own."""
        return None if self.precision is None else DTYPE_OF[self.precision]


def workload_of(given: GivenWorkload, carried: Training | Inference | None, dtype: str) -> Training | Inference:
    """The carried workload of the source with the options over it, or a new one.

    `dtype` is the profile's: without other word, bytes per parameter are those of the preset that fits it. InputError
    when the global batch size is missing, and for training options of an inference.
    """
    wanted: type[Training] | type[Inference] = Inference if given.inference else Training
    if carried is not None and (isinstance(carried, wanted) or not given.inference):
        wanted = type(carried)
    values = _given_values(given, wanted)
    if isinstance(carried, wanted):
        return replace(carried, **{**_preset(given.precision, wanted), **values})
    if carried is not None:
        values.setdefault("global_batch_size", carried.global_batch_size)
    if "global_batch_size" not in values:
        raise InputError("the source brings no workload: give the samples per iteration with --global-batch")
    return wanted(**{**_preset(given.precision or _precision_of(dtype), wanted), **values})


def searched_of(given: GivenWorkload, *, by_default: bool) -> tuple[Decision, ...]:
    """The decisions to search: those that are `auto` by word, and by default those of which nothing is said.

    Context and expert degrees are 1 unless a word says otherwise: each multiplies the searches. Resharding is on: the
    price of ZeRO 3 without it has gradients that are reduced once and yet never held whole.
    """
    possible = tuple(d for d in Decision if not (given.inference and d in OF_TRAINING))
    unsaid = [d for d in possible if by_default and d not in BY_WORD and getattr(given, d.value) is None]
    return tuple(d for d in possible if d in unsaid or d in given.auto)


def _given_values(given: GivenWorkload, wanted: type[Training] | type[Inference]) -> dict[str, Any]:
    known = {field.name for field in fields(wanted)}
    values = {name: value for name in _names() if (value := getattr(given, name)) is not None}
    for name in values:
        if name not in known:
            raise InputError(f"{FLAGS[name]} is about training, but this is inference: leave it out")
    return values


def _names() -> list[str]:
    return [field.name for field in fields(GivenWorkload) if field.name not in ("auto", "inference", "precision")]


def _preset(precision: Precision | None, wanted: type[Training] | type[Inference]) -> dict[str, Any]:
    if precision is None:
        return {}
    known = {field.name for field in fields(wanted)}
    preset = PARAMETER_BYTES[precision]
    return {field.name: getattr(preset, field.name) for field in fields(preset) if field.name in known}


def _precision_of(dtype: str) -> Precision:
    return Precision.BF16 if dtype in ("bfloat16", "float16") else Precision.FP32
