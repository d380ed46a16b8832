"""Plans read back from the formats of engines, one file each: what an exporter wrote, or what a user runs today."""

from profiles.layouts.base import LAYOUTS, LayoutReader, read_plan

__all__ = ["LAYOUTS", "LayoutReader", "read_plan"]
