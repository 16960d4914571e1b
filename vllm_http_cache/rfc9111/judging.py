"""What becomes of an origin's answer (RFC 9111 sections 3, 4.2.4, 4.3.3 to 4.3.5; RFC 5861 section 4).

Each verdict is complete: what is stored, changed or removed, and what answers the caller. Nothing is decided later
from what a verdict does not say.
"""

from __future__ import annotations

from dataclasses import dataclass

from .directives import request_directives
from .fields import trimmed
from .freshness import fresh_until, has_explicit_lifetime, stale_if_error, stale_since, within_ttl
from .message import MAX_VARIANTS, Request, Response, StoredResponse
from .options import CacheOptions
from .ranges import content_range, has_what_is_wanted, holds_whole
from .storing import storable, stored_response
from .target import is_signed, same_uri
from .updating import completed, updated
from .validating import completes, may_be_validated, validates
from .validators import entity_tag, entity_tags, is_strong, same_strong_tag, same_tag
from .vary import matches, vary_names

__all__ = ["Changes", "Freshen", "Keep", "Pass", "Refetch", "UseStale", "judge", "judge_failure", "merged"]

Changes = tuple[tuple[StoredResponse, StoredResponse | None], ...]

# RFC 5861 section 4: the status codes that are an error.
_ERRORS = frozenset((500, 502, 503, 504))

_VALIDATORS = ("etag", "last-modified")


@dataclass(frozen=True, slots=True)
class Pass:
    """Hand the answer to the caller and store none of it. ``changes``: stored responses, and by what each is to be
    replaced (None: by nothing)."""

    changes: Changes = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """Hand the answer to the caller and store it as ``stored``, whose ``body`` the storage fills in.

    ``shareable``: callers of equal requests may have it too. ``part``: a stored response whose octets come before the
    arriving ones, the two together being what is stored and what the caller gets. ``obsolete``: what changes all the
    same when it cannot be stored.
    """

    stored: StoredResponse
    shareable: bool
    part: StoredResponse | None = None
    obsolete: Changes = ()


@dataclass(frozen=True, slots=True)
class Freshen:
    """A 304: make the ``changes``, then answer with ``selected``. ``shareable``: as of :class:`Keep`.

    ``selected`` is None when the 304 answers the caller's own precondition, and goes to the caller as it is.
    """

    changes: Changes
    selected: StoredResponse | None
    shareable: bool


@dataclass(frozen=True, slots=True)
class UseStale:
    """The origin failed: answer with the stale ``stored`` instead."""

    stored: StoredResponse


@dataclass(frozen=True, slots=True)
class Refetch:
    """The answer is to none of what is stored, nor to the caller: ask again, with the caller's request as it is."""


Verdict = Pass | Keep | Freshen | UseStale | Refetch


@dataclass(frozen=True, slots=True)
class _Case:
    """What a verdict depends on: the arguments of :func:`judge`."""

    request: Request
    sent: Request
    response: Response
    request_time: float
    response_time: float
    candidates: tuple[StoredResponse, ...]
    options: CacheOptions

    def stored(self) -> StoredResponse:
        """The response as it would be stored."""
        return stored_response(self.request, self.response, self.request_time, self.response_time, self.options)

    def updated(self, stored: StoredResponse, *, confirms: bool = True) -> StoredResponse:
        """*stored* as the response would update it."""
        times = self.request_time, self.response_time
        return updated(stored, self.request, self.response, *times, self.options, confirms=confirms)

    def if_it_may_stay(self, stored: StoredResponse) -> StoredResponse | None:
        """*stored* with its new fields, or None when these forbid to store it."""
        response = Response(stored.status, stored.fields)
        asked = Request("GET", self.request.uri, self.request.fields)
        return stored if storable(asked, response, self.options) else None

    def is_shareable(self, stored: StoredResponse) -> bool:
        """Is *stored* fresh on arrival, and all that an equal request could want?"""
        return (
            holds_whole(stored)
            and "*" not in vary_names(stored.fields)
            and stored.response_time < fresh_until(stored, self.options)
        )


def judge(
    request: Request,
    sent: Request,
    response: Response,
    request_time: float,
    response_time: float,
    candidates: tuple[StoredResponse, ...],
    options: CacheOptions,
) -> Verdict:
    """Decide what becomes of *response*.

    :param request: the caller's request. :param sent: what was sent for it.
    :param request_time: seconds since the epoch when it was sent. :param response_time: when the response came.
    :param candidates: the stored responses that *sent* was made for, best first. Without them the verdict is never
        :class:`Refetch`.
    """
    case = _Case(request, sent, response, request_time, response_time, candidates, options)
    if response.status == 304:
        return _judge_not_modified(case)
    if response.status in _ERRORS:
        stale = judge_failure(request, candidates, response_time, options)
        if stale is not None:
            return UseStale(stale)
    if request.method == "HEAD":
        return Pass(_head_changes(case))
    part = completes(request, candidates)
    if part is not None and response.status in (206, 416):
        return _judge_rest(case, part)
    # An error that does not say for how long it holds leaves what is stored as it is, unless that is an error too. So
    # does any under a signature: it speaks of that signature.
    error = response.status >= 400
    passing = error and (
        (any(stored.status < 400 for stored in candidates) and not has_explicit_lifetime(response.fields, options))
        or (options.signed_urls and is_signed(request.uri))
    )
    # Section 4.3.3: a full response means that none of the candidates is suitable any longer. An interim one, which
    # some clients take for the answer, is none.
    full = 200 <= response.status <= 399 and response.status != 206
    obsolete = tuple((stored, None) for stored in candidates) if full else ()
    if not passing and storable(request, response, options):
        stored = case.stored()
        return Keep(stored, case.is_shareable(stored), obsolete=obsolete)
    return Pass(obsolete)


def judge_failure(
    request: Request, candidates: tuple[StoredResponse, ...], now: float, options: CacheOptions
) -> StoredResponse | None:
    """The stored response that may answer *request* although the origin failed (section 4.2.4, RFC 5861 section 4);
    None when there is none.

    That is the best of those that meet the other requirements of section 4, if it does not forbid it: what it forbids
    is not to be had from an older one.
    """
    asked = request_directives(request.fields)
    able = (stored for stored in candidates if _is_exact(request, stored) and has_what_is_wanted(request, stored))
    best = next(able, None)
    if best is None or (asked.no_cache and asked.stale_if_error is None):
        return None
    span = stale_if_error(best, options, asked.stale_if_error)
    allowed = span is not None and now - stale_since(best, options) <= span
    return best if allowed and within_ttl(best, now, options) else None


def merged(responses: tuple[StoredResponse, ...], new: StoredResponse, now: float) -> tuple[StoredResponse, ...]:
    """What is stored under a key once *new* is, at most ``MAX_VARIANTS`` responses.

    *new* takes the place of those that would have answered the request it came for, as far as its own Vary tells, but
    for other parts of the same representation, and a whole is not given up for a part of itself. Nor is what came
    later given up for *new*, whose body took longer.

    :param now: seconds since the epoch. What seems to have come later than that was stored by a clock that was wrong.
    """

    names, values = frozenset(vary_names(new.fields)), dict(new.selecting)

    def answers_its_request(stored: StoredResponse) -> bool:
        kept = dict(stored.selecting)
        return all(name in names and kept.get(name) == values.get(name) for name in vary_names(stored.fields))

    if any(new.response_time < stored.response_time <= now and answers_its_request(stored) for stored in responses):
        return responses
    others = [
        stored
        for stored in responses
        if not answers_its_request(stored)
        or (not holds_whole(new) and same_strong_tag(stored.fields, new.fields) and _content(stored) != _content(new))
    ]
    others.sort(key=lambda stored: stored.confirmed, reverse=True)
    return (new, *others[: MAX_VARIANTS - 1])


def _content(stored: StoredResponse) -> object:
    return "whole" if holds_whole(stored) else content_range(stored.fields)


def _is_exact(request: Request, stored: StoredResponse) -> bool:
    """Are URI and selecting fields those of *stored*, so that it may answer without a strong validator's word?"""
    return same_uri(stored.uri, request.uri) and matches(request, stored)


def _judge_not_modified(case: _Case) -> Freshen | Refetch:
    """A 304: whom does it mean, and whom may it update?"""
    tag = entity_tag(case.response.fields)
    meant = _meant(case)
    if not meant:
        # Section 4.3.2: then it means what the caller has, or a response nobody has. Tags go before a date.
        own, sent = (entity_tags(message.fields, "if-none-match") for message in (case.request, case.sent))
        asked_own = set(own) == set(sent) if own else case.sent == case.request
        return Freshen((), None, False) if asked_own or any(same_tag(tag, one) for one in own) else Refetch()
    if is_strong(tag) and entity_tag(meant[0].fields) != tag:
        return Freshen((), meant[0], False)  # as good as what is stored, but another response's fields
    renewed = [case.updated(stored) for stored in meant]
    changes = tuple((old, case.if_it_may_stay(new)) for old, new in zip(meant, renewed, strict=True))
    return Freshen(changes, renewed[0], changes[0][1] is not None and case.is_shareable(renewed[0]))


def _meant(case: _Case) -> list[StoredResponse]:
    """The stored responses that a 304 is about, best first (section 4.3.4)."""
    fields = case.response.fields
    able = [stored for stored in case.candidates if may_be_validated(case.request, stored)]
    tag = entity_tag(fields)
    if tag is not None:
        strongly = [stored for stored in able if same_strong_tag(stored.fields, fields)]
        return strongly or [stored for stored in able if same_tag(tag, entity_tag(stored.fields))][:1]
    modified = fields.get("last-modified")
    if modified is not None:
        able = [stored for stored in able if stored.fields.get("last-modified") == modified]
    # Without a tag the condition tells whom it means, if it was about one response and the caller has no other.
    asked_about = [stored for stored in able if validates(case.sent, (stored,))]
    if len(asked_about) != 1:
        return []
    known = entity_tag(asked_about[0].fields)
    own = entity_tags(case.request.fields, "if-none-match")
    return asked_about if all(same_tag(known, one) for one in own) else []


def _judge_rest(case: _Case, part: StoredResponse) -> Keep | Refetch:
    """The answer to a request for the rest of *part*: do the two make a whole (section 3.4)?"""
    there, came = content_range(part.fields), content_range(case.response.fields)
    if case.response.status != 206 or there is None or came is None:
        return Refetch()
    first, last, complete = came
    fits = first == there[1] + 1 and complete == last + 1 and there[2] in (None, complete)
    alike = part.fields.get("content-encoding") == case.response.fields.get("content-encoding")
    if not fits or not alike or not same_strong_tag(part.fields, case.response.fields):
        return Refetch()
    whole = case.if_it_may_stay(completed(part, case.stored(), last + 1, case.options))
    return Refetch() if whole is None else Keep(whole, case.is_shareable(whole), part)


def _head_changes(case: _Case) -> Changes:
    """What the answer to a HEAD changes: stored responses it still describes are updated, others are as good as
    stale for ever (section 4.3.5)."""
    if case.response.status != 200:
        return ()
    compared = any(name in case.response.fields for name in _VALIDATORS)
    changes: list[tuple[StoredResponse, StoredResponse | None]] = []
    for stored in case.candidates:
        exact = _is_exact(case.request, stored)
        if not _is_described(stored, case.response):
            changes.extend([(stored, None)] if exact else [])
        elif exact or same_strong_tag(stored.fields, case.response.fields):
            changes.append((stored, case.if_it_may_stay(case.updated(stored, confirms=compared))))
    return tuple(changes)


def _is_described(stored: StoredResponse, response: Response) -> bool:
    """Do the status, and validators and length as far as given, in the answer to a HEAD agree with what is stored?"""
    if stored.status != response.status:
        return False
    if any(response.fields.get(name) not in (None, stored.fields.get(name)) for name in _VALIDATORS):
        return False
    length = response.fields.get("content-length")
    return length is None or stored.body is None or trimmed(length) == str(stored.body.length)
