"""Fresh or stale (RFC 9111 section 4.2).

Times are seconds since the epoch, ages and lifetimes seconds. A response is fresh while its freshness lifetime
exceeds its age; everything here serves to turn that into one moment in time.
"""

from __future__ import annotations

from typing import NamedTuple

from .dates import parse_http_date
from .directives import ResponseDirectives, response_directives
from .fields import delta_seconds, trimmed
from .message import Fields, StoredResponse
from .options import CacheOptions

__all__ = [
    "CLOCK_SKEW",
    "HEURISTIC_STATUSES",
    "Lifetime",
    "current_age",
    "date_value",
    "fresh_until",
    "has_explicit_lifetime",
    "initial_age",
    "lifetime",
    "may_be_stale",
    "stale_if_error",
    "stale_since",
    "within_ttl",
]

# RFC 9110 section 15.1: those that may be given a heuristic lifetime.
HEURISTIC_STATUSES = frozenset((200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501))

# The clocks of machines that share a storage differ. A response from further in the future than this was stored by a
# clock that was wrong, and nothing its times say can be relied on.
CLOCK_SKEW = 5.0


class Lifetime(NamedTuple):
    """A freshness lifetime in seconds (negative: expired before it was sent), and the rule that gave it."""

    seconds: float
    rule: str


def date_value(stored: StoredResponse) -> float:
    """date_value; for a response without a valid Date the time it was received (RFC 9110 section 6.6.1)."""
    date = parse_http_date(stored.fields.get("date"), stored.response_time)
    return stored.response_time if date is None else date


def initial_age(stored: StoredResponse) -> float:
    """corrected_initial_age: the response's age when it was received (section 4.2.3)."""
    apparent_age = max(0.0, stored.response_time - date_value(stored))
    response_delay = max(0.0, stored.response_time - stored.request_time)
    # Of several values the first one counts, and one that is not a number of seconds does not (section 5.1).
    age = stored.fields.get("age")
    age_value = delta_seconds(trimmed(age.partition(",")[0])) if age else None
    return max(apparent_age, (age_value or 0) + response_delay)


def current_age(stored: StoredResponse, now: float) -> float:
    """current_age (section 4.2.3). A clock that was set back makes nothing younger than it was."""
    return initial_age(stored) + max(0.0, now - stored.response_time)


def lifetime(stored: StoredResponse, options: CacheOptions) -> Lifetime:
    """The freshness lifetime and the rule it comes from (section 4.2.1), ``options.ttl`` aside."""
    directives = response_directives(stored.fields, options)
    if directives.no_cache:
        return Lifetime(0, "no-cache: never used without validation (RFC 9111 section 5.2.2.4)")
    if options.shared and directives.s_maxage is not None:
        return Lifetime(directives.s_maxage, "s-maxage (RFC 9111 section 5.2.2.10)")
    if directives.max_age is not None:
        return Lifetime(directives.max_age, "max-age (RFC 9111 section 5.2.2.1)")
    if _obeys_expires(stored.fields, directives):
        expires = parse_http_date(stored.fields.get("expires"), stored.response_time)
        if expires is None:
            return Lifetime(0, "Expires is not a date, so already expired (RFC 9111 section 5.3)")
        return Lifetime(expires - date_value(stored), "Expires (RFC 9111 section 5.3)")
    modified = parse_http_date(stored.fields.get("last-modified"), stored.response_time)
    if modified is None or not (stored.status in HEURISTIC_STATUSES or directives.public):
        return Lifetime(0, "no lifetime stated, and no ground for a heuristic one (RFC 9111 section 4.2.2)")
    guess = max(0.0, date_value(stored) - modified) * options.heuristic_fraction
    return Lifetime(guess, "heuristic: a share of the time since Last-Modified (RFC 9111 section 4.2.2)")


def has_explicit_lifetime(fields: Fields, options: CacheOptions) -> bool:
    """Does the response state a lifetime, be it a wrong one (section 3, last list)?"""
    directives = response_directives(fields, options)
    stated = directives.max_age is not None or (options.shared and directives.s_maxage is not None)
    return stated or _obeys_expires(fields, directives)


def stale_since(stored: StoredResponse, options: CacheOptions) -> float:
    """When the response's lifetime ends or ended, whatever ``options.ttl`` says."""
    return stored.response_time - initial_age(stored) + lifetime(stored, options).seconds


def fresh_until(stored: StoredResponse, options: CacheOptions) -> float:
    """When the response becomes or became stale: the end of its lifetime or of the ttl, whichever is first.

    It is fresh before, stale from that moment on. Depends on nothing but the arguments, so it can be kept.
    """
    return min(stale_since(stored, options), stored.confirmed + options.ttl)


def within_ttl(stored: StoredResponse, now: float, options: CacheOptions) -> bool:
    """May the response be used at all, fresh or stale: not past the ttl, and not from a future that never was?"""
    return now < stored.confirmed + options.ttl and max(stored.response_time, stored.confirmed) <= now + CLOCK_SKEW


def may_be_stale(stored: StoredResponse, options: CacheOptions) -> bool:
    """Does the response not forbid to be served stale (section 4.2.4)?"""
    directives = response_directives(stored.fields, options)
    shared = options.shared and (directives.proxy_revalidate or directives.s_maxage is not None)
    return not (directives.no_cache or directives.must_revalidate or shared)


def stale_if_error(stored: StoredResponse, options: CacheOptions, asked: float | None = None) -> float | None:
    """For how many seconds past its freshness the response may answer when the origin fails (RFC 5861 section 4).

    The longest of the spans that it, the caller (*asked*) and the operator allow; None when it may not at all.
    """
    if not may_be_stale(stored, options):
        return None
    spans = response_directives(stored.fields, options).stale_if_error, asked, options.stale_if_error
    return max((span for span in spans if span is not None), default=None)


def _obeys_expires(fields: Fields, directives: ResponseDirectives) -> bool:
    # A targeted field in force takes the place of Expires, too (RFC 9213 section 2.2).
    return "expires" in fields and directives.source == "cache-control"
