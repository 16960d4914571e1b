"""Where a response's body ends on the wire, as far as its head says (RFC 9112 sections 6.3 and 8)."""

from __future__ import annotations

import re

from .message import Response

__all__ = ["announced_length", "is_framed"]

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

    A transfer coding does: it is the client's to see it finished.
    """
    return method == "HEAD" or "transfer-encoding" in response.fields or announced_length(response) is not None
