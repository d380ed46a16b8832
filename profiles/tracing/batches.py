"""Synthetic data of transformers models, and their loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Random token ids and, as target, a class per token (`per_token`) or per sample. `num_inputs` id tensors."""

    vocabulary: int
    sequence_length: int
    num_classes: int
    device: str
    per_token: bool = True
    num_inputs: int = 1

    def __call__(self, batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        shape = (batch_size, self.sequence_length)
        generator = torch.Generator().manual_seed(seed)
        inputs = tuple(_integers(self.vocabulary, shape, generator, self.device) for _ in range(self.num_inputs))
        target_shape = shape if self.per_token else (batch_size,)
        return inputs, _integers(self.num_classes, target_shape, generator, self.device)


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Random images (batch, channels, height, width) and a class per image."""

    channels: int
    size: tuple[int, int]
    num_classes: int
    dtype: torch.dtype
    device: str

    def __call__(self, batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        shape = (batch_size, self.channels, *self.size)
        generator = torch.Generator().manual_seed(seed)
        if self.device == "meta":
            images = torch.empty(shape, dtype=self.dtype, device="meta")
        else:
            images = torch.randn(shape, generator=generator).to(self.dtype)
        return (images,), _integers(self.num_classes, (batch_size,), generator, self.device)


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over all positions, in float32: logits (..., classes), target (...)."""
    logits = output.flatten(0, -2)
    return nn.functional.cross_entropy(logits.float(), target.flatten())


def _integers(high: int, shape: tuple[int, ...], generator: torch.Generator, device: str) -> torch.Tensor:
    if device == "meta":
        return torch.zeros(shape, dtype=torch.long, device="meta")
    return torch.randint(high, shape, generator=generator)
