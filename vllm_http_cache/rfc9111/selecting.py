"""Which stored response answers a request, if one may (RFC 9111 section 4).

This file decides whether to go to the origin. What is sent there, and what becomes of the answer, is not its matter;
why the origin is asked is told in the words of RFC 9211 section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor

from .directives import RequestDirectives, request_directives, response_directives
from .freshness import current_age, date_value, fresh_until, may_be_stale, stale_since, within_ttl
from .message import Request, StoredResponse
from .options import CacheOptions
from .ranges import has_its_length, has_what_is_wanted, holds_whole, wanted
from .target import is_host_of, same_uri
from .validators import has_strong_tag
from .vary import accepts_coding, matches, vary_names

__all__ = ["Ask", "Refuse", "Reuse", "forbids_forwarding", "is_answerable", "names_target", "select"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """Answer with *stored*. ``ttl``: whole seconds it is still fresh, negative when it is stale.

    ``validate_later``: and validate it in the background (RFC 5861 section 3).
    """

    stored: StoredResponse
    ttl: int
    validate_later: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Forward the request. ``why`` is a fwd token of RFC 9211.

    ``candidates``, best first, are the stored responses that the origin's answer may validate, update or make
    obsolete. ``collapsible``: it makes sense to wait for what the origin answers to an equal request.
    """

    why: str
    candidates: tuple[StoredResponse, ...] = ()
    collapsible: bool = True


@dataclass(frozen=True, slots=True)
class Refuse:
    """Neither a stored response nor the origin may answer: 504 (RFC 9111 section 5.2.1.7). ``why``: a token."""

    why: str


def is_answerable(request: Request) -> bool:
    """May a stored response answer such a request at all?

    It is a GET or HEAD, without content (RFC 9110 section 9.3.1), to the resource that its URI names: a Host field
    of the caller's own would make it another one's (section 7.1).

    :raises InvalidTarget: there is a Host field, and the URI is ambiguous.
    """
    fields = request.fields
    has_content = fields.get("content-length") not in (None, "0") or "transfer-encoding" in fields
    return request.method in ("GET", "HEAD") and not has_content and names_target(request)


def names_target(request: Request) -> bool:
    """Is *request* to the resource that its URI names, by its Host field too (RFC 9110 section 7.1)?

    :raises InvalidTarget: there is a Host field, and the URI is ambiguous.
    """
    host = request.fields.get("host")
    return host is None or is_host_of(host, request.uri)


def forbids_forwarding(request: Request, options: CacheOptions) -> bool:
    """Is the origin not to be asked, whatever is stored (RFC 9111 section 5.2.1.7)?"""
    return options.mode == "only-if-cached" or (
        options.mode != "off" and request_directives(request.fields).only_if_cached
    )


def select(
    request: Request, responses: Sequence[StoredResponse], now: float, options: CacheOptions
) -> Reuse | Ask | Refuse:
    """Decide what answers *request*, a GET or HEAD.

    :param responses: all that is stored under the request's key.
    :param now: seconds since the epoch.
    """
    decision = _decide(request, responses, now, options)
    if not forbids_forwarding(request, options):
        return decision
    return replace(decision, validate_later=False) if isinstance(decision, Reuse) else Refuse("only-if-cached")


def _decide(request: Request, responses: Sequence[StoredResponse], now: float, options: CacheOptions) -> Reuse | Ask:
    """What answers *request*, the origin if need be."""
    asked = request_directives(request.fields)
    if options.mode in ("no-store", "reload"):
        return Ask("bypass" if options.mode == "no-store" else "request", collapsible=False)
    heedless = options.mode in ("force-cache", "only-if-cached")  # of freshness, and of what the caller says of it
    if not heedless and not asked.only_if_cached and (asked.no_store or _is_for_the_origin(request)):
        return Ask("request", collapsible=False)
    if "authorization" in request.fields:  # who brings credentials wants another answer than the challenge
        responses = [stored for stored in responses if stored.status not in (401, 407)]
    responses = [stored for stored in responses if has_its_length(stored)]  # others are not from this cache
    usable = _usable(request, responses)
    if not usable:
        decision: Reuse | Ask = _miss(request, responses)
    elif heedless:
        kept = next((stored for stored in usable if within_ttl(stored, now, options)), None)
        decision = Ask("stale", usable) if kept is None else Reuse(kept, floor(fresh_until(kept, options) - now))
    else:
        decision = _weigh(asked, usable, now, options)
    if isinstance(decision, Reuse):
        return decision
    return Ask(decision.why, decision.candidates, _is_collapsible(request, asked, decision.candidates, options))


def _usable(request: Request, responses: Sequence[StoredResponse]) -> tuple[StoredResponse, ...]:
    """The stored responses that meet all requirements of section 4 but the last two, about freshness. Best first."""
    usable = [
        stored
        for stored in responses
        if same_uri(stored.uri, request.uri)
        and matches(request, stored)
        and accepts_coding(request, stored)
        and has_what_is_wanted(request, stored)
    ]
    return _best_first(usable) if len(usable) > 1 else tuple(usable)


def _best_first(responses: Sequence[StoredResponse]) -> tuple[StoredResponse, ...]:
    """The most recent first, by Date (section 4); the origin's clock counts in seconds, so ours breaks ties.

    That goes before the SHOULD of section 4.1 to prefer responses with a Vary field: an origin that no longer varies
    must not be answered for from the time when it did.
    """
    return tuple(sorted(responses, key=lambda stored: (date_value(stored), stored.response_time), reverse=True))


def _weigh(
    asked: RequestDirectives, usable: tuple[StoredResponse, ...], now: float, options: CacheOptions
) -> Reuse | Ask:
    """Reuse the best of what is usable, or ask the origin about it, as freshness and the caller's directives say."""
    best = usable[0]
    left = fresh_until(best, options) - now
    alive = within_ttl(best, now, options)
    unwilling = asked.no_cache or options.mode == "no-cache"
    if alive and left > 0:
        if unwilling or not _is_fresh_enough(asked, best, left, now, options):
            return Ask("request", usable)
        return Reuse(best, floor(left))
    if alive and not unwilling and may_be_stale(best, options):
        staleness = now - stale_since(best, options)
        young = asked.max_age is None or current_age(best, now) <= asked.max_age
        if asked.max_stale is not None and staleness <= asked.max_stale and young:
            return Reuse(best, floor(left))
        window = response_directives(best.fields, options).stale_while_revalidate
        # A caller who sets limits does not wish for what is stale beyond them (section 5.2.1).
        limited = (asked.max_age, asked.min_fresh, asked.max_stale) != (None, None, None)
        # A part would be validated by a request for the whole.
        if window is not None and staleness <= window and not limited and holds_whole(best):
            return Reuse(best, floor(left), validate_later=True)
    return Ask("stale", usable)


def _is_fresh_enough(
    asked: RequestDirectives, stored: StoredResponse, left: float, now: float, options: CacheOptions
) -> bool:
    """Does a response, fresh for *left* seconds, keep the caller's limits (sections 5.2.1.1 and 5.2.1.3)?"""
    if asked.min_fresh is not None and left < asked.min_fresh:
        return False
    if asked.max_age is None or (asked.max_age > 0 and current_age(stored, now) <= asked.max_age):
        return True
    # RFC 8246 section 2.1: a reload, which is a max-age of 0, is no reason to validate what will not change; no-cache
    # is. Section 3: over a connection nobody vouches for, it is not to be believed.
    immutable = response_directives(stored.fields, options).immutable and stored.uri.lower().startswith("https:")
    return asked.max_age == 0 and immutable


def _miss(request: Request, responses: Sequence[StoredResponse]) -> Ask:
    """Ask the origin, of nothing usable. What it may still confirm, by a strong validator only: a response to the
    same URI under another signature, one that varies on everything; and a part it may complete."""
    if not responses:
        return Ask("uri-miss")
    same = [stored for stored in responses if same_uri(stored.uri, request.uri)]
    matching = [stored for stored in same if matches(request, stored) and accepts_coding(request, stored)]
    if matching:
        whole = request.method == "GET" and wanted(request) is None and "range" not in request.fields
        return Ask("partial", _best_first([part for part in matching if whole and part.first == 0]))
    confirmable = [
        stored
        for stored in responses
        if has_strong_tag(stored.fields)
        and accepts_coding(request, stored)
        and has_what_is_wanted(request, stored)
        and (stored not in same or "*" in vary_names(stored.fields))
        and (matches(request, stored) or "*" in vary_names(stored.fields))
    ]
    return Ask("vary-miss" if same else "uri-miss", _best_first(confirmable))


def _is_for_the_origin(request: Request) -> bool:
    """Has *request* preconditions that no cache may evaluate (section 4.3.2)?"""
    return "if-match" in request.fields or "if-unmodified-since" in request.fields


def _is_collapsible(
    request: Request, asked: RequestDirectives, candidates: tuple[StoredResponse, ...], options: CacheOptions
) -> bool:
    if request.method != "GET" or options.mode == "no-cache" or asked.no_cache or asked.max_age == 0:
        return False
    if any(name in request.fields for name in ("range", "if-none-match", "if-modified-since")):
        return False
    # What answers an authenticated request is not shared unless it says so. The last one may have said so.
    return not (options.shared and "authorization" in request.fields) or any(
        response_directives(stored.fields, options).shares_authorized for stored in candidates
    )
