"""Byte ranges (RFC 9110 section 14): what a request asks for, what a stored response holds, where one is in the other.

Arithmetic only. Offsets are octets; spans are a first and a past-the-end offset, counted from the start of the
stored body unless said otherwise.
"""

from __future__ import annotations

import re
from typing import Literal

from .fields import trimmed
from .framing import announced_length
from .message import Fields, Request, Response, StoredResponse
from .validators import range_is_current

__all__ = ["ContentRange", "Span", "Wanted", "content_range", "has_what_is_wanted", "holds_whole", "locate", "wanted"]

Span = tuple[int, int]
# One range: first and last position, None for open; a suffix has no first position and its length in place of the
# last.
Wanted = tuple[int | None, int | None]
ContentRange = tuple[int, int, int | None]

_DIGITS = r"([0-9]{1,18})"  # more octets than that nobody has
_RANGE = re.compile(rf"bytes=[ \t]*(?:{_DIGITS}-{_DIGITS}?|-{_DIGITS})[ \t]*", re.IGNORECASE)
_CONTENT_RANGE = re.compile(rf"bytes {_DIGITS}-{_DIGITS}/(?:{_DIGITS}|\*)", re.IGNORECASE)


def wanted(request: Request) -> Wanted | None:
    """The one byte range that *request* asks for. None: it asks for the whole, or for what a cache may answer with
    the whole (several ranges, other units, what is no range; section 14.2)."""
    value = request.fields.get("range")
    found = _RANGE.fullmatch(value) if value is not None and request.method == "GET" else None
    if found is None:
        return None
    first, last, suffix = (None if digits is None else int(digits) for digits in found.groups())
    if first is None:
        return None, suffix
    return (first, last) if last is None or last >= first else None


def content_range(fields: Fields) -> ContentRange | None:
    """First and last position and complete length (None: unknown) of a Content-Range; None when it is not valid."""
    found = _CONTENT_RANGE.fullmatch(trimmed(fields.get("content-range") or ""))
    if found is None:
        return None
    first, last, complete = int(found[1]), int(found[2]), int(found[3]) if found[3] else None
    return (first, last, complete) if first <= last and (complete is None or last < complete) else None


def holds_whole(stored: StoredResponse) -> bool:
    """Is the stored body all of the response's content, and not a part of a representation?"""
    return stored.status != 206


def has_its_length(stored: StoredResponse) -> bool:
    """Has the stored body as many octets as the head says, where it does?

    Of a part the Content-Range does, and what is shorter is its beginning.
    """
    if stored.body is None:
        return True
    part = content_range(stored.fields) if stored.status == 206 else None
    if part is not None:
        return stored.body.length <= part[1] - part[0] + 1
    return announced_length(Response(stored.status, stored.fields)) in (None, stored.body.length)


def has_what_is_wanted(request: Request, stored: StoredResponse) -> bool:
    """Does the stored body suffice to answer *request* (RFC 9111 section 3.3)?"""
    return locate(request, stored) != "absent"


def locate(request: Request, stored: StoredResponse) -> Span | Literal["whole", "nowhere", "absent"]:
    """Where in the stored body lies what *request* wants.

    ``"whole"``: it wants all of it. ``"nowhere"``: no representation of this length has it (416). ``"absent"``: the
    representation may have it, what is stored has not (RFC 9111 section 3.3).
    """
    want = wanted(request) if stored.status in (200, 206) and range_is_current(request, stored) else None
    if not holds_whole(stored):
        return "absent" if want is None else _locate_in_part(want, stored)
    if want is None or stored.body is None or stored.body.length == 0:  # of nothing there are no ranges
        return "whole"
    length = stored.body.length
    first, last = want
    if first is None:
        return (max(0, length - last), length) if last else "nowhere"
    return (first, length if last is None else min(last + 1, length)) if first < length else "nowhere"


def _locate_in_part(want: Wanted, stored: StoredResponse) -> Span | Literal["absent"]:
    part = content_range(stored.fields)
    if part is None or stored.body is None or not has_its_length(stored):
        return "absent"
    first, last, complete = part
    length = stored.body.length
    to_the_end = complete == last + 1
    if want[0] is None:
        size = min(want[1] or 0, last + 1)
        # Counted from the end, of the body as of the representation.
        return (max(0, length - size), length) if to_the_end and 0 < size <= last + 1 - first else "absent"
    stop = last if want[1] is None or (to_the_end and want[1] > last) else want[1]
    if want[1] is None and not to_the_end:
        return "absent"
    span = want[0] - first, min(stop + 1 - first, length)
    return span if 0 <= span[0] < span[1] and stop <= last else "absent"
