"""Versioned JSON of every noun, and fingerprints.

A document is the noun's fields plus `kind` (which noun) and `schema_version`. One definition serves files and HTTP:
pydantic reads the dataclasses strictly, and every fault becomes an InputError with a JSON pointer.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from planner.errors import InputError
from planner.result import SCHEMA_VERSION

T = TypeVar("T")

MAX_ERRORS_SHOWN = 5
MAX_DEPTH = 64


def encode(noun: Any, *, kind: str | None = None) -> dict[str, Any]:
    """`noun` as plain JSON values with `kind` and `schema_version` in front."""
    body = adapter(type(noun)).dump_python(noun, mode="json")
    return {"document": kind or kind_of(type(noun)), "schema_version": SCHEMA_VERSION, **body}


def dumps(noun: Any, *, indent: int | None = 2) -> str:
    """`noun` as JSON text that `loads` reads back equal."""
    return json.dumps(encode(noun), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def loads(noun_type: type[T], text: str | bytes) -> T:
    """The noun in a JSON document; InputError names the field and what is wrong with it.

    `document` and `schema_version` may be left out. Duplicate keys, NaN and infinities are refused.
    """
    return decode(noun_type, parse(text))


def parse(text: str | bytes, *, constants: bool = False) -> Any:
    """JSON text as Python values; InputError for what is not strict JSON.

    With `constants`, NaN and infinities are let through as floats: `decode` then refuses them with a JSON pointer.
    """
    constant = float if constants else _no_constant
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=constant)
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"the document is nested too deep (limit about {MAX_DEPTH} levels)") from None
    except UnicodeDecodeError as fault:
        raise InputError(f"the document is not UTF-8: byte {fault.start}") from None
    except ValueError as fault:
        raise InputError(f"the document is not valid JSON: {fault}") from None


def decode(noun_type: type[T], values: Any) -> T:
    """The noun from parsed JSON values."""
    body = _strip_header(values, noun_type)
    try:
        return adapter(noun_type).validate_json(json.dumps(body), strict=True)
    except ValidationError as fault:
        raise _input_error(fault) from None
    except ValueError as fault:  # lone surrogates, integers of too many digits
        raise InputError(f"the document cannot be read: {fault}") from None


def fingerprint(noun: Any) -> str:
    """SHA-256 of the canonical JSON: equal nouns have equal fingerprints on every machine."""
    text = json.dumps(encode(noun), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def adapter(noun_type: type[T]) -> TypeAdapter[T]:
    """The pydantic reader and writer of a noun (also the source of its JSON schema), made once per noun."""
    if noun_type not in _ADAPTERS:
        _ADAPTERS[noun_type] = TypeAdapter(noun_type)
    return _ADAPTERS[noun_type]


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def kind_of(noun_type: type) -> str:
    """The `document` value of a noun: its class name in snake case."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in noun_type.__name__).lstrip("_")


def _strip_header(values: Any, noun_type: type) -> Any:
    if not isinstance(values, dict):
        return values
    body = dict(values)
    version = body.pop("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InputError(
            f"schema_version is {version!r}, this planner reads {SCHEMA_VERSION}: convert the document or update",
            pointer="/schema_version",
        )
    document = body.pop("document", kind_of(noun_type))
    if document != kind_of(noun_type):
        raise InputError(f"this is a {document!r} document, wanted {kind_of(noun_type)!r}", pointer="/document")
    return body


def _input_error(fault: ValidationError) -> InputError:
    errors = fault.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{_pointer(e['loc']) or '/'}: {e['msg']}" for e in errors[:MAX_ERRORS_SHOWN]]
    more = f" (and {len(errors) - MAX_ERRORS_SHOWN} more)" if len(errors) > MAX_ERRORS_SHOWN else ""
    return InputError("; ".join(lines) + more, pointer=_pointer(errors[0]["loc"]))


def _pointer(location: tuple[int | str, ...]) -> str:
    return "".join(f"/{str(part)[:64]}" for part in location)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"the key {twice[:64]!r} stands twice in one object: keep one", pointer=f"/{twice[:64]}")
    return made


def _no_constant(name: str) -> Any:
    raise InputError(f"{name} is not a number: give a finite value")
