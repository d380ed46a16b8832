"""Profiles: what each layer costs on one type of device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}
"""Bytes of one parameter or activation element per dtype name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Cost of one layer for one microbatch on one device (or on one member of a tensor-parallel group).

    Seconds are compute only, collectives and transfers are priced by `planner.costs`. `activation_bytes` is what is
    kept from the forward until the backward pass; `workspace_bytes` is needed while the layer runs.
    `optimizer_s` is the optimizer step of the layer's parameters, once per iteration.

    `selective_activation_bytes` is what is kept when the attention core is recomputed, `selective_recompute_s` how
    long that takes (Korthikanti et al. 2022, section 5); None where selective recomputation is not offered: the layer
    then keeps everything. `sequence_activation_bytes` is the part of the kept bytes outside the tensor-parallel
    products (norms, dropouts, their inputs): sequence parallelism divides it, without it every member keeps it whole.
    Like all others it is counted for one member with sequence parallelism.

    `weight_pass_bytes` is what the input-gradient pass of a split backward adds to the kept bytes and the weight pass
    gives back (gradients of the outputs of weighted operators); None where that is not known: nothing is counted.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    forward_s: float
    backward_s: float = 0.0
    backward_input_s: float | None = None
    backward_weight_s: float | None = None
    activation_bytes: int = 0
    workspace_bytes: int = 0
    selective_activation_bytes: int | None = None
    selective_recompute_s: float = 0.0
    sequence_activation_bytes: int = 0
    optimizer_s: float = 0.0
    weight_pass_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How good the measured seconds of a table are.

    Each is a median over `num_chains` runs of all layers in order. `spread` is, per layer, the distance between the
    quartiles of its forward and backward seconds over their median. `reference_s` is the median of a fixed workload
    that ran between the chains: it tells two hosts, or two moments of one, apart. `drift` is by how much the median of
    the second half was off that of the first, of the chains or of the reference workload, whichever is larger.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    num_chains: int
    reference_s: float
    drift: float = 0.0
    spread: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Costs of all layers at one microbatch size, tensor degree and sequence length.

    A layer that is missing here cannot run on the profile's device type. `measurement` is None for costs that were not
    measured here.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    microbatch_size: int
    tensor: int = 1
    sequence_length: int | None = None
    layers: dict[str, LayerCost]
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a profile comes from: how it was made, with what, when, and remarks such as a drifting host.

    `environment` is what of the surroundings decides about seconds: threads, core, allocator settings.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    method: str = "unknown"
    tool: str = ""
    created: str = ""
    host: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Costs of a model's layers on one device type.

    `dtype` is the dtype of `Layer.parameter_bytes`. `action_overhead_s` is charged once for each forward or backward
    of a whole stage (launch and runtime bookkeeping). Between measured microbatch sizes costs are affine.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    device_type: str
    dtype: str = "float32"
    tables: tuple[CostTable, ...]
    action_overhead_s: float = 0.0
    provenance: Provenance = field(default_factory=Provenance)
