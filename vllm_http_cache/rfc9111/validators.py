"""Validators and the preconditions made of them (RFC 9110 sections 8.8 and 13).

Comparing only: whether a stored response may be used at all is not asked here.
"""

from __future__ import annotations

import re

from .dates import parse_http_date
from .fields import trimmed
from .message import Fields, Request, Response, StoredResponse

__all__ = [
    "described_alike",
    "entity_tag",
    "entity_tags",
    "has_strong_tag",
    "is_single",
    "is_strong",
    "not_modified",
    "range_is_current",
    "same_strong_tag",
    "same_tag",
]

# Entity tags know no escapes: a backslash is an octet like any other (section 8.8.3). A member without quotes, which
# some servers send, is taken as it stands.
_ENTITY_TAGS = re.compile(r'(?:W/)?"[^"]*"|[^\s,][^,]*')
_FORM = ("content-encoding", "content-range")
_CONTENT = (*_FORM, "content-length", "content-type", "etag", "last-modified")
_STRONG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')


def entity_tag(fields: Fields) -> str | None:
    """The ETag, as spelled; None when there is none."""
    value = fields.get("etag")
    return trimmed(value) or None if value is not None else None


def entity_tags(fields: Fields, name: str) -> tuple[str, ...]:
    """The members of a list of entity tags, as spelled."""
    return tuple(trimmed(tag) for value in fields.get_all(name) for tag in _ENTITY_TAGS.findall(value))


def is_single(tag: str) -> bool:
    """Does *tag* stand for itself in a list? ``*`` stands for any, and what is not well formed may for several."""
    return tag != "*" and _ENTITY_TAGS.findall(tag) == [tag]


def is_strong(tag: str | None) -> bool:
    """Is *tag* a well-formed entity tag that is not marked as weak?"""
    return tag is not None and _STRONG.fullmatch(tag) is not None


def has_strong_tag(fields: Fields) -> bool:
    """Does the ETag tell a change of a single octet?"""
    return is_strong(entity_tag(fields))


def same_tag(one: str | None, other: str | None) -> bool:
    """Weak comparison (section 8.8.3.2)."""
    return one is not None and other is not None and one.removeprefix("W/") == other.removeprefix("W/")


def same_strong_tag(one: Fields, other: Fields) -> bool:
    """Strong comparison of two ETags (section 8.8.3.2)."""
    return has_strong_tag(one) and entity_tag(one) == entity_tag(other)


def described_alike(stored: StoredResponse, response: Response) -> bool:
    """Does *response* tell of itself what *stored* does, so that it may have the same octets?

    A strong tag tells of each of them (RFC 9110 section 8.8.1), in one form at least. Without one, all counts that is
    told of a content.
    """
    names = _FORM if same_strong_tag(stored.fields, response.fields) else _CONTENT
    alike = all(stored.fields.get(name) == response.fields.get(name) for name in names)
    return stored.status == response.status and alike


def not_modified(request: Request, stored: StoredResponse) -> bool:
    """Does the caller's own precondition say that it has what is stored (RFC 9111 section 4.3.2)?"""
    if "if-none-match" in request.fields:  # then If-Modified-Since is ignored
        tags = entity_tags(request.fields, "if-none-match")
        return tags == ("*",) or any(same_tag(tag, entity_tag(stored.fields)) for tag in tags)
    since = _date(request.fields, "if-modified-since", stored)
    if since is None:
        return False
    modified = _date(stored.fields, "last-modified", stored)
    if modified is None:
        modified = _date(stored.fields, "date", stored)
    return (stored.response_time if modified is None else modified) <= since


def range_is_current(request: Request, stored: StoredResponse) -> bool:
    """Is the Range field of *request* to be applied to what is stored (If-Range, section 13.1.5)?"""
    condition = request.fields.get("if-range")
    if condition is None:
        return True
    condition = trimmed(condition)
    if '"' in condition[:3]:
        return is_strong(condition) and condition == entity_tag(stored.fields)
    # An HTTP-date has to match exactly, and to be strong: a second older than the response it came with (8.8.2.2).
    modified, date = (_date(stored.fields, name, stored) for name in ("last-modified", "date"))
    exact = stored.fields.get("last-modified") == condition
    return exact and modified is not None and date is not None and modified + 1 <= date


def _date(fields: Fields, name: str, stored: StoredResponse) -> float | None:
    return parse_http_date(fields.get(name), stored.response_time)
