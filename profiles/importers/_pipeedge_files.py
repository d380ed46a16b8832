"""PipeEdge's three YAML files as they are: models, device types with measured times, hosts; every number checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.checks import MAX_BANDWIDTH_BYTES_PER_S, MAX_BYTES, MAX_COUNT, MAX_SECONDS, check_id
from planner.errors import InputError
from profiles.importers._yaml import Item, read_yaml

MEGA = 2**20
"""PipeEdge's scheduler reads MB and Mbps as powers of two (`src-native/schedule.cpp`)."""
MODELS, DEVICE_TYPES, DEVICES = "models.yml", "device_types.yml", "devices.yml"
MAX_LAYERS = 100_000
MAX_HOSTS = 10_000
TORCH = "torch."


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model: per layer its memory in bytes and the elements that it puts out for one sample."""

    name: str
    memory_bytes: tuple[float, ...]
    elements_in: int
    elements_out: tuple[int, ...]
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds per layer for one microbatch of `batch_size` samples."""

    batch_size: int
    dtype: str
    seconds: tuple[float, ...]
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A device type: bytes of memory, bytes per second of its network port, times per model."""

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    times: dict[str, tuple[Times, ...]]
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeEdgeFiles:
    """All three files."""

    models: dict[str, Model]
    kinds: dict[str, Kind]
    hosts: dict[str, tuple[str, ...]]


def read_files(files: Mapping[str, bytes]) -> PipeEdgeFiles:
    """The documents of the files, told apart by what they hold; InputError with file and line."""
    parts: dict[str, dict[str, Item]] = {MODELS: {}, DEVICE_TYPES: {}, DEVICES: {}}
    for name, content in files.items():
        for document in read_yaml(content, name):
            entries = document.mapping("the document")
            parts[_kind_of(document, entries)].update(entries)
    return PipeEdgeFiles(
        models={name: _model(name, item) for name, item in parts[MODELS].items()},
        kinds={name: _kind(name, item) for name, item in parts[DEVICE_TYPES].items()},
        hosts=_hosts(parts[DEVICES]),
    )


def _kind_of(document: Item, entries: dict[str, Item]) -> str:
    """Which of the three a document is: hosts are lists, models have `layers`, device types have `bw_Mbps`."""
    for item in entries.values():
        if isinstance(item.value, list):
            return DEVICES
        fields = item.mapping("an entry")
        if "layers" in fields:
            return MODELS
        if "bw_Mbps" in fields:
            return DEVICE_TYPES
    raise InputError(
        f"{document.at}: neither models (with `layers`), nor device types (with `bw_Mbps`), nor lists of hosts: give "
        f"PipeEdge's {MODELS}, {DEVICE_TYPES} and {DEVICES}"
    )


def _field(item: Item, what: str, key: str) -> Item:
    fields = item.mapping(what)
    if key not in fields:
        raise InputError(f"{item.at}: {what} has no {key}: add it")
    return fields[key]


def _model(name: str, item: Item) -> Model:
    what = f"model {name!r}"
    count = _field(item, what, "layers").whole(f"{what}: layers", low=0, high=MAX_LAYERS)
    memory = _list(_field(item, what, "mem_MB"), f"{what}: mem_MB", count)
    out = _list(_field(item, what, "parameters_out"), f"{what}: parameters_out", count)
    return Model(
        name=name,
        memory_bytes=tuple(each.number(where, low=0, high=MAX_BYTES / MEGA) * MEGA for where, each in memory),
        elements_in=_field(item, what, "parameters_in").whole(f"{what}: parameters_in", low=0, high=MAX_COUNT),
        elements_out=tuple(each.whole(where, low=0, high=MAX_COUNT) for where, each in out),
        at=item.at,
    )


def _kind(name: str, item: Item) -> Kind:
    what = f"device type {name!r}"
    check_id(name, what, "")
    most = MAX_BANDWIDTH_BYTES_PER_S * 8 / MEGA
    profiles = _field(item, what, "model_profiles").mapping(f"{what}: model_profiles")
    return Kind(
        name=name,
        memory_bytes=_field(item, what, "mem_MB").number(f"{what}: mem_MB", low=0, high=MAX_BYTES / MEGA) * MEGA,
        bandwidth_bytes_per_s=_field(item, what, "bw_Mbps").number(f"{what}: bw_Mbps", low=0, high=most) * MEGA / 8,
        times={model: tuple(_times(f"{what}, model {model!r}", each)) for model, each in profiles.items()},
        at=item.at,
    )


def _times(what: str, item: Item) -> Iterator[Times]:
    for entry in item.sequence(what):
        seconds = _list(_field(entry, what, "time_s"), f"{what}: time_s", None)
        yield Times(
            batch_size=_field(entry, what, "batch_size").whole(f"{what}: batch_size", low=1, high=MAX_COUNT),
            dtype=_field(entry, what, "dtype").text(f"{what}: dtype").removeprefix(TORCH),
            seconds=tuple(each.number(where, low=0, high=MAX_SECONDS) for where, each in seconds),
            at=entry.at,
        )


def _hosts(entries: dict[str, Item]) -> dict[str, tuple[str, ...]]:
    found = {}
    for kind, item in entries.items():
        names = item.sequence(f"hosts of {kind!r}")
        if len(names) > MAX_HOSTS:
            raise InputError(f"{item.at}: {len(names)} hosts of {kind!r} (limit {MAX_HOSTS}): give fewer")
        found[kind] = tuple(str(name.value) for name in names if _is_host(name, kind))
    return found


def _is_host(item: Item, kind: str) -> bool:
    if not isinstance(item.value, str | int | float):
        raise InputError(f"{item.at}: a host of {kind!r} is no name: write it as text")
    check_id(str(item.value), f"{item.at}: a host of {kind!r}", "")
    return True


def _list(item: Item, what: str, count: int | None) -> list[tuple[str, Item]]:
    """The entries with their words for messages, when they are as many as there are layers."""
    found = item.sequence(what)
    if len(found) > MAX_LAYERS or (count is not None and len(found) != count):
        most = MAX_LAYERS if count is None else count
        raise InputError(f"{item.at}: {what} has {len(found)} entries: it must have {most}, one per layer")
    return [(f"{what}, entry {number}", each) for number, each in enumerate(found)]
