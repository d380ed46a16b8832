"""The machines that a plan uses, as launchers count processes: node by node, equally many on each.

A device's node is what stands before the last `/` of its id, as in `node0/gpu3`; ids without one are on one node. Its
number on the node is its place among the node's devices in the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cluster import DeviceKind
from planner.errors import ExportError
from planner.exporters.base import ExportContext
from planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """`devices[n]` are the numbers of the devices on node n that its processes use, in order of their ranks."""

    names: tuple[str, ...]
    devices: tuple[tuple[int, ...], ...]
    devices_on_node: int
    accelerators: bool

    @property
    def processes_per_node(self) -> int:
        """The same on every node."""
        return len(self.devices[0])


def nodes_of(context: ExportContext, engine: str) -> Nodes:
    """Ranks in the plan's order; ExportError naming the stage where they do not go through the nodes one by one."""
    number = _numbers(context.problem)
    found: dict[str, list[int]] = {}
    last = ""
    for stage, device in _ranks(context):
        node = node_of(device)
        if node != last and node in found:
            raise ExportError(
                f"stage {stage} is on {device!r}, after ranks on {last!r}: {engine} numbers the processes node by "
                "node; plan with devices in the order of the nodes",
                pointer=f"/stages/{stage}/replicas",
            )
        found.setdefault(node, []).append(number[device])
        last = node
    counts = {node: len(used) for node, used in found.items()}
    if len(set(counts.values())) > 1:
        few = min(counts, key=lambda node: counts[node])
        stage = next(stage for stage, device in _ranks(context) if node_of(device) == few)
        raise ExportError(
            f"stage {stage} is on {few!r}, of which {counts[few]} devices are used, and {max(counts.values())} of "
            f"others: {engine} needs as many processes on every node; plan with whole nodes",
            pointer=f"/stages/{stage}/replicas",
        )
    sizes = [node_of(device) for device in context.problem.devices]
    kinds = {context.problem.device_types[device.type].kind for device in context.problem.cluster.devices}
    return Nodes(
        names=tuple(found),
        devices=tuple(map(tuple, found.values())),
        devices_on_node=max(map(sizes.count, found)),
        accelerators=kinds != {DeviceKind.CPU},
    )


def node_of(device: str) -> str:
    """The node in a device's id."""
    return device.rpartition("/")[0]


def _numbers(problem: Problem) -> dict[str, int]:
    counts: dict[str, int] = {}
    numbers = {}
    for device in problem.devices:
        node = node_of(device)
        numbers[device] = counts.get(node, 0)
        counts[node] = numbers[device] + 1
    return numbers


def _ranks(context: ExportContext) -> list[tuple[int, str]]:
    """(first stage, device) per rank."""
    ranks: dict[str, int] = {}
    for number, stage in enumerate(context.plan.stages):
        for device in (device for group in stage.replicas for device in group):
            ranks.setdefault(device, number)
    return [(stage, device) for device, stage in ranks.items()]
