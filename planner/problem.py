"""`Problem`: graph, profiles, cluster and workload, checked against each other once."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from planner.checks import check_cluster, check_experts, check_graph, check_profiles, check_workload
from planner.cluster import Cluster, Device, DeviceType, Network
from planner.graph import NOUN_CONFIG, GraphIndex, LayerGraph
from planner.profile import Profile
from planner.workload import Inference, Training


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything a search needs, immutable and consistent.

    One profile per device type that is to be used; devices of a type without a profile stay idle. Building it
    raises InputError for whatever is wrong; behind it nothing is validated again.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = NOUN_CONFIG

    graph: LayerGraph
    profiles: tuple[Profile, ...]
    cluster: Cluster
    workload: Training | Inference

    def __post_init__(self) -> None:
        check_graph(self.graph)
        check_cluster(self.cluster)
        check_profiles(self.profiles, self.graph, self.cluster)
        check_workload(self.workload, len(self.cluster.devices))
        check_experts(self.workload, self.graph)
        _ = self.index  # raises for a cycle

    @cached_property
    def index(self) -> GraphIndex:
        """Positions, orders and tensors of the graph."""
        return GraphIndex(self.graph)

    @cached_property
    def network(self) -> Network:
        """Routes between devices."""
        return Network(self.cluster)

    @cached_property
    def profile_of(self) -> dict[str, Profile]:
        """Device type name -> profile."""
        return {profile.device_type: profile for profile in self.profiles}

    @cached_property
    def devices(self) -> dict[str, Device]:
        """Device id -> device, in placement order."""
        return {device.id: device for device in self.cluster.devices}

    @cached_property
    def device_types(self) -> dict[str, DeviceType]:
        """Device type name -> device type."""
        return {kind.name: kind for kind in self.cluster.device_types}

    @cached_property
    def memory_limits(self) -> dict[str, int]:
        """Device id -> bytes that a plan may use on it."""
        return {device.id: self._limit(device) for device in self.cluster.devices}

    def with_workload(self, workload: Training | Inference) -> Problem:
        """The same problem with another workload; what was derived from the rest is shared. InputError as ever."""
        check_workload(workload, len(self.cluster.devices))
        check_experts(workload, self.graph)
        _ = self.network, self.index
        other = copy(self)
        object.__setattr__(other, "workload", workload)
        return other

    @property
    def training(self) -> Training | None:
        """The workload if it trains, else None."""
        return self.workload if isinstance(self.workload, Training) else None

    def _limit(self, device: Device) -> int:
        if device.free_memory_bytes is not None:
            return device.free_memory_bytes
        kind = self.device_types[device.type]
        return max(0, kind.memory_bytes - kind.reserved_bytes)
