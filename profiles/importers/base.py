"""The protocol of importers: foreign text in, a profiled model out.

What an importer reads is untrusted. It checks every number that it uses and names the line or the field of what is
wrong; `checked` then looks at the graph as a whole (cycles, unknown ids), as `Problem` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from planner.checks import check_graph
from planner.errors import InputError
from planner.graph import topological_order
from planner.registry import Registry
from profiles.model import Grain, ModelRecord, ProfiledModel

UNNAMED_DEVICE = "unnamed"
"""Device type of a profile whose file does not say where it was measured."""
SNIFFED_BYTES = 65_536
"""How much of a file's beginning `sniff` gets to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What a file leaves open.

    `device_type` names the device that the costs were measured on, or picks one of several; `minibatch_size` is the
    number of samples behind the figures where the format counts per minibatch. `model` picks one of several models,
    `sequence_length` stands for lengths that a graph leaves open, `grain` is how finely a graph of operators is cut.
    """

    device_type: str | None = None
    minibatch_size: int = 1
    model: str | None = None
    sequence_length: int | None = None
    grain: Grain = Grain.BLOCK


class Importer(Protocol):
    """One foreign format. `name` is what `--format` takes."""

    name: str

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (at most 64 KiB) is in this format. Never raises."""

    def read(self, text: str, options: ImportOptions) -> ProfiledModel | ModelRecord:
        """The model in `text`; InputError that names the line or the field of what is wrong."""


@runtime_checkable
class FilesImporter(Importer, Protocol):
    """A format of several files in a folder, or of bytes that are no text. `profiles.importers.reading` reads them.

    Only the command line does: nothing of a request reaches `read_files`.
    """

    def wants(self, path: str) -> bool:
        """Whether the file of that path, relative to the folder and with slashes, is part of the format."""

    def read_files(self, files: Mapping[str, bytes], options: ImportOptions) -> ProfiledModel | ModelRecord:
        """The model in the files, by their paths; InputError that names the file and what is wrong there."""


IMPORTERS: Registry[Importer] = Registry("format", "profiles.importers")


def read_text(
    text: str, *, format: str | None = None, options: ImportOptions | None = None
) -> ProfiledModel | ModelRecord:
    """The model in `text`, in the named format or in the one that it looks like."""
    importer = IMPORTERS[format] if format else sniffed(text)
    return checked(importer.read(text.removeprefix("\ufeff"), options or ImportOptions()))


def checked(model: ProfiledModel | ModelRecord) -> ProfiledModel | ModelRecord:
    """The model, when its graph is a graph: InputError for repeated ids, loose edges, sizes out of range, cycles."""
    check_graph(model.graph)
    topological_order(model.graph)
    return model


def sniffed(text: str) -> Importer:
    """The importer whose format the text looks like; InputError when there is none."""
    head = text[:SNIFFED_BYTES].removeprefix("\ufeff").encode(errors="replace")[:SNIFFED_BYTES]
    for importer in IMPORTERS:
        if importer.sniff(head):
            return importer
    raise InputError(f"the format of this text is unknown: name it, one of {', '.join(IMPORTERS.names())}")
