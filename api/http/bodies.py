"""Reading request bodies: type, size and time are bounded before a byte is understood."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from api.http.problems import RefusalError, TooLargeError


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The raw body of a JSON request.

    415 for another type or any content coding, 413 for more than `max_bytes` (announced or sent in chunks), 408 when
    it is not there after `timeout_s`.
    """
    _check_headers(request, max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, max_bytes)
    except TimeoutError:
        detail = f"the body was not complete after {timeout_s:g} s: send it faster"
        raise RefusalError(408, "slow-request", detail) from None
    except ClientDisconnect:
        raise RefusalError(400, "slow-request", "the client went away before the body was complete") from None


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        _check_length(len(body), max_bytes)
    return bytes(body)


def _check_headers(request: Request, max_bytes: int) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if media_type.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise RefusalError(415, "unsupported-media-type", "send the body as application/json in UTF-8")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RefusalError(415, "unsupported-media-type", "send the body without a content-encoding")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        _check_length(int(announced[:20]), max_bytes)


def _check_length(length: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise TooLargeError(f"the body has more than {max_bytes} bytes: send a smaller problem")
