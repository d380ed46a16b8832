"""Modules that are not followed inside, because torch.export cannot: each call is one operator of the trace.

Loops over the experts that were hit, branches on values, searches: what such a module does depends on the data. Its
shapes rarely do. They (and arguments that are read off data) are taken from one forward pass on real tensors; under
the export the module is then a single operator that reads its parameters and inputs, and in the trace that operator
runs the module itself, with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from planner.errors import InputError

OPERATOR = "pipeplan::whole"
_LIBRARY = torch.library.Library("pipeplan", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("whole(str key, Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A result of a module: what the export needs to know of it."""

    shape: torch.Size
    dtype: torch.dtype

    def empty(self, device: torch.device) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class WholeModule:
    """One module, called with its parameters and buffers first, then the tensors among its arguments.

    Returns the tensors among its results. The other arguments are those of the export.
    """

    __name__ = "whole"

    def __init__(self, name: str, module: nn.Module, inputs: tuple[list[Any], TreeSpec]) -> None:
        self._name, self._module = name, module
        self._state = list(_state(module))
        self._inputs, self._spec = inputs

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            raise InputError(
                f"module {self._name!r} is traced as a whole, because what it does depends on the data: its work "
                "cannot be counted from shapes, so measure the model on this machine (profile without --device)"
            )
        given = dict(zip(self._state, tensors, strict=False))
        args, kwargs = tree_unflatten(_filled(self._inputs, tensors[len(self._state) :]), self._spec)
        made = torch.func.functional_call(self._module, given, args, kwargs)
        return tuple(leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor))


class _Hole:
    """Stands for a tensor among arguments or results."""


class WholeModules:
    """The modules of some classes, kept whole while the model is exported."""

    def __init__(self, model: nn.Module, classes: set[type[nn.Module]]) -> None:
        self._modules = {name: m for name, m in model.named_modules() if type(m) in classes}
        self._results: dict[str, tuple[list[Any], TreeSpec]] = {}
        self._arguments: dict[str, list[Any]] = {}
        self.calls: dict[str, WholeModule] = {}

    def observe(self, run: Callable[[], object]) -> None:
        """Notes the modules' results in a run on real tensors. InputError where a module's results change shape."""
        hooks = [m.register_forward_hook(self._noting(name), with_kwargs=True) for name, m in self._modules.items()]
        try:
            with torch.no_grad():
                run()
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The modules' forward passes replaced by the operator."""
        originals = {name: module.forward for name, module in self._modules.items()}
        token = _SHAPES.copy()
        try:
            for name, module in self._modules.items():
                _SHAPES[name] = [leaf for leaf in self._results.get(name, ([], None))[0] if isinstance(leaf, _Shape)]
                module.forward = self._stand_in(name, module)
            yield
        finally:
            for name, module in self._modules.items():
                module.forward = originals[name]
            _SHAPES.clear()
            _SHAPES.update(token)

    def put_back(self, graph: fx.Graph) -> None:
        """Every such operator calls its module."""
        for node in graph.nodes:
            if getattr(node.target, "_schema", None) is not None and node.target._schema.name == OPERATOR:
                key, tensors = node.args
                node.target, node.args = self.calls[key], tuple(tensors)

    def _noting(self, name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._arguments[name] = tree_leaves((args, kwargs))
            leaves, spec = tree_flatten(output)
            made = ([_Shape(x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in leaves], spec)
            if self._results.setdefault(name, made) != made:
                raise InputError(
                    f"module {name!r} returns tensors of other shapes from call to call: it cannot be traced"
                )

        return note

    def _stand_in(self, name: str, module: nn.Module) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            holes = [_argument(*pair) for pair in zip(leaves, self._arguments[name], strict=True)]
            key = f"{name}@{len(self.calls)}"
            self.calls[key] = WholeModule(name, module, (holes, spec))
            made = torch.ops.pipeplan.whole(key, [*_state(module).values(), *tensors])
            results, shape = self._results[name]
            return tree_unflatten(_filled([_Hole() if isinstance(r, _Shape) else r for r in results], made), shape)

        return forward


_SHAPES: dict[str, list[_Shape]] = {}
"""Module -> its results, while it is exported."""


@torch.library.register_fake(OPERATOR, lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _shapes_only(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [shape.empty(tensors[0].device) for shape in _SHAPES[key.rpartition("@")[0]]]


def _argument(traced: Any, observed: Any) -> Any:
    """An argument that is no tensor; one that the export knows by a symbol only has the value of the observed run."""
    if isinstance(traced, torch.Tensor):
        return _Hole()
    return observed if isinstance(traced, (torch.SymBool, torch.SymInt, torch.SymFloat)) else traced


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _filled(leaves: list[Any], tensors: Any) -> list[Any]:
    """The leaves with each hole replaced by the next tensor."""
    given = iter(tensors)
    return [next(given) if isinstance(leaf, _Hole) else leaf for leaf in leaves]
