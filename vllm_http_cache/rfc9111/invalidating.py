"""What a request that changes things makes obsolete (RFC 9111 section 4.4)."""

from __future__ import annotations

from .message import Request, Response
from .target import parse_target, resolved

__all__ = ["invalidated"]

# RFC 9110 section 9.2.1. A method that is not known to be safe is not.
_SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))


def invalidated(request: Request, response: Response) -> tuple[str, ...]:
    """The URIs whose stored responses *response* to *request* invalidates: the target, and what Location and
    Content-Location name of the same origin.

    Empty for safe methods and for errors. Every URI is one that :func:`.target.cache_key` takes.
    """
    if request.method in _SAFE or not 200 <= response.status <= 399:
        return ()
    target = resolved(request.uri, "")
    if target is None:
        return ()
    named = (resolved(target, response.fields.get(name)) for name in ("location", "content-location"))
    # A foreign origin has no say, or any server could empty the cache (section 4.4).
    origin = parse_target(target).origin
    return tuple(dict.fromkeys((target, *(uri for uri in named if uri and parse_target(uri).origin == origin))))
