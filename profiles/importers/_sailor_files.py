"""Sailor's JSON files as they are: times per GPU, sizes per model, training configurations; every number checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any, ClassVar

from planner import codec
from planner.checks import MAX_BYTES, MAX_COUNT, MAX_SECONDS, check_id
from planner.errors import InputError

PROFILE, SIZES, CONFIGURATION = "profile.json", "llm_info.json", "training_config"
PARTS = ("forward", "backward", "update")
MAX_LAYERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """One layer at one tensor degree, for one sample: floats and bytes of parameters, outputs and what is kept."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore", "allow_inf_nan": False, "strict": True}

    params_floats: int
    params_bytes: int
    act_output_bytes: int
    act_mem_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a training configuration says about the batch."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore", "allow_inf_nan": False, "strict": True}

    model: str
    global_batch_size: int
    sequence_length: int


Times = tuple[tuple[float, float, float], ...]
"""Per layer: seconds of forward, backward and update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorFiles:
    """Times by model, GPU and (microbatch size, tensor degree); sizes by model and tensor degree."""

    times: dict[str, dict[str, dict[tuple[int, int], Times]]] = field(default_factory=dict)
    sizes: dict[str, dict[int, tuple[Sizes, ...]]] = field(default_factory=dict)
    configurations: dict[str, Configuration] = field(default_factory=dict)


def is_sailor_file(path: str) -> bool:
    """Whether a path is one of the files: `MODEL/GPU/profile.json`, `llm_info.json`, `training_config*.json`."""
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    of_gpu = name == PROFILE and len(parts) > 2
    return of_gpu or name == SIZES or (name.startswith(CONFIGURATION) and name.endswith(".json"))


def read_files(files: Mapping[str, bytes]) -> SailorFiles:
    """All files; InputError with the file and the field."""
    found = SailorFiles()
    for path, content in files.items():
        try:
            _read(found, PurePosixPath(path), codec.parse(content))
        except InputError as fault:
            raise InputError(f"{path}: {fault}", pointer=fault.pointer) from None
    return found


def _read(found: SailorFiles, path: PurePosixPath, values: Any) -> None:
    if path.name == PROFILE:
        model, gpu = path.parts[-3:-1]
        check_id(model, "the model's folder", "")
        check_id(gpu, "the GPU's folder", "")
        found.times.setdefault(model, {})[gpu] = _times(values)
    elif path.name == SIZES:
        found.sizes.update({name: _sizes(of_model, f"/{name}") for name, of_model in _object(values, "").items()})
    else:
        configuration = codec.decode(Configuration, values)
        _check(configuration.global_batch_size, "global_batch_size", "/global_batch_size", MAX_COUNT, low=1)
        _check(configuration.sequence_length, "sequence_length", "/sequence_length", MAX_COUNT, low=1)
        found.configurations.setdefault(configuration.model, configuration)


def _times(values: Any) -> dict[tuple[int, int], Times]:
    found = {}
    for size, of_size in _object(values, "").items():
        for degree, of_degree in _object(of_size, f"/{size}").items():
            at = f"/{size}/{degree}"
            layers = _in_order(_object(of_degree, at), at)
            key = _count(size, "microbatch size", at), _count(degree, "tensor degree", at)
            found[key] = tuple(_triple(each, f"{at}/{number}") for number, each in enumerate(layers))
    return found


def _triple(value: Any, at: str) -> tuple[float, float, float]:
    if not isinstance(value, list) or len(value) != len(PARTS):
        raise InputError(f"{at[1:]} is {str(value)[:60]!r}: it must be three numbers, {', '.join(PARTS)}", pointer=at)
    for part, seconds in zip(PARTS, value, strict=True):
        _check(seconds, f"{at[1:]}: {part}", at, MAX_SECONDS)
    return float(value[0]), float(value[1]), float(value[2])


def _sizes(values: Any, at: str) -> dict[int, tuple[Sizes, ...]]:
    found = {}
    for degree, of_degree in _object(values, at).items():
        here = f"{at}/{degree}"
        layers = tuple(codec.decode(Sizes, each) for each in _in_order(_object(of_degree, here), here))
        for number, layer in enumerate(layers):
            for name in (each.name for each in fields(Sizes)):
                _check(getattr(layer, name), f"{here[1:]}/{number}: {name}", f"{here}/{number}/{name}", MAX_BYTES)
        found[_count(degree, "tensor degree", here)] = layers
    return found


def _in_order(layers: dict[str, Any], at: str) -> list[Any]:
    """The values under "0", "1", ..., which must all be there."""
    if not layers or len(layers) > MAX_LAYERS:
        raise InputError(f"{at[1:]} has {len(layers)} layers: give between 1 and {MAX_LAYERS}", pointer=at)
    for number in range(len(layers)):
        if str(number) not in layers:
            raise InputError(f"{at[1:]} has {len(layers)} layers and none called {number}: number them", pointer=at)
    return [layers[str(number)] for number in range(len(layers))]


def _object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{at[1:] or 'the file'} is {str(value)[:60]!r}: it must be a JSON object", pointer=at)
    return value


def _count(text: str, what: str, at: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    _check(value, f"{at[1:]}: {what}", at, MAX_COUNT, low=1)
    return value


def _check(value: Any, what: str, at: str, high: float, *, low: float = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{what} is {str(value)[:60]!r}: it must be between {low:g} and {high:g}", pointer=at)
