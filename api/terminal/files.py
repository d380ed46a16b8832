"""Reading and writing documents: whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from planner.errors import InputError

STANDARD_STREAM = "-"
MAX_FILE_BYTES = 512 * 2**20


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`; InputError when it cannot be read or is no UTF-8."""
    try:
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if name == STANDARD_STREAM else _read_file(Path(name))
    except OSError as fault:
        raise InputError(f"{name!r} cannot be read ({fault.strerror}): check the path") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{name!r} has more than {MAX_FILE_BYTES} bytes: give a smaller document")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise InputError(f"{name!r} is not UTF-8 text (byte {fault.start})") from None


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def check_writable(path: Path | None) -> None:
    """Say before the work, not after it, that the folder of an output file is missing."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"the folder of {str(path)!r} does not exist: make it first")
    if path is not None and path.is_dir():
        raise InputError(f"{str(path)!r} is a folder: give the name of a file")


def write_text(path: Path, text: str) -> None:
    """Write a file in one step (a new file that then takes the name), so that no reader sees half of it.

    What is no regular file (`/dev/stdout`, a pipe) is written to directly. InputError when it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text)
    except OSError as fault:
        raise InputError(f"{str(path)!r} cannot be written ({fault.strerror})") from None


def _replace(path: Path, text: str) -> None:
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """The permissions that the file has, or that a new one gets here."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
