"""Command line arguments in shell scripts: `--name value`, with the script's own simple variables filled in."""

from __future__ import annotations

import re
import shlex

from planner.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_PRODUCT = re.compile(r"\$\(\(\s*(\d{1,9})\s*\*\s*(\d{1,9})\s*\)\)")


class Arguments:
    """The arguments of a text: names without dashes, words of a name joined by `-`; the last one of a name counts."""

    def __init__(self, text: str) -> None:
        self.variables: dict[str, str] = {}
        self._values: dict[str, str] = {}
        name = ""
        for word in _words(text):
            if assigned := _ASSIGNMENT.fullmatch(word):
                self.variables[assigned[1]] = self._filled(assigned[2])
            elif word.startswith("--"):
                name, _, value = word[2:].replace("_", "-", word.partition("=")[0].count("_")).partition("=")
                self._values[name] = self._filled(value)
            elif name and word not in ("(", ")"):
                self._values[name] = self._values[name] or self._filled(word)
                name = ""

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """The value, None where it is not given; empty for a switch."""
        return self._values.get(name)

    def count(self, name: str) -> int | None:
        """A whole number of at least 0; None where it is not given. InputError for anything else."""
        value = self._values.get(name)
        return None if value is None else number(value, f"--{name}")

    def needed(self, name: str) -> int:
        """The same, of at least 1; InputError where it is missing."""
        found = self.count(name)
        if not found:
            raise InputError(f"the arguments have no --{name}: give it, at least 1")
        return found

    def _filled(self, value: str) -> str:
        """Variables that were assigned before, and one product, filled in."""
        filled = _VARIABLE.sub(lambda m: self.variables.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), value)
        return _PRODUCT.sub(lambda m: str(int(m[1]) * int(m[2])), filled)


def number(value: str, what: str) -> int:
    """A whole number of at most 8 digits; InputError names it."""
    if not re.fullmatch(r"\d{1,8}", value):
        raise InputError(f"{what} is {value[:64]!r}: it must be a whole number of at most 8 digits, written out")
    return int(value)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as fault:
        raise InputError(f"the arguments cannot be read as shell words ({fault}): close every quote") from None
