"""Clusters from short forms and files.

Short forms:

    local                   one process per CPU core of this host
    local:2                 two of them: cpu0, cpu1, joined by shared memory
    8xH100-80G-SXM          one node: gpu0 ... gpu7 at the node's switch
    2x8xA100-80G-SXM        two nodes: node0/gpu0 ... node1/gpu7, joined by the fabric
    2x8xA100-80G-SXM@70GiB  the same, with 70 GiB free on each device

A file (`.toml` or `.json`) holds the fields of the Cluster noun, with three conveniences: device types and links may be
catalogue names, sizes and rates may be text with a unit, and `nodes` stands for groups of equal nodes:

    name = "lab"

    [[nodes]]                                           # profiles.nodes.NodeGroup
    count = 2
    devices = [{ type = "A100-80G-SXM", count = 8, free_memory_bytes = "70GiB" }]
    fabric = "ethernet-100"                             # instead of the usual one of the device type
    fabric_per = "node"

    [[devices]]                                         # single devices, any link graph
    id = "old"
    type = "T4"

    [[links]]
    a = "old"
    b = "fabric"
    type = "ethernet-25"                                # or bandwidth_bytes_per_s = "3GB/s", latency_s = 2e-5

    [[device_types]]                                    # only for types that the catalogue does not have
    name = "my-card"
    memory_bytes = "24GiB"
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from planner import codec
from planner.checks import check_cluster
from planner.cluster import Cluster, Device, DeviceType, Link
from planner.errors import InputError
from profiles import catalogue
from profiles.nodes import MAX_DEVICES, DeviceGroup, NodeGroup, expand
from profiles.quantities import parse_bytes, plain

FORMS = "local:2, 8xH100-80G-SXM, 2x8xA100-80G-SXM or a .toml or .json file"
MAX_FILE_BYTES = 64 * 2**20
LOCAL_TYPE = "cpu-core"
RESIDENT_SHARE = 1.5
"""Resident bytes per byte of tensors: glibc keeps freed memory (measured 1.16 to 1.65 on usual models)."""
LOCAL_RESERVE_BYTES = 2**29
"""What Python and torch take in each process (measured 360 to 380 MiB)."""

_MEMORY = r"(?:@(?P<memory>[^@]+))?"
_LOCAL = re.compile(r"local(?::(?P<count>\d+))?" + _MEMORY, re.ASCII)
_NODES = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<count>\d+)x(?P<type>[^@]+)" + _MEMORY, re.ASCII)


def parse_cluster(text: str) -> Cluster:
    """The cluster that a short form or the name of a file stands for. For the command line: it reads files.

    Raises InputError that names what is wrong: unknown types (with near matches), zero devices or more than 100,000,
    files that cannot be read.
    """
    if text.endswith((".toml", ".json")):
        return read_cluster(Path(text))
    return parse_short_form(text)


def parse_short_form(text: str) -> Cluster:
    """The cluster that a short form stands for. Reads no file: fit for requests."""
    if local := _LOCAL.fullmatch(text):
        return _local(text, local["count"], local["memory"])
    if nodes := _NODES.fullmatch(text):
        return _nodes(text, nodes)
    raise InputError(f"{text[:64]!r} is no cluster: write {FORMS}", pointer="/cluster")


def read_cluster(path: Path) -> Cluster:
    """The cluster in a `.toml` or `.json` file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"cluster file {path} is larger than {MAX_FILE_BYTES} bytes: make it smaller")
        content = path.read_bytes()
    except OSError as fault:
        raise InputError(f"cluster file {path} cannot be read: {fault.strerror}") from None
    try:
        values = codec.parse(content) if path.suffix == ".json" else tomllib.loads(content.decode())
        return cluster_from_values(values, name=path.stem)
    except InputError as fault:
        raise InputError(f"cluster file {path}: {fault}", pointer=fault.pointer) from None
    except ValueError as fault:  # TOML syntax, UTF-8
        raise InputError(f"cluster file {path} is not valid TOML: {fault}") from None


def cluster_from_values(values: Any, *, name: str = "") -> Cluster:
    """The cluster in the values of a document that may use catalogue names, units and `nodes`. Checked."""
    if not isinstance(values, dict):
        raise InputError("a cluster is an object with the fields devices, links, device_types, nodes and name")
    body = plain(values)
    devices, links = _expanded(body.pop("nodes", []))
    body["devices"] = [*devices, *_rows(body, "devices")]
    body["links"] = [*links, *(_link(row) for row in _rows(body, "links"))]
    body["device_types"] = _device_types(body)
    body.setdefault("name", name)
    cluster = codec.decode(Cluster, body)
    check_cluster(cluster)
    return cluster


def _local(text: str, count: str | None, memory: str | None) -> Cluster:
    number = _count(count, "processes") if count else os.cpu_count() or 1
    free = parse_bytes(memory) if memory else _share_of_host(number)
    group = DeviceGroup(type=LOCAL_TYPE, count=number, free_memory_bytes=free)
    return _cluster(text, (NodeGroup(devices=(group,)),))


def _nodes(text: str, found: re.Match[str]) -> Cluster:
    catalogue.device_type(found["type"])  # an unknown type is the first thing to say
    group = DeviceGroup(
        type=found["type"],
        count=_count(found["count"], "devices"),
        free_memory_bytes=parse_bytes(found["memory"]) if found["memory"] else None,
    )
    return _cluster(text, (NodeGroup(devices=(group,), count=_count(found["nodes"] or "1", "nodes")),))


def _cluster(name: str, groups: tuple[NodeGroup, ...]) -> Cluster:
    devices, links = expand(groups)
    types = dict.fromkeys(device.type for device in devices)
    made = Cluster(
        name=name,
        device_types=tuple(catalogue.device_type(kind) for kind in types),
        devices=devices,
        links=links,
    )
    check_cluster(made)
    return made


def _count(text: str, what: str) -> int:
    """A count of at least 1; the digits are bounded before they are read."""
    digits = text.lstrip("0")
    if not digits:
        raise InputError(f"the cluster has 0 {what}: give at least 1", pointer="/cluster")
    if len(digits) > len(str(MAX_DEVICES)) or int(digits) > MAX_DEVICES:
        raise InputError(f"the cluster has {digits[:12]} {what} (limit {MAX_DEVICES}): give fewer", pointer="/cluster")
    return int(digits)


def _share_of_host(number: int) -> int:
    """Bytes of tensors that each of `number` processes may hold: its share of the host, less what Python takes."""
    free = int(host_memory_bytes() / number / RESIDENT_SHARE) - LOCAL_RESERVE_BYTES
    if free <= 0:
        raise InputError(
            f"local:{number} leaves no memory for each process ({host_memory_bytes()} bytes in all): use fewer "
            f"processes, or state the memory as in local:{number}@1GiB",
            pointer="/cluster",
        )
    return free


def host_memory_bytes() -> int:
    """Memory of this host, or of this container where that is less."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise InputError("this host does not tell its memory: state it, as in local:2@4GiB") from None
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(installed, int(text)) if text.isdecimal() else installed


def _expanded(rows: Any) -> tuple[list[Any], list[Any]]:
    if not rows:
        return [], []
    if not isinstance(rows, list):
        raise InputError("nodes is a list of node groups", pointer="/nodes")
    devices, links = expand([_node_group(number, row) for number, row in enumerate(rows)])
    return [_values(device) for device in devices], [_values(link) for link in links]


def _node_group(number: int, row: Any) -> NodeGroup:
    try:
        return codec.decode(NodeGroup, row)
    except InputError as fault:
        raise InputError(f"node group {number}: {fault}", pointer=f"/nodes/{number}{fault.pointer}") from None


def _rows(body: dict[str, Any], field: str) -> list[Any]:
    rows = body.get(field, [])
    if not isinstance(rows, list):
        raise InputError(f"{field} is a list", pointer=f"/{field}")
    return rows


def _link(row: Any) -> Any:
    """A link row with the figures of its catalogue `type`; figures in the row itself win."""
    if not isinstance(row, dict) or "type" not in row:
        return row
    kind = catalogue.link(str(row["type"]))
    figures = {"bandwidth_bytes_per_s": kind.bandwidth_bytes_per_s, "latency_s": kind.latency_s}
    return figures | {key: value for key, value in row.items() if key != "type"}


def _device_types(body: dict[str, Any]) -> list[Any]:
    """The file's own device types, and those of the catalogue that its devices name."""
    own = _rows(body, "device_types")
    names = {row.get("name") for row in own if isinstance(row, dict)}
    used = dict.fromkeys(row.get("type") for row in body["devices"] if isinstance(row, dict))
    wanted = [name for name in used if isinstance(name, str) and name not in names]
    return own + [_values(catalogue.device_type(name)) for name in wanted]


def _values(noun: Device | Link | DeviceType) -> dict[str, Any]:
    return {key: value for key, value in codec.encode(noun).items() if key not in ("document", "schema_version")}
