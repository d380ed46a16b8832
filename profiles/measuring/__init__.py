"""What layers cost: seconds and bytes on this machine, or FLOPs and bytes on fake tensors. Needs the `torch` extra."""

from profiles.measuring.measure import measure

__all__ = ["measure"]
