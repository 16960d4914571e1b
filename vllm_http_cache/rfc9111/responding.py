"""What a stored response looks like to one caller (RFC 9111 section 4, RFC 9110 sections 13 and 14).

That it may be used has been decided. Here it is made into the answer to a request: whole, in part, or as the word
that the caller has it already.
"""

from __future__ import annotations

from .fields import DIGESTS
from .freshness import current_age
from .message import Fields, Request, Response, StoredResponse
from .ranges import Span, content_range, locate
from .validators import not_modified

__all__ = ["gateway_timeout", "respond"]

# RFC 9110 section 15.4.5: a 304 goes without the metadata of a representation that it does not bring.
_OF_CONTENT = DIGESTS | frozenset(
    ("content-encoding", "content-language", "content-length", "content-range", "content-type", "digest", "repr-digest")
)


def respond(request: Request, stored: StoredResponse, now: float) -> tuple[Response, Span | None]:
    """The head that answers *request* from *stored*, and which octets of the stored body go with it.

    :param now: seconds since the epoch; the answer's Age depends on it.
    :return: the span is a first and a past-the-end offset in the stored body. None: no body.
    """
    fields = stored.fields.replaced(("Age", str(int(current_age(stored, now)))))
    if stored.status in (200, 206) and not_modified(request, stored):
        return Response(304, fields.without(_OF_CONTENT), "Not Modified"), None
    found = locate(request, stored)
    if isinstance(found, tuple):
        return _part(fields, stored, found), found
    length = stored.body.length if stored.body else 0
    if found == "nowhere":
        fields = fields.without(_OF_CONTENT).replaced(("Content-Range", f"bytes */{length}"), ("Content-Length", "0"))
        return Response(416, fields, "Range Not Satisfiable"), None
    if stored.body and stored.status != 204:
        fields = _with_length(fields, length)
    return Response(stored.status, fields, stored.reason), (0, length) if length and request.method != "HEAD" else None


def gateway_timeout() -> Response:
    """The answer when neither a stored response nor the origin may give one (RFC 9111 section 5.2.1.7)."""
    return Response(504, Fields((("Content-Length", "0"),)), "Gateway Timeout")


def _part(fields: Fields, stored: StoredResponse, span: Span) -> Response:
    """A 206 with one part (RFC 9110 section 15.3.7.1)."""
    part = content_range(stored.fields) if stored.status == 206 else None
    length = stored.body.length if stored.body else None
    offset, complete = (part[0], part[2]) if part else (0, length)
    first, last = offset + span[0], offset + span[1] - 1
    if span != (0, length):
        fields = fields.without(DIGESTS)
    position = f"bytes {first}-{last}/{'*' if complete is None else complete}"
    fields = _with_length(fields, span[1] - span[0]).replaced(("Content-Range", position))
    return Response(206, fields, "Partial Content")


def _with_length(fields: Fields, length: int) -> Fields:
    return fields if fields.get("content-length") == str(length) else fields.replaced(("Content-Length", str(length)))
