"""Models that can be built here, and how: from a transformers configuration, a `module:factory`, an exported program.

Nothing here imports torch until a model is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import codec
from planner.errors import InputError
from profiles.model import Grain, ModelRecord, ModelSource

if TYPE_CHECKING:
    from profiles.tracing import TraceLoader

CONFIGURATION = "config.json"
EXPORTED_SUFFIX = ".pt2"
"""Of files that `torch.export.save` writes."""
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_factory(name: str) -> bool:
    """Whether a source is written as `module:factory`."""
    return _FACTORY.fullmatch(name) is not None


def is_exported(name: str) -> bool:
    """Whether a source is the file of an exported program."""
    return name.endswith(EXPORTED_SUFFIX) and Path(name).is_file()


def is_configuration(text: str) -> bool:
    """Whether text looks like a transformers configuration: a JSON object that names a model type, not one of ours."""
    head = text[:65_536].lstrip("\ufeff \t\r\n")
    return head.startswith("{") and '"model_type"' in text and '"document"' not in head


def model_source(
    name: str,
    *,
    text: str | None = None,
    sequence_length: int | None = None,
    dtype: str = "float32",
    grain: Grain = Grain.BLOCK,
    seed: int = 0,
) -> ModelSource:
    """The recipe of a `config.json` (or its folder), of `module:factory`, or of an exported program.

    It holds the configuration's values, so that it works in another folder too; `text` is the configuration where it
    was read already. A factory's module is imported when the model is built, not here.
    """
    if text is None and is_factory(name) and not Path(name).exists():
        return ModelSource(kind="factory", reference=name, grain=grain, seed=seed)
    if text is None and is_exported(name):
        return ModelSource(kind="exported", reference=name, grain=grain, seed=seed)
    path = Path(name) / CONFIGURATION if Path(name).is_dir() else Path(name)
    values = codec.parse(_read(path) if text is None else text)
    if not isinstance(values, Mapping) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{name!r} is no transformers configuration: it has no 'model_type'")
    return ModelSource(
        kind="transformers",
        reference=path.name,
        config=dict(values),
        sequence_length=sequence_length,
        dtype=dtype,
        grain=grain,
        seed=seed,
    )


def loader_of(source: ModelSource, device: str = "cpu") -> TraceLoader:
    """What builds and traces the model, on `cpu` or as shapes only on `meta`. InputError when torch is missing."""
    if find_spec("torch") is None:
        raise InputError(
            f"{source.reference!r} must be built with torch, which is not installed: pip install 'pipeplan[torch]', or "
            "give a recorded model or a profile"
        )
    from profiles.tracing import SourceKind, TraceLoader

    reference: Any = source.config if source.kind == "transformers" else source.reference
    if reference is None:
        raise InputError(f"the recipe of {source.reference!r} holds no configuration: plan again from its config.json")
    return TraceLoader(
        source=reference,
        kind=SourceKind(source.kind),
        sequence_length=source.sequence_length,
        grain=source.grain,
        seed=source.seed,
        dtype=source.dtype,
        device=device,
    )


def record_of(source: ModelSource) -> ModelRecord:
    """The model's work, traced as shapes only where that is possible (a factory decides about its device itself)."""
    loader = loader_of(source, device="meta")
    from profiles.measuring.record import record

    return record(loader(loader.smallest_batch_size()), dtype=source.dtype, sequence_length=source.sequence_length)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise InputError(f"{str(path)!r} cannot be read ({fault.strerror}): give a {CONFIGURATION}") from None
