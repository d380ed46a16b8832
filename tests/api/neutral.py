"""From the neutral documents of the bad-input corpus (`tests/badinputs`) to the bytes of planning requests.

The translation keeps every fault: values that are no numbers, fields that nobody knows and recipes pass through.
"""

from __future__ import annotations

import json
from typing import Any

RECIPES = {"$raw", "$dup", "$nest", "$str", "$repeat"}
SECONDS_PER_MS = 1e-3
BYTES_PER_S_PER_GBPS = 1e9 / 8
FLOAT32_BYTES = 4

LAYER_FIELDS = {"id": "id", "param_bytes": "parameter_bytes"}
COST_FIELDS = {"fwd_ms": "forward_s", "bwd_ms": "backward_s", "act_bytes": "activation_bytes"}
EDGE_FIELDS = {"src": "source", "dst": "target", "bytes": "bytes_per_sample"}
DEVICE_FIELDS = {"id": "id", "mem_bytes": "free_memory_bytes"}
LINK_FIELDS = {"a": "a", "b": "b", "gbps": "bandwidth_bytes_per_s"}
OPTION_FIELDS = {"stages": "num_stages", "solver": "optimizer"}
PLACES = {
    "nodes": "layers",
    **LAYER_FIELDS,
    **COST_FIELDS,
    **EDGE_FIELDS,
    **DEVICE_FIELDS,
    **LINK_FIELDS,
    **OPTION_FIELDS,
}


def request_bytes(document: Any) -> bytes:
    """The body of `POST /v1/plans` for a neutral document."""
    return _text(_request(document) if isinstance(document, dict) else document).encode("utf-8", "surrogatepass")


def our_field(pointer: str) -> str:
    """What an error must name for a fault at a neutral pointer: our word for its last field, with an index if any."""
    parts = [PLACES.get(part, part) for part in pointer.split("/")[1:]]
    if parts[-1].isdigit():
        return "/".join(parts[-2:])
    return parts[-1]


def stage_compute_ms(document: dict[str, Any], layers: list[str]) -> float:
    """Forward plus backward milliseconds of some nodes."""
    return sum(float(node["fwd_ms"] + node["bwd_ms"]) for node in document["nodes"] if node["id"] in layers)


def _request(document: dict[str, Any]) -> dict[str, Any]:
    options = dict(document.get("options", {}))
    microbatches = options.pop("microbatches", 1)
    multiplier = options.pop("memory_multiplier", None)
    workload = {"kind": "training", "global_batch_size": microbatches, "microbatch_size": 1}
    if multiplier is not None:
        workload |= {
            "weight_bytes_per_parameter": float(multiplier * FLOAT32_BYTES),
            "gradient_bytes_per_parameter": 0.0,
            "optimizer_bytes_per_parameter": 0.0,
        }
    problem = {
        "graph": {
            "layers": _each(document["nodes"], _layer),
            "edges": _each(document["edges"], lambda edge: _renamed(edge, EDGE_FIELDS)),
        },
        "profiles": [
            {"device_type": "device", "tables": [{"microbatch_size": 1, "layers": _costs(document["nodes"])}]}
        ],
        "cluster": {
            "device_types": [{"name": "device", "memory_bytes": 2**30}],
            "devices": _each(document["devices"], lambda device: {**_renamed(device, DEVICE_FIELDS), "type": "device"}),
            "links": _each(document["links"], _link),
        },
        "workload": workload,
    }
    search = {"objective": "throughput", "replication": "none", **_renamed(options, OPTION_FIELDS)}
    return {"problem": problem, "options": search}


def _layer(node: dict[str, Any]) -> dict[str, Any]:
    return {LAYER_FIELDS.get(name, name): value for name, value in node.items() if name not in COST_FIELDS}


def _costs(nodes: list[Any]) -> dict[str, Any]:
    """Cost of each plain node by its id. (Repeated nodes have none: their documents are refused by size.)"""
    plain = [node for node in nodes if isinstance(node, dict) and not _is_recipe(node)]
    return {_key(node["id"]): _cost(node) for node in plain}


def _cost(node: dict[str, Any]) -> dict[str, Any]:
    return {
        COST_FIELDS[name]: _scaled(value, SECONDS_PER_MS) if name.endswith("_ms") else value
        for name, value in node.items()
        if name in COST_FIELDS
    }


def _link(link: dict[str, Any]) -> dict[str, Any]:
    return {LINK_FIELDS.get(n, n): _scaled(v, BYTES_PER_S_PER_GBPS) if n == "gbps" else v for n, v in link.items()}


def _renamed(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}


def _each(items: list[Any], translate: Any) -> list[Any]:
    def one(item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        if "$repeat" in item:
            repeat = item["$repeat"]
            return {"$repeat": {**repeat, "item": one(repeat["item"])}}
        return translate(item)

    return [one(item) for item in items]


def _scaled(value: Any, factor: float) -> Any:
    """A number in our unit; whatever is no number stays."""
    if isinstance(value, dict) and "$dup" in value:
        return {"$dup": [_scaled(one, factor) for one in value["$dup"]]}
    return value * factor if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _key(value: Any) -> str:
    if isinstance(value, dict) and "$str" in value:
        return str(value["$str"]["s"] * value["$str"]["n"])
    return value if isinstance(value, str) else "other"


def _is_recipe(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in RECIPES


def _text(value: Any) -> str:
    """JSON text with the recipes expanded (not always valid JSON: that is the point of some)."""
    if _is_recipe(value):
        return _expanded(*next(iter(value.items())))
    if isinstance(value, dict):
        return "{" + ",".join(_member(name, member) for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return json.dumps(value)


def _member(name: str, value: Any) -> str:
    twice = value["$dup"] if _is_recipe(value) and "$dup" in value else [value]
    return ",".join(f"{json.dumps(name)}:{_text(one)}" for one in twice)


def _expanded(recipe: str, values: Any) -> str:
    if recipe == "$raw":
        return str(values)
    if recipe == "$str":
        return json.dumps(values["s"] * values["n"])
    if recipe == "$nest":
        return str(values["open"] * values["n"] + values.get("core", "0") + values["close"] * values["n"])
    item = _text(values["item"])
    return ",".join(item.replace("{i+1}", str(i + 1)).replace("{i}", str(i)) for i in range(values["n"]))
