"""What to search for, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from planner.graph import NOUN_CONFIG
from planner.workload import Recomputation, ReplicaMode


class Objective(StrEnum):
    """What is sought; `docs/objectives.md` states each.

    `iteration_time` and `throughput` (the bottleneck stage's period) are minimised by the searches themselves. The
    others are goals (`planner.goals`), which ask for several such searches: only `planner.service.answer` takes them.
    """

    ITERATION_TIME = "iteration_time"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MAX_BATCH = "max_batch"
    MIN_DEVICES = "min_devices"
    PARETO = "pareto"
    MAX_KV_TOKENS = "max_kv_tokens"


SEARCHED_OBJECTIVES = (Objective.ITERATION_TIME, Objective.THROUGHPUT)
"""Those that searches minimise; the others are goals."""


class Front(StrEnum):
    """What the objective `pareto` trades iteration time against: devices used, or the peak memory of a device."""

    DEVICES = "devices"
    MEMORY = "memory"


class SearchModel(StrEnum):
    """The closed form that a search minimises; `docs/cost-model.md` section 6 states each.

    `closed`: transfers cost latency only, each over one whole link. `blocking`: transfers count once per tensor at
    each end (Tarnawski et al. 2020, Archer et al. 2024). `overlapped`: links are resources beside the stages.
    `pipedream`: the model of PipeDream's optimizer, throughput only; `docs/search-models.md` states it.
    """

    CLOSED = "closed"
    BLOCKING = "blocking"
    OVERLAPPED = "overlapped"
    PIPEDREAM = "pipedream"


GENERAL_MODELS = (SearchModel.CLOSED, SearchModel.BLOCKING, SearchModel.OVERLAPPED)
"""Those that price every plan for every objective, and that the bounds of `planner.bounds` hold for."""


class Replication(StrEnum):
    """Which replication degrees are searched: any per stage, one for all stages, or none."""

    ANY = "any"
    EQUAL = "equal"
    NONE = "none"


class Decision(StrEnum):
    """What a joint search decides beside cuts, replication, devices, batches and schedule.

    `tensor`, `context` and `expert`: one degree each for all stages. `zero`, `reshard` (of ZeRO stage 3) and
    `recomputation`: per stage.
    """

    TENSOR = "tensor"
    ZERO = "zero"
    RECOMPUTATION = "recomputation"
    CONTEXT = "context"
    EXPERT = "expert"
    RESHARD = "reshard"


BY_WORD = (Decision.CONTEXT, Decision.EXPERT, Decision.RESHARD)
"""Decisions that front ends do not search unless they are told to."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a stage spends time on to save memory. `reshard` matters under ZeRO stage 3 only."""

    recomputation: Recomputation
    zero: int
    reshard: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """One search. None (or `auto`) leaves the choice to the planner.

    `search_model` defaults to the workload's communication. `num_finalists` candidates are simulated.
    `time_limit_s` bounds the whole search, `seed` all randomness. `searched` are the decisions that are searched,
    instead of taken from the workload. `target` names the engine that shall run the plan (`planner.targets`), `cuts`
    the layers at which the stages after the first start, where these are pinned. `max_iteration_time_s` is for the
    objective `min_devices`, `front` for `pareto`.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    objective: Objective = Objective.ITERATION_TIME
    search_model: SearchModel | None = None
    optimizer: str = "auto"
    schedule: str = "auto"
    num_stages: int | None = None
    replication: Replication = Replication.ANY
    replica_mode: ReplicaMode = ReplicaMode.SPLIT
    searched: tuple[Decision, ...] = ()
    target: str = ""
    cuts: tuple[str, ...] = ()
    max_iteration_time_s: float | None = None
    front: Front = Front.DEVICES
    num_finalists: int = 8
    time_limit_s: float = 60.0
    seed: int = 0


MAX_TIME_LIMIT_S = 7200.0
MAX_NUM_FINALISTS = 1000
