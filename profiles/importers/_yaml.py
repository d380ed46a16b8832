"""YAML as plain values that know their lines, without tags, aliases or code (PyYAML's composer; extra `yaml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError

MAX_YAML_BYTES = 2**24
MAX_YAML_DEPTH = 32
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\.inf|\.nan", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A value, the file and the line where it stands. Values of mappings and sequences are items again."""

    value: Any
    file: str
    line: int

    @property
    def at(self) -> str:
        """Where it is, for messages."""
        return f"{self.file}, line {self.line}"

    def mapping(self, what: str) -> dict[str, Item]:
        """The value as a mapping (nothing counts as an empty one)."""
        return self._typed(dict, "a mapping", what) if self.value is not None else {}

    def sequence(self, what: str) -> list[Item]:
        """The value as a list."""
        found: list[Item] = self._typed(list, "a list", what)
        return found

    def text(self, what: str) -> str:
        """The value as text."""
        return str(self._typed(str, "text", what))

    def whole(self, what: str, *, low: int, high: int) -> int:
        """The value as a whole number within bounds."""
        if isinstance(self.value, int) and low <= self.value <= high:
            return self.value
        raise self._wrong(what, f"a whole number between {low} and {high}")

    def number(self, what: str, *, low: float, high: float) -> float:
        """The value as a finite number within bounds."""
        if isinstance(self.value, int | float) and low <= self.value <= high:
            return float(self.value)
        raise self._wrong(what, f"a number between {low:g} and {high:g}")

    def _typed(self, kind: type, words: str, what: str) -> Any:
        if not isinstance(self.value, kind):
            raise self._wrong(what, words)
        return self.value

    def _wrong(self, what: str, words: str) -> InputError:
        found = repr(self.value)[:60] if isinstance(self.value, str | int | float | None) else type(self.value).__name__
        return InputError(f"{self.at}: {what} is {found}: it must be {words}")


def read_yaml(content: bytes, file: str) -> tuple[Item, ...]:
    """The documents of a YAML stream; InputError with the line of what is wrong."""
    if len(content) > MAX_YAML_BYTES:
        raise InputError(f"{file} has {len(content)} bytes (limit {MAX_YAML_BYTES}): give a smaller file")
    yaml = _pyyaml()
    try:
        nodes = tuple(yaml.compose_all(content.decode(), Loader=yaml.SafeLoader))
        return tuple(_Reader(yaml, file).item(node) for node in nodes if node)
    except UnicodeDecodeError as fault:
        raise InputError(f"{file} is not UTF-8 text (byte {fault.start})") from None
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{file}{line}: this is no YAML ({getattr(fault, 'problem', None) or fault})") from None
    except RecursionError:
        raise InputError(f"{file} is nested deeper than {MAX_YAML_DEPTH} levels: flatten it") from None


def _pyyaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError('reading YAML needs PyYAML, which is not installed: pip install "pipeplan[yaml]"') from None
    return yaml


class _Reader:
    """Nodes to items. A node that is met twice is an alias: refused, since they can stand for themselves or for
    exponentially many values."""

    def __init__(self, yaml: Any, file: str) -> None:
        self._yaml, self._file = yaml, file
        self._seen = set[int]()

    def item(self, node: Any, depth: int = 1) -> Item:
        """The item of a node of the composer."""
        line = node.start_mark.line + 1
        if depth > MAX_YAML_DEPTH:
            raise InputError(f"{self._file}, line {line}: nested deeper than {MAX_YAML_DEPTH} levels: flatten it")
        if id(node) in self._seen:
            raise InputError(f"{self._file}, line {line}: an alias (*name) stands for this: write the value out")
        self._seen.add(id(node))
        return Item(value=self._value(node, depth), file=self._file, line=line)

    def _value(self, node: Any, depth: int) -> Any:
        if isinstance(node, self._yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, self._yaml.SequenceNode):
            return [self.item(each, depth + 1) for each in node.value]
        return dict(self._pairs(node, depth))

    def _pairs(self, node: Any, depth: int) -> Iterator[tuple[str, Item]]:
        seen = set[str]()
        for key, value in node.value:
            at = f"{self._file}, line {key.start_mark.line + 1}"
            if not isinstance(key, self._yaml.ScalarNode):
                raise InputError(f"{at}: a key is no plain word: write it as text")
            if key.value in seen:
                raise InputError(f"{at}: key {key.value[:60]!r} is there twice: keep one")
            seen.add(key.value)
            yield key.value, self.item(value, depth + 1)


def _scalar(node: Any) -> str | int | float | None:
    """Whole numbers, numbers, nothing, or text; quoted ones are text."""
    if node.style in ("'", '"', "|", ">"):
        return str(node.value)
    if node.value in ("", "~", "null"):
        return None
    if _WHOLE.fullmatch(node.value):
        return int(node.value)
    if _NUMBER.fullmatch(node.value):
        return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return str(node.value)
