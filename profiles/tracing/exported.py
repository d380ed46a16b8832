"""Runnable models from exported programs (`torch.export.save`, `.pt2`). Loads pickled data: command line only.

The program's operators are the trace; nothing is exported again. What they say of their modules gives the layers. The
example inputs in the file are the data, and the loss is the mean square of the output (a program has none of its own).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from planner.errors import InputError
from planner.runtime.program import RunnableModel
from profiles.tracing.batches import Values, mean_square


class ExportedModel(nn.Module):
    """The modules that an exported program came from, with its parameters; called, it runs the program.

    Children that are numbered stand in a `ModuleList`, so that repeated blocks are found as in the original.
    """

    flat: fx.GraphModule

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self.__dict__["flat"] = _loaded(program)  # no child: its parameters are ours
        _tie(self.flat)
        for name, parameter in self.flat.named_parameters(remove_duplicate=False):
            _put(self, name, parameter)
        for name, buffer in self.flat.named_buffers():
            _put(self, name, buffer)
        _number_lists(self)
        _name_classes(self, self.flat.graph)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.flat(*inputs)

    def fresh(self) -> fx.GraphModule:
        """The program's operators as a graph of its own, on our parameters."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.flat.graph, {}))
        return fx.GraphModule(self.flat, graph)

    @property
    def batch_size(self) -> int | None:
        """The only batch size that the program takes; None where it takes any."""
        sizes = [node.meta["val"].shape[0] for node in self.flat.graph.nodes if node.op == "placeholder"]
        fixed = [size for size in sizes if isinstance(size, int)]
        return fixed[0] if fixed else None


def from_exported(source: str) -> RunnableModel:
    """The model of an exported program. InputError when the file is none, or has no example inputs of one batch."""
    path = Path(source)
    if not path.is_file():
        raise InputError(f"{source!r} is no file: give a program that torch.export.save wrote")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
    except Exception as fault:
        raise InputError(
            f"{source!r} is no exported program that torch {torch.__version__} can load "
            f"({type(fault).__name__}: {str(fault)[:200]}): write it with torch.export.save"
        ) from fault
    examples = _examples(program, source)
    return RunnableModel(name=path.stem, model=ExportedModel(program), make_batch=_Rows(examples), loss=mean_square)


class _Rows:
    """Microbatches of rows of the example inputs, from row `seed` on and over again."""

    def __init__(self, examples: list[torch.Tensor]) -> None:
        self._examples = examples

    def __call__(self, batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        with unset_fake_temporarily():
            rows = (torch.arange(batch_size) + seed) % self._examples[0].shape[0]
            target = Values((), torch.float32)(batch_size, torch.Generator().manual_seed(seed), "cpu")
            return tuple(example[rows] for example in self._examples), target


def _examples(program: ExportedProgram, source: str) -> list[torch.Tensor]:
    examples = tree_leaves(program.example_inputs or ())
    if not examples or not all(isinstance(e, torch.Tensor) and e.dim() > 0 for e in examples):
        raise InputError(f"{source!r} holds no example inputs that are all tensors: export it with tensors as inputs")
    if len({example.shape[0] for example in examples}) > 1:
        raise InputError(f"the example inputs of {source!r} differ in dimension 0: it must be the batch in each")
    return examples


def _loaded(program: ExportedProgram) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.module()


def _tie(module: nn.Module) -> None:
    """Parameters that share their memory become one again: loading makes two of them."""
    first: dict[tuple[int, torch.Size], nn.Parameter] = {}
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        kept = first.setdefault((parameter.data_ptr(), parameter.shape), parameter)
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._parameters[last] = kept


def _put(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """The parameter or buffer under its name, in modules made on the way."""
    owner, _, last = name.rpartition(".")
    for part in owner.split(".") if owner else []:
        if part not in model._modules:
            model.add_module(part, nn.Module())
        model = model._modules[part]  # type: ignore[assignment]
    if isinstance(value, nn.Parameter):
        model.register_parameter(last, value)
    else:
        model.register_buffer(last, value)


def _number_lists(model: nn.Module) -> None:
    """Every module whose children are all numbered becomes a `ModuleList` of them."""
    for name, child in list(model.named_children()):
        _number_lists(child)
        names = [inner for inner, _ in child.named_children()]
        if names and all(inner.isdigit() for inner in names):
            numbered = nn.ModuleList()
            for inner, module in child.named_children():
                numbered.add_module(inner, module)
            for held, parameter in child.named_parameters(recurse=False):
                numbered.register_parameter(held, parameter)
            model._modules[name] = numbered


def _name_classes(model: nn.Module, graph: fx.Graph) -> None:
    """The modules get the names of the classes that they had."""
    stacks = (node.meta.get("nn_module_stack") or {} for node in graph.nodes)
    names = {path: str(kind).rpartition(".")[2] for stack in stacks for path, kind in stack.values() if path}
    for path, module in model.named_modules():
        if path in names:
            module.__class__ = type(names[path], (type(module),), {})
