"""The recorded models that ship with PipePlan (`profiles/data/models/*.json`): work without seconds, no torch."""

from __future__ import annotations

import difflib
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable

from planner import codec
from planner.errors import InputError
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.profile import DTYPE_BYTES
from profiles.model import LayerWork, ModelRecord


def record_names() -> tuple[str, ...]:
    """Names of the shipped records, sorted."""
    return tuple(
        sorted(entry.name.removesuffix(".json") for entry in _folder().iterdir() if entry.name.endswith(".json"))
    )


def load_record(name: str) -> ModelRecord:
    """The shipped record called `name`; InputError with near matches for an unknown name."""
    names = record_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or names
        raise InputError(f"no recorded model is called {name!r}: did you mean {', '.join(near)}?")
    return codec.loads(ModelRecord, _folder().joinpath(f"{name}.json").read_bytes())


def in_dtype(record: ModelRecord, dtype: str) -> ModelRecord:
    """The record as if parameters and activations were of another dtype: all bytes scaled, FLOPs unchanged.

    Approximate where a model mixes dtypes (float32 inside norms and loss); exact for parameters.
    """
    if dtype not in DTYPE_BYTES:
        raise InputError(f"unknown dtype {dtype!r}: use one of {', '.join(DTYPE_BYTES)}")
    old, new = DTYPE_BYTES[record.dtype], DTYPE_BYTES[dtype]
    if old == new:
        return replace(record, dtype=dtype)
    scale = _Scale(new, old)
    return replace(
        record,
        dtype=dtype,
        graph=scale.graph(record.graph),
        work={layer: scale.work(work) for layer, work in record.work.items()},
    )


class _Scale:
    """Multiplies byte counts by new/old, rounding up."""

    def __init__(self, new: int, old: int) -> None:
        self._new, self._old = new, old

    def bytes(self, count: int) -> int:
        return -(-count * self._new // self._old)

    def graph(self, graph: LayerGraph) -> LayerGraph:
        return replace(
            graph,
            layers=tuple(self._layer(layer) for layer in graph.layers),
            edges=tuple(self._edge(edge) for edge in graph.edges),
            tied=tuple(self._tied(tied) for tied in graph.tied),
        )

    def work(self, work: LayerWork) -> LayerWork:
        ratio = self._new / self._old
        return replace(
            work,
            forward_moved_bytes=work.forward_moved_bytes * ratio,
            backward_moved_bytes=work.backward_moved_bytes * ratio,
            weight_bytes=self.bytes(work.weight_bytes),
            activation_bytes=self.bytes(work.activation_bytes),
            workspace_bytes=self.bytes(work.workspace_bytes),
            gradient_workspace_bytes=self.bytes(work.gradient_workspace_bytes),
            selective_activation_bytes=self._known(work.selective_activation_bytes),
            selective_moved_bytes=work.selective_moved_bytes * ratio,
            sequence_activation_bytes=self.bytes(work.sequence_activation_bytes),
            weight_pass_bytes=self._known(work.weight_pass_bytes),
        )

    def _known(self, count: int | None) -> int | None:
        return None if count is None else self.bytes(count)

    def _layer(self, layer: Layer) -> Layer:
        return replace(
            layer,
            parameter_bytes=self.bytes(layer.parameter_bytes),
            replicated_parameter_bytes=self.bytes(layer.replicated_parameter_bytes),
            tensor_collective_bytes_per_sample=self.bytes(layer.tensor_collective_bytes_per_sample),
            expert_parameter_bytes=self.bytes(layer.expert_parameter_bytes),
            expert_dispatch_bytes_per_sample=self.bytes(layer.expert_dispatch_bytes_per_sample),
            context_bytes_per_sample=self.bytes(layer.context_bytes_per_sample),
            kv_bytes_per_token=self.bytes(layer.kv_bytes_per_token),
        )

    def _tied(self, tied: TiedParameters) -> TiedParameters:
        return replace(
            tied,
            parameter_bytes=self.bytes(tied.parameter_bytes),
            replicated_parameter_bytes=self.bytes(tied.replicated_parameter_bytes),
            expert_parameter_bytes=self.bytes(tied.expert_parameter_bytes),
        )

    def _edge(self, edge: Edge) -> Edge:
        """Tensors without gradient are masks and indices: their size stays."""
        return replace(edge, bytes_per_sample=self.bytes(edge.bytes_per_sample)) if edge.has_gradient else edge


def _folder() -> Traversable:
    return files("profiles").joinpath("data", "models")
