"""Target URIs: which ones are the same, and what they are stored under (RFC 9111 section 2, RFC 9110 section 4.2.3).

A URI is taken apart once, here, by a grammar narrower than any client's: one that two parsers could read in two ways
is refused rather than guessed at. Path and query are octets; nothing is decoded, re-encoded or reordered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from urllib.parse import urljoin

from .fields import trimmed
from .memo import memo
from .message import Request, StoredResponse
from .options import CacheOptions
from .vary import normalized, vary_names

__all__ = [
    "InvalidTarget",
    "Target",
    "cache_key",
    "flight_key",
    "is_host_of",
    "is_key_of",
    "is_signed",
    "lookup_key",
    "parse_target",
    "recorded_uri",
    "redacted",
    "resolved",
    "same_uri",
]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(?:([^@]*)@)?(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~!$&'()*+,;=-]+)(?::([0-9]*))?")


class InvalidTarget(ValueError):
    """A URI that is not absolute, or that can be read in more than one way."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URI in its parts, the case of scheme and host and a default port aside as the caller spelled it.

    ``query`` without the question mark; None where there is none, which is not the same as an empty one.
    """

    scheme: str
    userinfo: str | None
    host: str
    port: int | None
    path: str
    query: str | None

    @property
    def origin(self) -> tuple[str, str, int | None]:
        """Scheme, host and port (RFC 9110 section 4.3.1)."""
        return self.scheme, self.host, self.port


@memo(1024)
def parse_target(uri: str) -> Target:
    """Take *uri* apart.

    :raises InvalidTarget: it is not an absolute URI with an authority, or is ambiguous: control characters, spaces,
        backslashes before the query, percent-encoded or non-ASCII hosts, a port that is no port.
    """
    parts = _URI.fullmatch(uri)
    if parts is None:
        raise InvalidTarget(f"not an absolute URI with an authority: {redacted(uri)!r}")
    if re.search(r"[\x00-\x20\x7f]", uri):
        raise InvalidTarget(f"control characters or spaces in the URI {redacted(uri)!r}")
    scheme, authority, path, query = parts.groups()
    if "\\" in authority + path:
        raise InvalidTarget(f"a backslash in the URI {redacted(uri)!r}")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise InvalidTarget(f"no unambiguous host and port in the URI {redacted(uri)!r}")
    userinfo, host, digits = found.groups()
    scheme = scheme.lower()
    port = int(digits) if digits and len(digits) <= 5 else None
    if digits and (port is None or port > 65535):
        raise InvalidTarget(f"not a port in the URI {redacted(uri)!r}")
    port = _DEFAULT_PORTS.get(scheme) if port is None else port
    return Target(scheme, userinfo, host.lower(), port, path or "/", query)


def cache_key(uri: str, options: CacheOptions) -> str:
    """What the responses of *uri* are stored under: 64 hexadecimal digits.

    Two URIs share a key if they differ only in the case of scheme and host, a default port, a fragment, or, with
    ``options.signed_urls``, in the values of a whole set of known signature parameters.

    What a cache of one user stores is out of the reach of a shared one.

    :raises InvalidTarget: as :func:`parse_target`.
    """
    return _cache_key(uri, options.signed_urls, options.shared)


@memo(4096)
def _cache_key(uri: str, signed_urls: bool, shared: bool) -> str:
    target = parse_target(uri)
    query, signature = _unsigned(target.query) if signed_urls else (target.query, None)
    whose = () if shared else ("of one user",)
    return _digest(target.scheme, target.userinfo, target.host, target.port, target.path, query, signature, *whose)


def lookup_key(uri: str, options: CacheOptions) -> str:
    """The key of a *uri* that somebody names: clients send its user information as a field, and ask without it.

    :raises InvalidTarget: as :func:`parse_target`.
    """
    return cache_key(recorded_uri(uri), options)


def is_key_of(key: str, uri: str, options: CacheOptions) -> bool:
    """Is *key* the one of *uri*? Those of other caches and of hishel's users are not, though they share a storage."""
    try:
        return lookup_key(uri, options) == key
    except InvalidTarget:
        return False


def flight_key(key: str, request: Request, responses: Sequence[StoredResponse]) -> str:
    """What requests have in common that may wait for one response (RFC 9111 section 4): 64 hexadecimal digits.

    Those under different signatures may not: the origin has to confirm it to each.

    :param responses: the known responses stored under *key*; their Vary fields tell which requests differ.
    """
    names = sorted({name for stored in responses for name in vary_names(stored.fields)})
    apart = [(name, normalized(request, name)) for name in names]
    if is_signed(request.uri):
        apart.append(("", parse_target(request.uri).query))
    return _digest(key, *apart) if apart else key


def same_uri(one: str, other: str) -> bool:
    """Are the two URIs identical, fragment, user information, default port and the case of scheme and host aside?

    Of two URIs with one key, those that are not the same differ in their signatures.
    """
    if one == other:
        return True
    try:
        return replace(parse_target(one), userinfo=None) == replace(parse_target(other), userinfo=None)
    except InvalidTarget:
        return False


def is_host_of(host: str, uri: str) -> bool:
    """Does a Host field's value name the authority of *uri* (RFC 9110 section 7.2)?"""
    return _has_host(uri, host)


@memo(1024)
def _has_host(uri: str, host: str) -> bool:
    target = parse_target(uri)
    try:
        named = parse_target(target.scheme + "://" + trimmed(host))
    except InvalidTarget:
        return False
    return named.origin == target.origin and not any(mark in host for mark in "@/?#")


def recorded_uri(uri: str) -> str:
    """*uri* as a stored response keeps it: without user information, which is a credential, and fragment."""
    found = _URI.fullmatch(uri)
    if found is None:
        return uri
    scheme, authority, path, query = found.groups()
    return f"{scheme}://{authority.rpartition('@')[2]}{path}" + ("" if query is None else f"?{query}")


def resolved(base: str, reference: str | None) -> str | None:
    """*reference* made absolute (RFC 3986 section 5); None when there is none or it makes no unambiguous target."""
    if reference is None:
        return None
    try:
        uri = urljoin(base, trimmed(reference))
        parse_target(uri)
    except ValueError:
        return None
    return uri


def redacted(uri: str) -> str:
    """*uri* for people to read: user information and the values in its query hidden, no fragment. Never raises."""
    before, mark, query = uri.partition("#")[0].partition("?")
    before = re.sub(r"//[^/]*@", "//***@", before)
    hidden = (name + "=***" if equals else "***" for name, equals, _ in (p.partition("=") for p in query.split("&")))
    return before + mark + ("&".join(hidden) if query else "")


def is_signed(uri: str) -> bool:
    """Does the query of *uri* hold a whole set of known signature parameters?

    :raises InvalidTarget: as :func:`parse_target`.
    """
    return _unsigned(parse_target(uri).query)[1] is not None


# Known signatures: the parameters that make a set whole, and others that belong to it when it is. Each of these names
# alone is an ordinary parameter.
_AWS = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
_AZURE_DETAILS = "st sr spr sip ss srt si sdd ses skoid sktid skt ske sks skv saoid suoid scid"
_SIGNATURES: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = (
    ("X-Amz", frozenset(f"X-Amz-{name}" for name in _AWS), frozenset(("X-Amz-Security-Token",))),
    ("X-Goog", frozenset(f"X-Goog-{name}" for name in _AWS), frozenset()),
    ("Azure", frozenset(("sig", "se", "sp", "sv")), frozenset(_AZURE_DETAILS.split())),
    ("CloudFront", frozenset(("Signature", "Key-Pair-Id", "Expires")), frozenset(("Hash-Algorithm",))),
    ("CloudFront", frozenset(("Signature", "Key-Pair-Id", "Policy")), frozenset(("Hash-Algorithm",))),
)


def _unsigned(query: str | None) -> tuple[str | None, str | None]:
    """The query without a signature's parameters, and whose signature it was (None: it has none that is whole)."""
    if query is None:
        return None, None
    parameters = [(parameter.partition("=")[0], parameter) for parameter in query.split("&")]
    names = [name for name, _ in parameters]
    for owner, required, also in _SIGNATURES:
        if required.issubset(names) and all(names.count(name) == 1 for name in required):
            kept = [parameter for name, parameter in parameters if name not in required and name not in also]
            return "&".join(kept), owner
    return query, None


def _digest(*parts: object) -> str:
    """A digest of a structure. JSON quotes what it contains, so no two structures have the same text."""
    return sha256(json.dumps(parts).encode("ascii")).hexdigest()
