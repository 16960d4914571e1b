"""Requests, responses and stored responses for the tests of the rules, written as one reads them on the wire."""

from __future__ import annotations

from dataclasses import replace

from vllm_http_cache.rfc9111.dates import format_http_date
from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request, Response, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.storing import stored_response

T = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT: when what is stored was received, unless a test says otherwise
URI = "https://example.test/cat.png"
SHARED = CacheOptions()
PRIVATE = CacheOptions(shared=False)


def date(offset: float = 0) -> str:
    """The HTTP-date *offset* seconds after :data:`T`."""
    return format_http_date(T + offset)


def fields(*lines: str) -> Fields:
    """Fields from lines like ``"Age: 5"``."""
    parts = (line.partition(":") for line in lines)
    return Fields((name, value.strip(" \t")) for name, _, value in parts)


def get(*lines: str, uri: str = URI, method: str = "GET") -> Request:
    return Request(method, uri, fields(*lines))


def head(*lines: str, uri: str = URI) -> Request:
    return get(*lines, uri=uri, method="HEAD")


def answer(*lines: str, status: int = 200) -> Response:
    """A response; its Date is :data:`T` where the lines give none."""
    given = fields(*lines)
    return Response(status, given if "date" in given else Fields((("Date", date()), *given)), "Reason")


def kept(
    *lines: str,
    status: int = 200,
    request: Request | None = None,
    uri: str = URI,
    at: float = T,
    delay: float = 0,
    length: int = 1000,
    name: str = "body",
    options: CacheOptions = SHARED,
) -> StoredResponse:
    """A stored response with these fields, received at *at*, *delay* seconds after its request was sent."""
    stored = stored_response(request or get(uri=uri), answer(*lines, status=status), at - delay, at, options)
    return replace(stored, body=BodyRef(name, length))


def part(content_range: str, *lines: str, length: int | None = None, **more: str) -> StoredResponse:
    """A stored 206. Its body is as long as *content_range*, like ``"0-4/10"``, says."""
    first, last = content_range.partition("/")[0].split("-")
    size = int(last) + 1 - int(first) if length is None else length
    return kept(f"Content-Range: bytes {content_range}", *lines, status=206, length=size, **more)  # type: ignore[arg-type]
