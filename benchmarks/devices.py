"""The clusters of the benchmarks: equal accelerators between which every pair has the whole bandwidth."""

from __future__ import annotations

from planner.cluster import Cluster, Device, DeviceType, Link

BUS = "bus"


def accelerators(name: str, count: int, *, bandwidth_bytes_per_s: float, memory_bytes: int) -> Cluster:
    """`count` devices of type `name` with `memory_bytes` each."""
    ids = [f"{name}:{i}" for i in range(count)]
    links = (Link(a=i, b=BUS, bandwidth_bytes_per_s=bandwidth_bytes_per_s, shared=False) for i in ids)
    return Cluster(
        name=f"{count} x {name}",
        device_types=(DeviceType(name=name, memory_bytes=memory_bytes),),
        devices=tuple(Device(id=i, type=name) for i in ids),
        links=tuple(links) if count > 1 else (),
    )
