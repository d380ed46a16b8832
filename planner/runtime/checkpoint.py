"""Checkpoints: each stage saves and loads its part, under the model's own names, so that any plan continues any other.

A checkpoint is a folder:

    checkpoint.json                  {"step": 6, "parts": ["step-6.stage-0.pt", "step-6.stage-1.pt"]}
    step-6.stage-0.pt                {"model": state dict, "optimizer": {parameter name: AdamW's state}}

The parts' `model` entries together are the state dict of the whole model (`state_dict`). A tied parameter stands under
all its names. Where a plan trains float32 copies of its weights it is these that are saved; loading rounds. `step` is
the number of steps trained so far, and of the next batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from planner.runtime.updates import Updates

INDEX = "checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What a folder's checkpoint consists of."""

    step: int
    parts: tuple[str, ...]


def read_index(folder: Path) -> Index:
    """InputError where the folder holds no checkpoint."""
    try:
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        index = Index(step=int(found["step"]), parts=tuple(map(str, found["parts"])))
    except FileNotFoundError:
        raise InputError(f"{folder} holds no checkpoint: name a folder of `run --save`", pointer="/load") from None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise InputError(f"{folder / INDEX} cannot be read ({fault}): save it again", pointer="/load") from None
    missing = next((name for name in index.parts if Path(name).name != name or not (folder / name).is_file()), None)
    if missing is not None:
        raise InputError(f"{folder} lacks the part {missing!r} of its checkpoint: save it again", pointer="/load")
    return index


def write_index(folder: Path, step: int, num_stages: int) -> None:
    """Call it when all parts are written. Parts of older checkpoints in the folder are removed."""
    parts = [part_name(step, stage) for stage in range(num_stages)]
    index = {"step": step, "parts": parts}
    _replace(folder / INDEX, lambda path: path.write_text(json.dumps(index) + "\n", encoding="utf-8"))
    for old in folder.glob("step-*.stage-*.pt"):
        if old.name not in parts:
            old.unlink(missing_ok=True)


def part_name(step: int, stage: int) -> str:
    """The file of a stage."""
    return f"step-{step}.stage-{stage}.pt"


def entries_of(part: nn.Module, model: nn.Module, updates: Updates) -> dict[str, Any]:
    """Weights, buffers and optimizer state of one stage. Collective among its replicas, which may divide them."""
    names = _names(part, model)
    states = {name: updates.state(tensor) for name, tensor in names.items()}
    return {
        "model": {name: updates.weights(tensor) for name, tensor in names.items()},
        "optimizer": {name: state for name, state in states.items() if state},
    }


def save_part(folder: Path, step: int, stage: int, entries: Mapping[str, Any]) -> None:
    """Write a stage's file."""
    import torch

    _replace(folder / part_name(step, stage), lambda path: torch.save(entries, path))


def load_parts(folder: Path, parts: Iterable[nn.Module], model: nn.Module, updates: Updates | None) -> None:
    """Give these stages' weights, buffers and optimizer state what the checkpoint has under their names.

    InputError for a name that it lacks, or that has another shape.
    """
    saved = _opened(folder)
    for part in parts:
        for name, own in _names(part, model).items():
            weights, state = saved.get(name, (None, None))
            if weights is None or weights.shape != own.shape:
                what = "lacks" if weights is None else f"has the shape {tuple(weights.shape)} for"
                raise InputError(f"the checkpoint {folder} {what} {name!r}, which is {tuple(own.shape)} in the model")
            if updates is None:
                own.data.copy_(weights)
            else:
                updates.load(own, weights, state)


def state_dict(folder: Path) -> dict[str, torch.Tensor]:
    """The whole model's: `model.load_state_dict(state_dict(folder))`."""
    return {name: weights for name, (weights, _) in _opened(folder).items()}


def _opened(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Name -> tensor and optimizer state. The files are mapped: what nobody reads is not loaded."""
    import torch

    found: dict[str, tuple[Any, Any]] = {}
    for name in read_index(folder).parts:
        part = torch.load(folder / name, weights_only=True, mmap=True)
        found |= {key: (tensor, part["optimizer"].get(key)) for key, tensor in part["model"].items()}
    return found


def _names(part: nn.Module, model: nn.Module) -> dict[str, torch.Tensor]:
    """All names under which the stage's parameters and buffers stand in the model's state dict."""
    own = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in own}


def _replace(path: Path, write: Any) -> None:
    """A reader sees the old file or the whole new one."""
    unfinished = path.with_suffix(".unfinished")
    write(unfinished)
    unfinished.replace(path)
