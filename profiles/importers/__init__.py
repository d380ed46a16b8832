"""Importers: one file per foreign format."""

from profiles.importers.base import IMPORTERS, Importer, ImportOptions, read_text

__all__ = ["IMPORTERS", "ImportOptions", "Importer", "read_text"]
