"""Runnable models from a user's Python function, named `module:factory`. Runs that code: command line only."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from planner.errors import InputError
from planner.runtime.program import RunnableModel


def from_factory(source: str, *, seed: int = 0) -> RunnableModel:
    """The model that `module:factory` makes: calls `factory()` with torch seeded by `seed`.

    The factory returns a `RunnableModel`, or a tuple (model, make_batch, loss) with the meaning of its fields. The
    module is looked for in the working directory too. InputError for whatever is missing or of the wrong type.
    """
    factory = _find(source)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = factory()
        except Exception as fault:
            raise InputError(f"factory {source!r} failed with {type(fault).__name__}: {fault}") from fault
    return _runnable(made, source)


def _find(source: str) -> Callable[[], Any]:
    module_name, colon, name = source.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"{source!r} is no factory: write module:function, for example my_models:make_gpt")
    try:
        with _working_directory_importable():
            module = importlib.import_module(module_name)
    except Exception as fault:
        raise InputError(f"module {module_name!r} cannot be imported: {type(fault).__name__}: {fault}") from fault
    factory = getattr(module, name, None)
    if not callable(factory):
        state = "has no" if factory is None else "has a non-callable"
        raise InputError(f"module {module_name!r} {state} {name!r}: name a function without arguments")
    return factory  # type: ignore[no-any-return]


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _runnable(made: Any, source: str) -> RunnableModel:
    if isinstance(made, tuple) and len(made) == 3:
        model, make_batch, loss = made
        made = RunnableModel(name=source.partition(":")[2], model=model, make_batch=make_batch, loss=loss)
    if not isinstance(made, RunnableModel):
        raise InputError(
            f"factory {source!r} returned a {type(made).__name__}: return a RunnableModel or (model, make_batch, loss)"
        )
    _check(made, source)
    return made


def _check(runnable: RunnableModel, source: str) -> None:
    if not isinstance(runnable.model, nn.Module):
        raise InputError(
            f"factory {source!r}: model is a {type(runnable.model).__name__}, it must be a torch nn.Module"
        )
    for field in ("make_batch", "loss"):
        if not callable(getattr(runnable, field)):
            raise InputError(f"factory {source!r}: {field} is not callable: give a function")
    try:
        inputs, target = runnable.make_batch(2, 0)
    except Exception as fault:
        raise InputError(f"factory {source!r}: make_batch(2, 0) failed: {type(fault).__name__}: {fault}") from fault
    for value in (*inputs, target):
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[0] != 2:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"factory {source!r}: make_batch(2, 0) returned {shape}: every tensor must have the batch (2) in "
                "dimension 0"
            )
