"""In which precision `pipeplan run` trains: what bytes per parameter and the profile's dtype mean together."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ExportError
from planner.problem import Problem
from planner.profile import DTYPE_BYTES

NUM_MOMENTS = 2
"""Values that AdamW holds per parameter."""
MASTER = "float32"
"""The dtype of master weights, and of their moments."""
ROUNDED = "bfloat16"
"""The dtype that master weights are rounded to. float16 would need its loss scaled: its gradients underflow."""
TRAINED = ("float64", "float32", ROUNDED)

BytesPerParameter = tuple[float, float, float]
"""Of weights, gradients and optimizer state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Weights and activations are of dtype `weights`, gradients are summed in dtype `gradients`.

    With `master` the optimizer updates float32 copies, and the weights are these rounded.
    """

    weights: str
    gradients: str
    master: bool = False


def precision_of(problem: Problem) -> Precision:
    """The precision that a training problem asks for; ExportError where `unknown_precision` has words."""
    wrong = unknown_precision(problem)
    if wrong:
        raise ExportError(f"the workload has {wrong}", pointer="/problem/workload")
    return _known(_dtype(problem))[_bytes(problem)]


def unknown_precision(problem: Problem) -> str:
    """What the bytes per parameter have that no training of ours holds, with the remedy; empty where they are known."""
    dtype, found = _dtype(problem), _bytes(problem)
    if problem.training is not None and problem.training.offload_optimizer:
        return "an optimizer state in the host's memory: keep it on the devices"
    if dtype not in TRAINED:
        return f"costs in {dtype}: use costs in {', '.join(TRAINED)}"
    known = _known(dtype)
    if found in known:
        return ""
    choices = "; ".join(f"{_words(each)} ({_meaning(known[each])})" for each in known)
    return f"{_words(found)} bytes per parameter for costs in {dtype}: use {choices}"


def _known(dtype: str) -> dict[BytesPerParameter, Precision]:
    size = float(DTYPE_BYTES[dtype])
    plain = {(size, size, NUM_MOMENTS * size): Precision(weights=dtype, gradients=dtype)}
    if dtype != ROUNDED:
        return plain
    state = float((1 + NUM_MOMENTS) * DTYPE_BYTES[MASTER])
    return plain | {
        (size, float(DTYPE_BYTES[gradients]), state): Precision(weights=dtype, gradients=gradients, master=True)
        for gradients in (MASTER, ROUNDED)
    }


def _dtype(problem: Problem) -> str:
    return problem.profiles[0].dtype


def _bytes(problem: Problem) -> BytesPerParameter:
    work = problem.training
    assert work is not None
    return work.weight_bytes_per_parameter, work.gradient_bytes_per_parameter, work.optimizer_bytes_per_parameter


def _words(found: BytesPerParameter) -> str:
    weights, gradients, optimizer = found
    return f"{weights:g} + {gradients:g} + {optimizer:g}"


def _meaning(precision: Precision) -> str:
    if not precision.master:
        return f"AdamW in {precision.weights}"
    return f"{precision.weights} with {MASTER} master weights, gradients in {precision.gradients}"
