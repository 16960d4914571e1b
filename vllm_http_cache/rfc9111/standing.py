"""Answers that stand: what :func:`~.selecting.select` and :func:`~.responding.respond` would say again and again.

Most requests ask nothing of a cache, and most stored responses depend on nothing in a request. For these two
together the rules need be asked once; their answer holds until one moment in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from .freshness import fresh_until, initial_age
from .message import Fields, Request, Response, StoredResponse
from .options import CacheOptions
from .ranges import holds_whole
from .responding import respond
from .selecting import Reuse, is_answerable, select

__all__ = ["Standing", "is_plain", "standing"]

# The request fields that any rule looks at when a stored response has neither Vary nor a content coding.
_TELLING = frozenset(
    (
        *("authorization", "cache-control", "content-length", "if-match", "if-modified-since", "if-none-match"),
        *("if-range", "if-unmodified-since", "pragma", "range", "transfer-encoding"),
    )
)


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer to every plain GET of one URI at times from ``since`` to before ``until``, in seconds."""

    stored: StoredResponse
    since: float
    until: float
    fields: Fields
    initial_age: float

    def answer(self, age: int) -> Response:
        """The head as it is when the response's age is *age*."""
        return Response(self.stored.status, Fields((*self.fields.lines, ("Age", str(age)))), self.stored.reason)

    def age(self, now: float) -> int:
        """The value of Age (RFC 9111 section 4.2.3)."""
        return int(self.initial_age + (now - self.since))

    def ttl(self, now: float) -> int:
        """Whole seconds that it still stands."""
        return floor(self.until - now)


def is_plain(request: Request) -> bool:
    """Does nothing in *request* ask a cache for anything out of the ordinary?"""
    if request.method != "GET":
        return False
    names = [name.lower() for name, _ in request.fields.lines]
    return _TELLING.isdisjoint(names) and ("host" not in names or is_answerable(request))


def standing(
    request: Request, responses: tuple[StoredResponse, ...], now: float, options: CacheOptions
) -> Standing | None:
    """The standing answer to plain requests like *request*; None when there is none."""
    if options.mode != "default" or len(responses) != 1 or not is_plain(request):
        return None
    stored = responses[0]
    if "vary" in stored.fields or "content-encoding" in stored.fields or not holds_whole(stored):
        return None
    decision = select(request, responses, now, options)
    if not isinstance(decision, Reuse) or decision.validate_later or now < stored.response_time:
        return None
    response, _ = respond(request, stored, now)
    fields = response.fields.without(("age",))
    return Standing(stored, stored.response_time, fresh_until(stored, options), fields, initial_age(stored))
