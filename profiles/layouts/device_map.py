"""Layouts in a `device_map` of Hugging Face: module name -> device number, `cuda:1`, or a device's id."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from planner import codec
from planner.errors import InputError
from planner.graph import Layer
from planner.plan import Plan
from planner.problem import Problem
from planner.targets import LOSS, PART_SEPARATOR
from profiles.layouts.base import LAYOUTS, Layout, plan_of


@LAYOUTS.register
class DeviceMap:
    """Reads where every layer is; a stage ends where the device changes."""

    name = "device_map"

    def sniff(self, text: str) -> bool:
        """A JSON object of numbers or names that has no header of ours."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return (
            isinstance(values, dict)
            and bool(values)
            and "document" not in values
            and all(type(value) in (int, str) for value in values.values())
        )

    def read(self, text: str, problem: Problem) -> Plan:
        """The plan; the loss is with what comes before it."""
        values = codec.parse(text)
        if not isinstance(values, dict):
            raise InputError("a device map is a JSON object of module names and devices")
        devices = tuple(problem.devices)
        places, last = list[tuple[str, str]](), devices[0]
        for layer in problem.index.layers:
            last = last if layer.op == LOSS else _device(values, layer, devices)
            places.append((layer.id, last))
        runs = [(device, tuple(name for name, _ in run)) for device, run in groupby(places, key=lambda place: place[1])]
        used = tuple(device for device, _ in runs)
        again = next((device for number, device in enumerate(used) if device in used[:number]), None)
        if again is not None:
            raise InputError(f"device {again!r} has two runs of layers with others between: give each device one run")
        layout = Layout(stages=tuple(names for _, names in runs), pipeline_size=len(runs), replicas=1, devices=used)
        return plan_of(layout, problem)


def _device(values: dict[str, Any], layer: Layer, devices: tuple[str, ...]) -> str:
    """The device of a layer: that of the longest module name that it is in."""
    name = layer.id.partition(PART_SEPARATOR)[0]
    parts = name.split(".")
    names = [layer.id, *(".".join(parts[:end]) for end in range(len(parts), 0, -1)), ""]
    found = next((each for each in names if each in values), None)
    if found is None:
        raise InputError(f"the device map places no module of layer {layer.id!r}: add {name!r}")
    value = values[found]
    if isinstance(value, str) and value in devices:
        return value
    number = value.rpartition(":")[2] if isinstance(value, str) else str(value)
    if isinstance(value, bool) or not number.isdecimal() or int(number) >= len(devices):
        raise InputError(
            f"{found!r} is on device {str(value)[:64]!r}: use a number below {len(devices)}, the devices of the cluster"
        )
    return devices[int(number)]
