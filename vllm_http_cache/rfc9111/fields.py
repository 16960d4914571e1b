"""How field values are taken apart (RFC 9110 section 5.6), and which fields belong to one hop only.

Syntax: nothing in this file knows what a field means. Every parser takes any string at all and raises on none; what
to make of a value that is not well formed is for the caller to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .memo import memo
from .message import Fields
from .options import CacheOptions

__all__ = [
    "DECISIVE",
    "DIGESTS",
    "INFINITE",
    "TOKEN",
    "delta_seconds",
    "end_to_end",
    "is_token",
    "members",
    "tightened",
    "token_or_string",
    "tokens",
    "trimmed",
]

# RFC 9111 section 1.2.2: what a number too large to handle is taken for. It stands for "for ever" (68 years).
INFINITE = 2**31

TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# A string that is not closed runs to the end of the value: a comma in it separates nothing.
_MEMBER = re.compile(r'(?:[^,"]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))+', re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_TOKEN = re.compile(TOKEN)

# RFC 9110 section 7.6.1; Proxy-Authenticate and its kin are the proxy's that was used (RFC 9111 section 3.1). Trailer
# announces what is not stored.
_ONE_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization")
    + ("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
# The fields on which this package decides, and Location, without which a redirect is none. "Cache-Control is never
# appropriate as a connection option" (RFC 9110 section 7.6.1), and neither are the others: a response that hides its
# own restrictions is not relieved of them.
DECISIVE = frozenset(
    ("age", "cache-control", "content-encoding", "content-range", "content-type", "date", "etag", "expires")
    + ("last-modified", "location", "vary")
)
# Of the octets that their own message brings, and of no others (RFC 9530 section 2, RFC 1864).
DIGESTS = frozenset(("content-digest", "content-md5"))


def trimmed(text: str) -> str:
    """*text* without the whitespace around it that is no part of a value (section 5.6.3)."""
    return text.strip(" \t")


@memo(1024)
def members(value: str) -> tuple[str, ...]:
    """The members of a comma-separated list, without surrounding whitespace and empty members (section 5.6.1.2)."""
    return tuple(member for part in _MEMBER.findall(value) if (member := trimmed(part)))


def tightened(value: str) -> str:
    """*value* without whitespace around it and around the commas that separate in it."""
    return _MEMBER.sub(lambda part: trimmed(part[0]), value)


def tokens(values: Iterable[str]) -> frozenset[str]:
    """The members of list-valued field lines, in lower case."""
    return frozenset(member.lower() for value in values for member in members(value))


def is_token(text: str) -> bool:
    """Is *text* a token (section 5.6.2)?"""
    return _TOKEN.fullmatch(text) is not None


def token_or_string(text: str) -> str | None:
    """The value of a token or a quoted string (sections 5.6.2 and 5.6.4); None when *text* is neither."""
    if is_token(text):
        return text
    string = _STRING.fullmatch(text)
    return re.sub(r"\\(.)", r"\1", string[1], flags=re.DOTALL) if string else None


def delta_seconds(text: str | None) -> int | None:
    """A non-negative number of seconds, at most :data:`INFINITE` (RFC 9111 section 1.2.2); None when it is none."""
    # isdigit alone takes superscripts too, which are ISO-8859-1 octets.
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return INFINITE if len(digits) > 10 else min(int(digits or "0"), INFINITE)


def end_to_end(fields: Fields, options: CacheOptions) -> Fields:
    """The fields that outlive the connection they came on (RFC 9111 section 3.1)."""
    named = tokens(fields.get_all("connection")).difference(DECISIVE, map(str.lower, options.targeted))
    return fields.without(_ONE_HOP | named)
