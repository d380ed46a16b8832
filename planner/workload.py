"""Workloads: what is to be run, and what is given rather than searched."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

from planner.graph import NOUN_CONFIG


class Communication(StrEnum):
    """How a transfer between stages meets compute.

    `blocking`: it occupies the stages at both ends. `overlapped`: it occupies its links and delays only its consumer.
    """

    BLOCKING = "blocking"
    OVERLAPPED = "overlapped"


class Recomputation(StrEnum):
    """What is recomputed in the backward pass: nothing, the attention core alone, or every layer from its kept inputs.

    `selective`: scores, softmax and their products with the values (Korthikanti et al. 2022, section 5). Layers whose
    costs do not say what that saves keep everything.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class ReplicaMode(StrEnum):
    """How the replicas of a stage share the work: each microbatch `split` evenly, or whole ones `dealt` in turn."""

    SPLIT = "split"
    DEALT = "dealt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Synchronous training: `global_batch_size` samples per iteration, exactly.

    `microbatch_size` and `num_microbatches` are searched where they are None. Bytes per parameter are those of the
    weights, the gradients and the optimizer state (master weights included).

    `context` devices share the tokens of each sample, `expert` ones the weights of routed experts.
    `sequence_parallel`: a tensor-parallel group divides what lies between its products too. `reshard`: under ZeRO 3
    weights are freed after each pass and gathered again for the next; without it they are gathered once per iteration
    and held. `offload_optimizer` keeps the optimizer state in the host's memory.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    global_batch_size: int
    kind: Literal["training"] = "training"
    microbatch_size: int | None = None
    num_microbatches: int | None = None
    sequence_length: int | None = None
    weight_bytes_per_parameter: float = 4.0
    gradient_bytes_per_parameter: float = 4.0
    optimizer_bytes_per_parameter: float = 8.0
    recomputation: Recomputation = Recomputation.NONE
    communication: Communication = Communication.OVERLAPPED
    tensor: int = 1
    sequence_parallel: bool = True
    context: int = 1
    expert: int = 1
    zero: int = 0
    reshard: bool = True
    offload_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Forward passes only: `global_batch_size` samples stream through the pipeline. No gradients, nothing kept."""

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    global_batch_size: int
    kind: Literal["inference"] = "inference"
    microbatch_size: int | None = None
    num_microbatches: int | None = None
    sequence_length: int | None = None
    weight_bytes_per_parameter: float = 4.0
    communication: Communication = Communication.OVERLAPPED
    tensor: int = 1
    context: int = 1
    expert: int = 1


Workload = Training | Inference
