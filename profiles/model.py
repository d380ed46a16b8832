"""What a source yields: a model's graph with its costs, measured or still to be priced.

`ProfiledModel` is what `pipeplan profile` writes and `pipeplan plan` reads. `ModelRecord` holds a model's work without
seconds (FLOPs and bytes), so that `profiles.analytic` can price it for any device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

from planner.cluster import Cluster
from planner.graph import NOUN_CONFIG, LayerGraph
from planner.profile import Profile, Provenance
from planner.workload import Inference, Training


class Grain(StrEnum):
    """How fine a traced model is cut into layers: repeated blocks (transformer layers), modules, or operators."""

    BLOCK = "block"
    MODULE = "module"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The recipe from which a profiled model can be built again, so that its plans can be run.

    `config` holds the values of a transformers `config.json` (`kind` transformers); `reference` is the file it came
    from, `module:factory` (`kind` factory), or the file of an exported program (`kind` exported). The rest are the
    arguments of `profiles.tracing.TraceLoader`.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    kind: Literal["transformers", "factory", "exported"]
    reference: str
    config: dict[str, Any] | None = None
    sequence_length: int | None = None
    dtype: str = "float32"
    grain: Grain = Grain.BLOCK
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """A layer graph with costs; the cluster and workload where the source file carries them; how to build the model."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    graph: LayerGraph
    profiles: tuple[Profile, ...]
    cluster: Cluster | None = None
    workload: Training | Inference | None = None
    source: ModelSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What one layer does per sample: FLOPs, bytes that it must move to and from memory, bytes that it keeps.

    `*_moved_bytes`, `activation_bytes` and `workspace_bytes` are per sample; `weight_bytes` is read once per pass
    whatever the microbatch size, and `gradient_workspace_bytes` (the gradient of the largest parameter, alive while it
    is added) does not depend on it either. Moved bytes are those of operators without FLOPs. All in the record's dtype,
    for tensor degree 1; with tensor and sequence parallelism every byte is divided by the degree.

    The `selective_*` figures are those of the attention core, which selective recomputation runs again: bytes kept all
    the same (None where it is not offered), FLOPs and moved bytes. `sequence_activation_bytes` is the part of the kept
    bytes that only sequence parallelism divides. `weight_pass_bytes` are gradients of the outputs of weighted
    operators, which a split backward pass holds from I to W (None: not known).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    forward_flops: float
    backward_flops: float
    forward_moved_bytes: float = 0.0
    backward_moved_bytes: float = 0.0
    weight_bytes: int = 0
    activation_bytes: int = 0
    workspace_bytes: int = 0
    gradient_workspace_bytes: int = 0
    selective_activation_bytes: int | None = None
    selective_flops: float = 0.0
    selective_moved_bytes: float = 0.0
    sequence_activation_bytes: int = 0
    weight_pass_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model's graph and work at one sequence length (None where the model has none), without any device.

    `workload` is set where the source says how it is trained.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    name: str
    dtype: str
    sequence_length: int | None
    graph: LayerGraph
    work: dict[str, LayerWork]
    provenance: Provenance = field(default_factory=Provenance)
    workload: Training | Inference | None = None
