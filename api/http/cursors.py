"""Cursors of paged listings: a sequence number that only this service can have issued."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from planner.errors import InputError

SIGNATURE_BYTES = 16
SEQUENCE_BYTES = 8


def issue_cursor(sequence: int, secret: bytes) -> str:
    """The text that stands for "the plans before `sequence`"."""
    number = sequence.to_bytes(SEQUENCE_BYTES, "big")
    return base64.urlsafe_b64encode(number + _signature(number, secret)).decode()


def read_cursor(cursor: str, secret: bytes) -> int:
    """The sequence number in a cursor; InputError for one that was not issued here."""
    try:
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raw = b""
    number, signature = raw[:SEQUENCE_BYTES], raw[SEQUENCE_BYTES:]
    if not hmac.compare_digest(signature, _signature(number, secret)):
        raise InputError("the cursor was not issued by this service: leave it out to begin", pointer="/query/cursor")
    return int.from_bytes(number, "big")


def _signature(number: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, number, hashlib.sha256)[:SIGNATURE_BYTES]
