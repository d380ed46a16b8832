"""JSON documents of exporters, read with checks that name the field."""

from __future__ import annotations

import json
from typing import Any

from planner import codec
from planner.errors import InputError

MAX_COUNT = 10**12


def is_document(text: str, name: str) -> bool:
    """Whether a text is a JSON object that calls itself so."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("document") == name


class Document:
    """A JSON object; InputError for what is missing or of another kind."""

    def __init__(self, text: str | dict[str, Any], at: str = "") -> None:
        values = codec.parse(text) if isinstance(text, str) else text
        if not isinstance(values, dict):
            raise InputError("the layout must be a JSON object", pointer=at)
        self.values: dict[str, Any] = values
        self._at = at

    def inside(self, field: str) -> Document:
        """An object in the object."""
        value = self.values.get(field)
        if not isinstance(value, dict):
            raise self.fault(field, "an object")
        return Document(value, f"{self._at}/{field}")

    def objects(self, field: str) -> list[Document]:
        """A list of objects."""
        value = self.values.get(field)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.fault(field, "a list of objects")
        return [Document(each, f"{self._at}/{field}/{number}") for number, each in enumerate(value)]

    def count(self, field: str) -> int:
        """A whole number of at least 0."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise self.fault(field, "a whole number of at least 0")
        return value

    def counts(self, field: str) -> list[int]:
        """A list of them."""
        value = self.values.get(field)
        if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
            raise self.fault(field, "a list of whole numbers")
        return list(value)

    def text(self, field: str) -> str:
        """A text."""
        value = self.values.get(field)
        if not isinstance(value, str):
            raise self.fault(field, "a text")
        return value

    def texts(self, field: str) -> list[str]:
        """A list of texts."""
        value = self.values.get(field)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.fault(field, "a list of texts")
        return list(value)

    def fault(self, field: str, wanted: str) -> InputError:
        """What the field must be."""
        shown = str(self.values.get(field))[:64]
        return InputError(f"{field} is {shown!r}: it must be {wanted}", pointer=f"{self._at}/{field}")
