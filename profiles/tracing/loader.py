"""`TraceLoader`: the recipe of a traced program, small enough to send to every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planner.runtime.program import RunnableModel, TracedProgram
from profiles.model import Grain
from profiles.tracing.exported import ExportedModel, from_exported
from profiles.tracing.factory import from_factory
from profiles.tracing.trace import trace
from profiles.tracing.transformers_source import from_transformers_config


class SourceKind(StrEnum):
    """What `TraceLoader.source` names."""

    TRANSFORMERS = "transformers"
    FACTORY = "factory"
    EXPORTED = "exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLoader:
    """Builds and traces a model for a batch size; a `ProgramLoader`.

    Picklable, and the same everywhere: equal loaders give equal weights, layer ids and tensor names in every process.
    `source` is a `config.json` (path or its values), `module:factory` or an exported program (path), by `kind`.
    `sequence_length`, `dtype` and `device` apply to transformers configurations; the others decide them themselves.
    """

    source: str | Mapping[str, Any]
    kind: SourceKind = SourceKind.TRANSFORMERS
    sequence_length: int | None = None
    grain: Grain = Grain.BLOCK
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"

    def __call__(self, batch_size: int) -> TracedProgram:
        """The traced program for microbatches of `batch_size`."""
        return trace(self.runnable(), batch_size, self.grain)

    def smallest_batch_size(self) -> int:
        """1, except for a program that was exported for batches of one size."""
        model = self.runnable().model if self.kind is SourceKind.EXPORTED else None
        return (model.batch_size or 1) if isinstance(model, ExportedModel) else 1

    def runnable(self) -> RunnableModel:
        """The model with its data and loss, untraced."""
        if self.kind is SourceKind.FACTORY:
            return from_factory(str(self.source), seed=self.seed)
        if self.kind is SourceKind.EXPORTED:
            return from_exported(str(self.source))
        return from_transformers_config(
            self.source,
            sequence_length=self.sequence_length,
            device=self.device,
            dtype=self.dtype,
            seed=self.seed,
        )
