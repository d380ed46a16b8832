"""The protocol of importers: foreign text in, a profiled model out.

What an importer reads is untrusted. It checks every number that it uses and names the line or the field of what is
wrong; graph-wide checks (cycles, unknown ids) are `Problem`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.errors import InputError
from planner.registry import Registry
from profiles.model import ModelRecord, ProfiledModel

UNNAMED_DEVICE = "unnamed"
"""Device type of a profile whose file does not say where it was measured."""
SNIFFED_BYTES = 65_536
"""How much of a file's beginning `sniff` gets to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What a file leaves open. `device_type` names the device that the costs were measured on; `minibatch_size` is
    the number of samples behind its figures where the format counts per minibatch."""

    device_type: str | None = None
    minibatch_size: int = 1


class Importer(Protocol):
    """One foreign format. `name` is what `--format` takes."""

    name: str

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (at most 64 KiB) is in this format. Never raises."""

    def read(self, text: str, options: ImportOptions) -> ProfiledModel | ModelRecord:
        """The model in `text`; InputError that names the line or the field of what is wrong."""


IMPORTERS: Registry[Importer] = Registry("format", "profiles.importers")


def read_text(
    text: str, *, format: str | None = None, options: ImportOptions | None = None
) -> ProfiledModel | ModelRecord:
    """The model in `text`, in the named format or in the one that it looks like."""
    importer = IMPORTERS[format] if format else sniffed(text)
    return importer.read(text.removeprefix("\ufeff"), options or ImportOptions())


def sniffed(text: str) -> Importer:
    """The importer whose format the text looks like; InputError when there is none."""
    head = text[:SNIFFED_BYTES].removeprefix("\ufeff").encode(errors="replace")[:SNIFFED_BYTES]
    for importer in IMPORTERS:
        if importer.sniff(head):
            return importer
    raise InputError(f"the format of this text is unknown: name it, one of {', '.join(IMPORTERS.names())}")
