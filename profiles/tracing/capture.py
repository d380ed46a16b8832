"""torch.export of a model into a plain `fx.GraphModule` with the model's own parameters."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from planner.errors import InputError
from planner.runtime.program import RunnableModel
from profiles.tracing.exported import ExportedModel
from profiles.tracing.grouped import run_natively
from profiles.tracing.regions import inline_regions
from profiles.tracing.specialise import specialise
from profiles.tracing.whole import WholeModules

ASSERTIONS = ("aten::_assert_tensor_metadata", "aten::sym_constrain_range", "aten::_assert_scalar")
"""Operators that only check what the trace already fixed: they are dropped."""


def capture(runnable: RunnableModel, batch_size: int, *, keep_whole: bool = True) -> fx.GraphModule:
    """The model's operators as a flat graph: positional tensors in, one tensor out.

    Parameters and buffers are those of `runnable.model` (the same objects under the same names), so that training
    the result trains the model. Works with real, meta and fake tensors. The model is left as `make_deterministic`
    leaves it. A module that torch.export cannot follow is one operator with `keep_whole` (and all others of its class;
    real tensors only, see `profiles.tracing.whole`). InputError without it, or when the model's own forward cannot be
    followed; the message names the module and the line.
    """
    if isinstance(runnable.model, ExportedModel):
        return _of_exported(runnable, runnable.model, batch_size)
    make_deterministic(runnable.model)
    inputs, _ = runnable.make_batch(batch_size, 0)
    kept: set[type[nn.Module]] = set()
    while True:
        whole = WholeModules(runnable.model, kept)
        if kept:
            whole.observe(lambda: runnable.model(*inputs))
        made = _export(runnable, inputs, whole)
        if isinstance(made, torch.export.ExportedProgram):
            return _flatten(_module(made), runnable, whole)
        kept.add(_to_keep(runnable, made, kept, keep_whole=keep_whole))


def _of_exported(runnable: RunnableModel, model: ExportedModel, batch_size: int) -> fx.GraphModule:
    """The operators of a program that was exported elsewhere, as it was: in evaluation mode or in training."""
    if model.batch_size not in (None, batch_size):
        raise InputError(
            f"program {runnable.name!r} was exported for batches of {model.batch_size}, {batch_size} is asked: use "
            "that microbatch size, or export it with a dynamic batch (dynamic_shapes)"
        )
    flat = _flatten(model.fresh(), runnable, WholeModules(model, set()))
    if model.batch_size is None:
        specialise(flat, runnable.make_batch(batch_size, 0)[0])
    return flat


def make_deterministic(model: nn.Module) -> None:
    """Training without chance: same input, same output, and gradients for every parameter.

    Everything is in evaluation mode (dropout, stochastic depth and layer drop are off) except normalisation with
    running statistics: it normalises with the statistics of the microbatch, as in training. In-place activations
    are made out of place, so that no layer changes what another one keeps.
    """
    model.eval()
    for module in model.modules():
        if getattr(module, "track_running_stats", False) and hasattr(module, "running_mean"):
            module.train()
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The innermost module that ran when the export failed, and why it did."""

    module: str
    fault: Exception


def _export(
    runnable: RunnableModel, inputs: tuple[torch.Tensor, ...], whole: WholeModules
) -> torch.export.ExportedProgram | _Refusal:
    with _ModuleStack(runnable.model) as stack, warnings.catch_warnings(), whole.in_place():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(runnable.model, inputs, strict=False)
        except Exception as fault:
            return _Refusal(stack.innermost, fault)


def _to_keep(
    runnable: RunnableModel, refusal: _Refusal, kept: set[type[nn.Module]], *, keep_whole: bool
) -> type[nn.Module]:
    """The class of the module that was refused, if it can be kept whole; else InputError."""
    made = type(runnable.model.get_submodule(refusal.module))
    if made is type(runnable.model) or made in kept:
        remedy = (
            "make that module's shapes and control flow independent of the data; no grain helps, the model's own "
            "forward is refused"
        )
    elif not keep_whole:
        remedy = "trace with the coarser grain 'module' or 'block', which run that module as a whole"
    elif any(parameter.is_meta for parameter in runnable.model.parameters()):
        remedy = (
            "it can run as a whole only, which shapes alone cannot: measure the model on this machine (profile without "
            "--device)"
        )
    else:
        return made
    raise InputError(_explain(runnable, refusal, remedy)) from refusal.fault


def _explain(runnable: RunnableModel, refusal: _Refusal, remedy: str) -> str:
    fault = refusal.fault
    first_line = (str(fault).strip().splitlines() or [""])[0][:300]
    return (
        f"model {runnable.name!r} cannot be traced: module {refusal.module or '(top)'!r} fails at {_operator(fault)} "
        f"with {type(fault).__name__}: {first_line}; {remedy}"
    )


def _operator(fault: Exception) -> str:
    """The last line of model code (outside torch) in the traceback: where the operator is called."""
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if "/torch/" not in f.filename.replace("\\", "/")]
    if not frames:
        return "an unknown line"
    last = frames[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno} `{(last.line or last.name)[:120]}`"


class _ModuleStack:
    """Follows which submodule runs, to name it when the export fails."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._running: list[str] = []
        self._hooks: list[RemovableHandle] = []

    @property
    def innermost(self) -> str:
        return self._running[-1] if self._running else ""

    def __enter__(self) -> _ModuleStack:
        for module in self._model.modules():
            self._hooks.append(module.register_forward_pre_hook(self._enter))
            self._hooks.append(module.register_forward_hook(self._leave))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._running.append(self._names.get(id(module), ""))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()


def _module(exported: torch.export.ExportedProgram) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return exported.module()


def _flatten(module: fx.GraphModule, runnable: RunnableModel, whole: WholeModules) -> fx.GraphModule:
    """Drops guards, assertions and dead operators; one flat signature, one output tensor."""
    graph = module.graph
    for node in reversed(graph.nodes):
        if node.op == "call_module" or (node.op == "call_function" and _name(node) in ASSERTIONS):
            graph.erase_node(node)
    output = graph.output_node()
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    if len(results) != 1 or not isinstance(results[0], fx.Node):
        raise InputError(
            f"model {runnable.name!r} returns {len(results)} values: wrap it so that forward returns one tensor "
            "(for transformers models: the logits)"
        )
    output.args = (results[0],)
    graph.set_codegen(fx.graph.CodeGen())
    inline_regions(module)
    graph.eliminate_dead_code(_has_effect)
    whole.put_back(graph)
    run_natively(graph, runnable.model)
    _name_tied_parameters(graph, runnable.model)
    for node in reversed(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    flat = fx.GraphModule(module, graph, class_name="Traced")
    flat.train()
    return flat


def _has_effect(node: fx.Node) -> bool:
    """Whether an operator matters even if nobody reads its result. Random ones do not: dropout is off."""
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def _name_tied_parameters(graph: fx.Graph, model: nn.Module) -> None:
    """Each operator reads a shared parameter under the name of its own module, else under the model's first name.

    The export reads it under one arbitrary name everywhere (GPT-2's embedding as `lm_head.weight`).
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    aliases = {name: tied for tied in names.values() if len(tied) > 1 for name in tied}
    for node in [n for n in graph.nodes if n.op == "get_attr" and n.target in aliases]:
        for user in list(node.users):
            own = [name for name in aliases[node.target] if name.rpartition(".")[0] == _module_path(user)]
            with graph.inserting_before(node):
                copy = graph.get_attr(own[0] if own else aliases[node.target][0])
            copy.meta = dict(node.meta)
            user.replace_input_with(node, copy)


def _module_path(node: fx.Node) -> str:
    stack: dict[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack.values()))[0] if stack else ""


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name if schema is not None else str(node.target)
