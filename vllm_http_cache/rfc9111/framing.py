"""Where a response's body ends on the wire, as far as its head says (RFC 9112 sections 6.3 and 8)."""

from __future__ import annotations

import re

from .fields import members
from .message import Fields, Response

__all__ = ["announced_length", "is_framed", "keeps_its_coding"]

_CODINGS = frozenset(("chunked", "compress", "deflate", "gzip", "identity"))
_WITHOUT_BODY = frozenset((204, 304))
_LENGTH = re.compile(r"[0-9]{1,18}")  # more octets than that nobody has


def announced_length(response: Response) -> int | None:
    """The octets that are to come for a GET; None when the head does not say."""
    if response.status in _WITHOUT_BODY:
        return 0
    length = response.fields.get("content-length")
    if length is None or "transfer-encoding" in response.fields or _LENGTH.fullmatch(length) is None:
        return None
    return int(length)


def is_framed(method: str, response: Response) -> bool:
    """Does an HTTP/1 response to *method* end by something else than the connection's end?

    The chunked transfer coding does: it is the client's to see it finished. Under another the body may end with the
    connection (RFC 9112 section 6.3).
    """
    if method == "HEAD" or response.status in _WITHOUT_BODY:
        return True
    if "transfer-encoding" in response.fields:
        return not keeps_its_coding(response.fields)
    return announced_length(response) is not None


def keeps_its_coding(fields: Fields) -> bool:
    """Is the body as clients give it still in a transfer coding? They undo chunked, where it is the only one.

    What is not registered (RFC 9112 section 7.3) codes nothing.
    """
    codings = [coding.lower().removeprefix("x-") for coding in members(fields.get("transfer-encoding") or "")]
    return [coding for coding in codings if coding in _CODINGS] not in ([], ["chunked"])
