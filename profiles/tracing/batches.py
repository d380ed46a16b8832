"""Synthetic data of transformers models: how the tensors of one microbatch are drawn, and losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn


class Draw(Protocol):
    """Makes one tensor of a microbatch, the batch in dimension 0; on `meta` its shape only."""

    def __call__(self, batch_size: int, generator: torch.Generator, device: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Integers:
    """Random token ids or classes below `high`; `shape` is that of one sample."""

    high: int
    shape: tuple[int, ...] = ()

    def __call__(self, batch_size: int, generator: torch.Generator, device: str) -> torch.Tensor:
        shape = (batch_size, *self.shape)
        if device == "meta":
            return torch.zeros(shape, dtype=torch.long, device="meta")
        return torch.randint(self.high, shape, generator=generator)


@dataclass(frozen=True, slots=True)
class Values:
    """Normally distributed numbers: images, waveforms, spectrograms; `shape` is that of one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __call__(self, batch_size: int, generator: torch.Generator, device: str) -> torch.Tensor:
        shape = (batch_size, *self.shape)
        if device == "meta":
            return torch.empty(shape, dtype=self.dtype, device="meta")
        return torch.randn(shape, generator=generator).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`length` token ids: first `num_marks` times `mark`, which stands for an image or a sound, then random others."""

    high: int
    length: int
    mark: int
    num_marks: int

    def __call__(self, batch_size: int, generator: torch.Generator, device: str) -> torch.Tensor:
        text = Integers(self.high - 1, (self.length - self.num_marks,))(batch_size, generator, device)
        text = text + (text >= self.mark)  # any token but the mark
        marks = torch.full((batch_size, self.num_marks), self.mark, dtype=torch.long, device=device)
        return torch.cat([marks, text], dim=1)


@dataclass(frozen=True, slots=True)
class Positions:
    """The number of the sample itself: the target of a contrast of every sample with every other one."""

    def __call__(self, batch_size: int, generator: torch.Generator, device: str) -> torch.Tensor:
        return torch.arange(batch_size, device=device)


@dataclass(frozen=True, slots=True)
class Batch:
    """A model's microbatches: positional inputs, then the target, drawn in this order."""

    inputs: tuple[Draw, ...]
    target: Draw
    device: str

    def __call__(self, batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        inputs = tuple(draw(batch_size, generator, self.device) for draw in self.inputs)
        return inputs, self.target(batch_size, generator, self.device)


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over all positions, in float32: logits (..., classes), target (...)."""
    logits = output.flatten(0, -2)
    return nn.functional.cross_entropy(logits.float(), target.flatten())


def pixel_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over all pixels: logits (batch, classes, h, w), enlarged to the target (batch, H, W)."""
    logits = nn.functional.interpolate(output.float(), size=target.shape[-2:], mode="bilinear", align_corners=False)
    return nn.functional.cross_entropy(logits, target)


def frame_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over the frames that the model makes of a sound: logits (batch, frames, classes), target
    (batch, at least as many)."""
    return cross_entropy(output, target[:, : output.shape[1]])


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean square of the features (batch, ...), each sample's own against the target's (batch,) one number."""
    return (output.float().flatten(1) - target.unsqueeze(1)).square().mean()
