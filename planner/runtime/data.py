"""Which samples a replica sees: its share of every microbatch."""

from __future__ import annotations

import torch

Batch = tuple[tuple[torch.Tensor, ...], torch.Tensor]


def share(tensor: torch.Tensor, num_microbatches: int, replica: int, num_replicas: int) -> torch.Tensor:
    """The samples of `replica`: of each microbatch its equal part, microbatch by microbatch.

    With 2 microbatches and 2 replicas, replica 0 of samples 0..7 gets 0, 1, 4, 5 and replica 1 gets 2, 3, 6, 7.
    """
    if num_replicas == 1:
        return tensor
    parts = tensor.reshape(num_microbatches, num_replicas, -1, *tensor.shape[1:])
    return parts[:, replica].flatten(0, 1)


def share_batch(batch: Batch, num_microbatches: int, replica: int, num_replicas: int) -> Batch:
    """`share` of every input and of the target."""
    inputs, target = batch
    return (
        tuple(share(tensor, num_microbatches, replica, num_replicas) for tensor in inputs),
        share(target, num_microbatches, replica, num_replicas),
    )
