"""Exporters: plans written for engines and viewers, one file each."""

from planner.exporters.base import EXPORTERS, ExportContext, Exporter

__all__ = ["EXPORTERS", "ExportContext", "Exporter"]
