"""Files and folders of formats that one text does not hold, and compressed texts.

A folder is read by the `FilesImporter` that is named, or that wants a file directly in it. A file goes to it when it is
named or recognised (its siblings then are not looked at), and is unpacked first when it is a gzip file.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from planner.errors import InputError
from profiles.importers.base import (
    IMPORTERS,
    SNIFFED_BYTES,
    FilesImporter,
    ImportOptions,
    checked,
    read_text,
)
from profiles.model import ModelRecord, ProfiledModel

MAX_TOTAL_BYTES = 2**31
"""Of all files together; a single ONNX file cannot be larger."""
MAX_ENTRIES = 100_000
MAX_DEPTH = 8
GZIP = b"\x1f\x8b"


def read_path(
    path: Path, *, format: str | None = None, options: ImportOptions | None = None
) -> ProfiledModel | ModelRecord | None:
    """The model in a folder, in a file that is no text, or in a gzip file; None where `path` is none of these.

    InputError that names the path for what cannot be read.
    """
    if format is not None and format not in IMPORTERS:
        return None
    try:
        return _read(path, format, options or ImportOptions())
    except OSError as fault:
        raise InputError(f"{str(path)!r} cannot be read ({fault.strerror}): check the path") from None


def _read(path: Path, format: str | None, options: ImportOptions) -> ProfiledModel | ModelRecord | None:
    if path.is_dir():
        return _read_folder(path, format, options)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(SNIFFED_BYTES)
    if head.startswith(GZIP):
        return read_text(_unpacked(path), format=format, options=options)
    importer = _importer_of(head, format)
    if importer is None:
        return None
    return checked(importer.read_files({path.name: _content(path, MAX_TOTAL_BYTES)}, options))


def _importer_of(head: bytes, format: str | None) -> FilesImporter | None:
    """The importer of one file, where it is one that reads files."""
    for importer in [IMPORTERS[format]] if format else IMPORTERS:
        if isinstance(importer, FilesImporter) and (format or importer.sniff(head)):
            return importer
    return None


def _read_folder(folder: Path, format: str | None, options: ImportOptions) -> ProfiledModel | ModelRecord | None:
    paths = tuple(_paths(folder))
    for importer in [IMPORTERS[format]] if format else IMPORTERS:
        if isinstance(importer, FilesImporter):
            wanted = [path for path in paths if importer.wants(path)]
            if format or any("/" not in path for path in wanted):
                return checked(importer.read_files(_contents(folder, wanted), options))
    if format:
        raise InputError(f"{str(folder)!r} is a folder, and the format {format} is one file: give the file")
    return None


def _paths(folder: Path) -> Iterator[str]:
    """Relative paths of the files below the folder, sorted, hidden ones and links to folders left out."""
    found = 0
    for base, folders, names in os.walk(folder):
        depth = len(Path(base).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < MAX_DEPTH else []
        found += len(names)
        if found > MAX_ENTRIES:
            raise InputError(f"{str(folder)!r} has more than {MAX_ENTRIES} files: give the folder of the profile")
        yield from (Path(base, name).relative_to(folder).as_posix() for name in sorted(names) if name[0] != ".")


def _contents(folder: Path, paths: list[str]) -> dict[str, bytes]:
    left, found = MAX_TOTAL_BYTES, dict[str, bytes]()
    for path in paths:
        found[path] = _content(folder / path, left)
        left -= len(found[path])
    return found


def _content(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{str(path)!r} has more than {limit} bytes: give a smaller file")
    return content


def _unpacked(path: Path) -> str:
    """The text of a gzip file, which may not unpack to more than the limit."""
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_TOTAL_BYTES // 4 + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise InputError(f"{str(path)!r} is no whole gzip file ({fault}): unpack or fetch it again") from None
    if len(content) > MAX_TOTAL_BYTES // 4:
        raise InputError(f"{str(path)!r} unpacks to more than {MAX_TOTAL_BYTES // 4} bytes: give a smaller file")
    try:
        return content.decode()
    except UnicodeDecodeError as fault:
        raise InputError(f"{str(path)!r} unpacks to what is not UTF-8 text (byte {fault.start})") from None
