"""The cross-checks that `Problem` runs: each names the object, the value, the bound and the remedy."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable

from planner.cluster import Cluster
from planner.errors import InputError
from planner.graph import Layer, LayerGraph, TiedParameters
from planner.profile import DTYPE_BYTES, LayerCost, Profile
from planner.workload import Inference, Training

MAX_ID_LENGTH = 512
MAX_BYTES = 2**50
"""No single size may exceed one pebibyte, and no sum over a model eight: every product stays within 64 bits."""
MAX_TOTAL_BYTES = 2**53
MAX_SECONDS = 1e9
MAX_COUNT = 10**9
MIN_BANDWIDTH_BYTES_PER_S = 1.0
MAX_BANDWIDTH_BYTES_PER_S = 1e18
LAYER_VOLUMES = (
    "tensor_collective_bytes_per_sample",
    "expert_dispatch_bytes_per_sample",
    "context_bytes_per_sample",
    "kv_bytes_per_token",
)
FORBIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories refused in ids: control, format (bidi overrides), surrogate, private, unassigned, separators."""


def check_id(value: str, what: str, pointer: str) -> None:
    """An id is 1 to 512 printable characters."""
    if not value:
        raise InputError(f"{what} has an empty id: give it a name", pointer=pointer)
    if len(value) > MAX_ID_LENGTH:
        raise InputError(
            f"{what} has an id of {len(value)} characters (limit {MAX_ID_LENGTH}): shorten it", pointer=pointer
        )
    bad = next((c for c in value if unicodedata.category(c) in FORBIDDEN_CATEGORIES), None)
    if bad is not None:
        raise InputError(f"{what}: id contains U+{ord(bad):04X}, which is not printable: remove it", pointer=pointer)


def check_number(value: float, what: str, pointer: str, *, low: float = 0, high: float = MAX_BYTES) -> None:
    """`low <= value <= high`, which NaN and infinities are not. Whole numbers may have any number of digits."""
    if not low <= value <= high:
        raise InputError(f"{what} is {repr(value)[:64]}: it must be between {low:g} and {high:g}", pointer=pointer)


def check_unique(ids: Iterable[str], what: str, pointer: str) -> None:
    """No id twice, also not in another Unicode normal form."""
    seen: dict[str, int] = {}
    for number, name in enumerate(ids):
        key = unicodedata.normalize("NFC", name)
        if key in seen:
            raise InputError(
                f"{what} id {name!r} occurs twice (positions {seen[key]} and {number}): ids must differ",
                pointer=f"{pointer}/{number}/id",
            )
        seen[key] = number


def check_graph(graph: LayerGraph) -> None:
    """Ids, sizes, edges, tied and colocated sets. Cycles are found when the order is computed."""
    if not graph.layers:
        raise InputError("the layer graph has no layers: give at least one", pointer="/graph/layers")
    check_unique((layer.id for layer in graph.layers), "layer", "/graph/layers")
    for number, layer in enumerate(graph.layers):
        at = f"/graph/layers/{number}"
        check_id(layer.id, f"layer {number}", f"{at}/id")
        if layer.entry:
            check_id(layer.entry, f"entry of layer {number}", f"{at}/entry")
        name = f"layer {layer.id!r}"
        check_number(layer.parameter_bytes, f"{name}: parameter_bytes", f"{at}/parameter_bytes")
        check_number(
            layer.replicated_parameter_bytes,
            f"{name}: replicated_parameter_bytes",
            f"{at}/replicated_parameter_bytes",
            high=layer.parameter_bytes,
        )
        for field in LAYER_VOLUMES:
            check_number(getattr(layer, field), f"{name}: {field}", f"{at}/{field}")
        check_number(
            layer.expert_parameter_bytes,
            f"{name}: expert_parameter_bytes (a part of those that are not replicated)",
            f"{at}/expert_parameter_bytes",
            high=layer.parameter_bytes - layer.replicated_parameter_bytes,
        )
        for counted in ("visits", "num_experts", "expert_visits"):
            check_number(getattr(layer, counted), f"{name}: {counted}", f"{at}/{counted}", high=MAX_COUNT)
    total = sum(layer.parameter_bytes for layer in graph.layers)
    check_number(total, "the sum of parameter_bytes", "/graph/layers", high=MAX_TOTAL_BYTES)
    known = {layer.id for layer in graph.layers}
    _check_edges(graph, known)
    _check_sets(graph, known)


def _check_edges(graph: LayerGraph, known: set[str]) -> None:
    seen: dict[tuple[str, str, str], int] = {}
    for number, edge in enumerate(graph.edges):
        at = f"/graph/edges/{number}"
        for end, name in (("source", edge.source), ("target", edge.target)):
            if name not in known:
                raise InputError(
                    f"edge {number}: {end} {name!r} is not a layer: add it or fix the id", pointer=f"{at}/{end}"
                )
        if edge.source == edge.target:
            raise InputError(f"edge {number} joins layer {edge.source!r} to itself: remove it", pointer=at)
        check_number(
            edge.bytes_per_sample,
            f"edge {edge.source!r} -> {edge.target!r}: bytes_per_sample",
            f"{at}/bytes_per_sample",
        )
        key = (edge.source, edge.target, edge.tensor)
        if key in seen:
            raise InputError(
                f"edge {number} repeats edge {seen[key]} ({edge.source!r} -> {edge.target!r}, tensor {edge.tensor!r}): "
                "remove one, or name the tensors apart",
                pointer=at,
            )
        seen[key] = number


def _check_sets(graph: LayerGraph, known: set[str]) -> None:
    sets = [(f"/graph/tied/{i}", tied.layers) for i, tied in enumerate(graph.tied)]
    sets += [(f"/graph/colocated/{i}", group) for i, group in enumerate(graph.colocated)]
    for at, group in sets:
        for name in group:
            if name not in known:
                raise InputError(f"{at[1:]} names {name!r}, which is not a layer: fix the id", pointer=at)
        if len(set(group)) < len(group):
            raise InputError(f"{at[1:]} names a layer twice: remove the repetition", pointer=at)
    for number, tied in enumerate(graph.tied):
        _check_tied(number, tied, graph)
    _check_shared(graph)


def _check_tied(number: int, tied: TiedParameters, graph: LayerGraph) -> None:
    at, name = f"/graph/tied/{number}", f"tied set {number}"
    smallest = min((layer.parameter_bytes for layer in graph.layers if layer.id in tied.layers), default=0)
    check_number(
        tied.parameter_bytes,
        f"{name}: parameter_bytes (shared by layers of at least {smallest} bytes)",
        f"{at}/parameter_bytes",
        high=smallest,
    )
    check_number(
        tied.replicated_parameter_bytes,
        f"{name}: replicated_parameter_bytes (a part of its parameter_bytes)",
        f"{at}/replicated_parameter_bytes",
        high=tied.parameter_bytes,
    )
    check_number(
        tied.expert_parameter_bytes,
        f"{name}: expert_parameter_bytes (a part of those that are not replicated)",
        f"{at}/expert_parameter_bytes",
        high=tied.parameter_bytes - tied.replicated_parameter_bytes,
    )


def _check_shared(graph: LayerGraph) -> None:
    """No layer shares more bytes of a kind, in all its sets together, than it has."""
    shared: dict[str, Counter[str]] = defaultdict(Counter)
    for tied in graph.tied:
        for name in tied.layers:
            shared[name].update(_kinds(tied))
    for number, layer in enumerate(graph.layers):
        owned = _kinds(layer)
        for kind, count in shared[layer.id].items() if layer.id in shared else ():
            if count > owned[kind]:
                raise InputError(
                    f"layer {layer.id!r} shares {count} bytes of {kind} parameters in its tied sets, but has "
                    f"{owned[kind]}: lower the sets' parameter_bytes, or say how much of them is "
                    "replicated_parameter_bytes or expert_parameter_bytes",
                    pointer=f"/graph/layers/{number}",
                )


def _kinds(item: Layer | TiedParameters) -> dict[str, int]:
    """Bytes of the parameters by what divides them."""
    copied, experts = item.replicated_parameter_bytes, item.expert_parameter_bytes
    return {"dense": item.parameter_bytes - copied - experts, "replicated": copied, "expert": experts}


def check_cluster(cluster: Cluster) -> None:
    """Devices of known types, links with real bandwidths."""
    if not cluster.devices:
        raise InputError("the cluster has no devices: give at least one", pointer="/cluster/devices")
    check_unique((kind.name for kind in cluster.device_types), "device type", "/cluster/device_types")
    check_unique((device.id for device in cluster.devices), "device", "/cluster/devices")
    for number, kind in enumerate(cluster.device_types):
        at = f"/cluster/device_types/{number}"
        check_id(kind.name, f"device type {number}", f"{at}/name")
        check_number(kind.memory_bytes, f"device type {kind.name!r}: memory_bytes", f"{at}/memory_bytes")
        check_number(kind.reserved_bytes, f"device type {kind.name!r}: reserved_bytes", f"{at}/reserved_bytes")
        if kind.host_bandwidth_bytes_per_s is not None:
            check_number(
                kind.host_bandwidth_bytes_per_s,
                f"device type {kind.name!r}: host_bandwidth_bytes_per_s",
                f"{at}/host_bandwidth_bytes_per_s",
                low=MIN_BANDWIDTH_BYTES_PER_S,
                high=MAX_BANDWIDTH_BYTES_PER_S,
            )
    types = {kind.name for kind in cluster.device_types}
    for number, device in enumerate(cluster.devices):
        at = f"/cluster/devices/{number}"
        check_id(device.id, f"device {number}", f"{at}/id")
        if device.type not in types:
            raise InputError(
                f"device {device.id!r} has the unknown type {device.type!r}: use one of {', '.join(sorted(types))}",
                pointer=f"{at}/type",
            )
        if device.free_memory_bytes is not None:
            check_number(
                device.free_memory_bytes, f"device {device.id!r}: free_memory_bytes", f"{at}/free_memory_bytes"
            )
    _check_links(cluster)


def _check_links(cluster: Cluster) -> None:
    seen: dict[frozenset[str], int] = {}
    devices = {device.id for device in cluster.devices}
    ends: dict[str, int] = {}
    for number, link in enumerate(cluster.links):
        at = f"/cluster/links/{number}"
        for end, name in (("a", link.a), ("b", link.b)):
            check_id(name, f"link {number}: end {end}", f"{at}/{end}")
            ends[name] = ends.get(name, 0) + 1
        if link.a == link.b:
            raise InputError(f"link {number} joins {link.a!r} to itself: remove it", pointer=at)
        check_number(
            link.bandwidth_bytes_per_s,
            f"link {link.a!r} - {link.b!r}: bandwidth_bytes_per_s",
            f"{at}/bandwidth_bytes_per_s",
            low=MIN_BANDWIDTH_BYTES_PER_S,
            high=MAX_BANDWIDTH_BYTES_PER_S,
        )
        check_number(link.latency_s, f"link {link.a!r} - {link.b!r}: latency_s", f"{at}/latency_s", high=MAX_SECONDS)
        key = frozenset((link.a, link.b))
        if key in seen:
            raise InputError(f"link {number} repeats link {seen[key]} ({link.a!r} - {link.b!r}): keep one", pointer=at)
        seen[key] = number
    for number, link in enumerate(cluster.links):
        for end, name in (("a", link.a), ("b", link.b)):
            if name not in devices and ends[name] < 2:
                raise InputError(
                    f"link {number}: end {name!r} is no device, and a switch needs at least two links: fix the id or "
                    "add the other link",
                    pointer=f"/cluster/links/{number}/{end}",
                )


def check_profiles(profiles: tuple[Profile, ...], graph: LayerGraph, cluster: Cluster) -> None:
    """At least one profile, for known device types, with costs for every layer on at least one of them."""
    if not profiles:
        raise InputError("there is no profile: give one per device type that is to be used", pointer="/profiles")
    types = {kind.name for kind in cluster.device_types}
    known = {layer.id for layer in graph.layers}
    check_unique((profile.device_type for profile in profiles), "profile for device type", "/profiles")
    for number, profile in enumerate(profiles):
        at = f"/profiles/{number}"
        if profile.device_type not in types:
            raise InputError(
                f"profile {number} is for device type {profile.device_type!r}, which the cluster does not have: "
                f"use one of {', '.join(sorted(types))}",
                pointer=f"{at}/device_type",
            )
        if profile.dtype not in DTYPE_BYTES:
            raise InputError(
                f"profile {number} has the unknown dtype {profile.dtype!r}: use one of {', '.join(DTYPE_BYTES)}",
                pointer=f"{at}/dtype",
            )
        check_number(
            profile.action_overhead_s,
            f"profile {number}: action_overhead_s",
            f"{at}/action_overhead_s",
            high=MAX_SECONDS,
        )
        if not profile.tables:
            raise InputError(
                f"profile {number} has no cost table: give one per microbatch size", pointer=f"{at}/tables"
            )
        _check_tables(profile, at, known)
    used = {device.type for device in cluster.devices}
    if not any(profile.device_type in used for profile in profiles):
        raise InputError("no device of the cluster has a profile: profile one of its types", pointer="/profiles")
    for layer in graph.layers:
        if not any(layer.id in table.layers for profile in profiles for table in profile.tables):
            raise InputError(f"layer {layer.id!r} has no cost in any profile: add it", pointer="/profiles")


def _check_tables(profile: Profile, at: str, known: set[str]) -> None:
    seen: set[tuple[int, int, int | None]] = set()
    for number, table in enumerate(profile.tables):
        here = f"{at}/tables/{number}"
        check_number(
            table.microbatch_size, "cost table: microbatch_size", f"{here}/microbatch_size", low=1, high=MAX_COUNT
        )
        check_number(table.tensor, "cost table: tensor degree", f"{here}/tensor", low=1, high=MAX_COUNT)
        key = (table.microbatch_size, table.tensor, table.sequence_length)
        if key in seen:
            raise InputError(f"two cost tables for microbatch size {table.microbatch_size}: keep one", pointer=here)
        seen.add(key)
        for name, cost in table.layers.items():
            if name not in known:
                raise InputError(f"cost table {number} prices {name!r}, which is not a layer: fix the id", pointer=here)
            _check_cost(name, cost, f"{here}/layers/{name}")


def _check_cost(name: str, cost: LayerCost, at: str) -> None:
    for field in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s", "optimizer_s"):
        value = getattr(cost, field)
        if value is not None:
            check_number(value, f"layer {name!r}: {field}", f"{at}/{field}", high=MAX_SECONDS)
    for field in ("activation_bytes", "workspace_bytes"):
        check_number(getattr(cost, field), f"layer {name!r}: {field}", f"{at}/{field}")
    if cost.weight_pass_bytes is not None:
        check_number(cost.weight_pass_bytes, f"layer {name!r}: weight_pass_bytes", f"{at}/weight_pass_bytes")
    kept = cost.activation_bytes
    if cost.selective_activation_bytes is not None:
        kept = cost.selective_activation_bytes
        check_number(
            kept,
            f"layer {name!r}: selective_activation_bytes (a part of activation_bytes)",
            f"{at}/selective_activation_bytes",
            high=cost.activation_bytes,
        )
    check_number(
        cost.sequence_activation_bytes,
        f"layer {name!r}: sequence_activation_bytes (a part of what is kept, also under selective recomputation)",
        f"{at}/sequence_activation_bytes",
        high=kept,
    )
    check_number(
        cost.selective_recompute_s,
        f"layer {name!r}: selective_recompute_s (a part of forward_s)",
        f"{at}/selective_recompute_s",
        high=cost.forward_s,
    )


def check_workload(workload: Training | Inference, num_devices: int) -> None:
    """Batch arithmetic, degrees and bytes per parameter."""
    at = "/workload"
    check_number(workload.global_batch_size, "global_batch_size", f"{at}/global_batch_size", low=1, high=MAX_COUNT)
    for field in ("microbatch_size", "num_microbatches"):
        value = getattr(workload, field)
        if value is None:
            continue
        check_number(value, field, f"{at}/{field}", low=1, high=workload.global_batch_size)
        if workload.global_batch_size % value:
            raise InputError(
                f"{field} {value} does not divide the global batch size {workload.global_batch_size}: "
                f"nearest that do: {_nearest_divisors(workload.global_batch_size, value)}",
                pointer=f"{at}/{field}",
            )
    if workload.microbatch_size and workload.num_microbatches:
        product = workload.microbatch_size * workload.num_microbatches
        if product != workload.global_batch_size:
            raise InputError(
                f"microbatch_size {workload.microbatch_size} x num_microbatches {workload.num_microbatches} = "
                f"{product}, but the global batch size is {workload.global_batch_size}: they must be equal",
                pointer=f"{at}/num_microbatches",
            )
    if workload.sequence_length is not None:
        check_number(workload.sequence_length, "sequence_length", f"{at}/sequence_length", low=1, high=MAX_COUNT)
    for field in ("tensor", "context", "expert"):
        check_number(
            getattr(workload, field),
            f"{field} degree (bounded by the number of devices)",
            f"{at}/{field}",
            low=1,
            high=num_devices,
        )
    if workload.tensor * workload.context > num_devices:
        raise InputError(
            f"tensor degree {workload.tensor} x context degree {workload.context} is more than the {num_devices} "
            "devices of the cluster: lower one of them",
            pointer=f"{at}/context",
        )
    for field in ("weight_bytes_per_parameter", "gradient_bytes_per_parameter", "optimizer_bytes_per_parameter"):
        if hasattr(workload, field):
            check_number(getattr(workload, field), field, f"{at}/{field}", high=1024)
    if isinstance(workload, Training):
        check_number(workload.zero, "ZeRO stage", f"{at}/zero", low=0, high=3)


def check_experts(workload: Training | Inference, graph: LayerGraph) -> None:
    """An expert degree is for models with routed experts."""
    if workload.expert > 1 and not has_experts(graph):
        raise InputError(
            f"the expert degree is {workload.expert}, but no layer of the model has experts: use 1",
            pointer="/workload/expert",
        )


def has_experts(graph: LayerGraph) -> bool:
    """Whether an expert degree divides the parameters of any layer."""
    return any(layer.expert_parameter_bytes for layer in graph.layers)


def _nearest_divisors(number: int, value: int) -> str:
    below = next(d for d in range(value, 0, -1) if number % d == 0)
    above = next(d for d in range(value, number + 1) if number % d == 0)
    return f"{below} and {above}"
