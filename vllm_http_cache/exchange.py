"""One request's way through the cache, as a generator of steps.

The rules are :mod:`.rfc9111`'s; this file puts their answers in order: look up, answer or ask the origin, judge what
came, keep it. It touches nothing: what must be done is yielded as a step (:mod:`.steps`), and the driver
(:mod:`.cache`) sends back what came of it. Failures come back as values. The same generator serves synchronous and
asynchronous callers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from .rfc9111.cachestatus import CacheStatus
from .rfc9111.invalidating import invalidated
from .rfc9111.judging import Changes, Freshen, Keep, Pass, Refetch, UseStale, judge, judge_failure
from .rfc9111.message import Fields, Request, Response, StoredResponse
from .rfc9111.options import CacheOptions
from .rfc9111.responding import gateway_timeout, respond
from .rfc9111.selecting import Ask, Refuse, Reuse, forbids_forwarding, is_answerable, names_target, select
from .rfc9111.storing import storable, stored_response
from .rfc9111.target import cache_key, flight_key, lookup_key
from .rfc9111.updating import is_news
from .rfc9111.validating import conditional, unconditional, validates
from .rfc9111.vary import vary_names
from .steps import (
    Alone,
    Answer,
    Arrived,
    Change,
    Discard,
    Enter,
    Failed,
    Forget,
    Forward,
    Joined,
    Later,
    Lead,
    Leave,
    LookUp,
    Open,
    Store,
)

__all__ = ["Exchange", "exchange", "revalidate"]

VAIN = 2  # looks after which those who wait for others' exchanges, which leave nothing, go alone
ROUNDS = 100  # what keeps changing under our eyes must not hold a caller for ever

Exchange = Generator[Any, Any, Answer | Failed | None]


def exchange(request: Request, options: CacheOptions) -> Exchange:
    """Every way a request can go. Ends with an :class:`Answer`, or with :class:`Failed` when there is none to give."""
    if options.mode == "off" or not is_answerable(request):
        if forbids_forwarding(request, options):
            return _refused("only-if-cached")
        return (yield from _write_through(request, options))
    key = cache_key(request.uri, options)
    settled = False
    learnt: tuple[StoredResponse, ...] = ()  # what others received meanwhile; its Vary tells flights apart
    responses: tuple[StoredResponse, ...] | None = None
    decision: Ask | Reuse | Refuse = Ask("miss")
    vain = 0  # looks in a row that found nothing new
    for _ in range(ROUNDS):
        before = responses
        responses, now = yield LookUp(key)
        vain = vain + 1 if responses == before else 0
        if vain and (settled or vain >= VAIN):  # time alone makes nothing fresh
            break
        decision = select(request, responses, now, options)
        if isinstance(decision, Refuse):
            return _refused(decision.why)
        if isinstance(decision, Reuse):
            status = CacheStatus(hit=True, ttl=decision.ttl)
            answer = yield from _answer_from(decision.stored, request, key, now, status, shareable=True)
            if answer is None:
                continue
            if decision.validate_later:
                yield Later(request)
            return answer
        if settled or not decision.collapsible:
            break
        turn = yield Enter(flight_key(key, request, (*responses, *learnt)))
        if isinstance(turn, Joined):
            answer = _answer_along(turn, request, now, decision.why, options)
            if answer is not None:
                return answer
            yield Leave(turn.body)
            if turn.stored in learnt or not vary_names(turn.stored.fields):
                break
            learnt = (*learnt, turn.stored)
        elif isinstance(turn, Failed):
            return (yield from _despite(turn, request, key, decision, options))
        elif isinstance(turn, Alone):
            break
        else:  # whoever led before may have stored what is wanted: look once more
            settled = isinstance(turn, Lead)
    ask = decision if isinstance(decision, Ask) else Ask("miss")
    return (yield from _ask(request, key, ask, options))


def revalidate(request: Request, options: CacheOptions) -> Exchange:
    """Validate a stale response that has already answered (RFC 5861 section 3); None when nobody need do it."""
    request = unconditional(request)
    key = cache_key(request.uri, options)
    settled = False
    for _ in range(ROUNDS):
        responses, now = yield LookUp(key)
        decision = select(request, responses, now, options)
        if not (isinstance(decision, Reuse) and decision.validate_later):
            return None
        if settled:
            return (yield from _ask(request, key, Ask("stale", (decision.stored,)), options))
        turn = yield Enter(flight_key(key, request, responses))
        if isinstance(turn, Joined):
            yield Leave(turn.body)
        if isinstance(turn, Joined | Failed):
            return None
        settled = isinstance(turn, Lead | Alone)
    return None


def _ask(request: Request, key: str, ask: Ask, options: CacheOptions) -> Exchange:
    """Forward, with what we have as the condition; and once more without it when the answer was to nothing we have."""
    candidates = ask.candidates
    for sent in (conditional(request, candidates), request):
        came = yield Forward(sent, validates(sent, candidates))
        if isinstance(came, Failed):
            return (yield from _despite(came, request, key, replace(ask, candidates=candidates), options))
        status = CacheStatus(forward=ask.why, forward_status=came.response.status)
        verdict = judge(request, sent, came.response, came.request_time, came.response_time, candidates, options)
        match verdict:
            case Pass(changes):
                yield from _note(key, changes, options)
                return _passed(came, status)
            case Keep(stored, shareable, part, obsolete):
                held = yield Store(key, stored, came, shareable, part)
                if held is not None:
                    body, kept = held
                    if not kept:
                        yield from _note(key, obsolete, options)
                        return _passed(came, status)
                    status = replace(status, stored=True)
                    response = respond(request, stored, came.response_time)[0] if part else came.response
                    return _told(response, status, body, stored=stored, shareable=shareable)
                yield Discard(came)
            case Freshen(changes, None):
                yield from _note(key, changes, options)
                return _passed(came, status)
            case Freshen(changes, StoredResponse() as selected, shareable):
                answer = yield from _answer_from(
                    selected, request, key, came.response_time, status, shareable=shareable
                )
                if answer is not None:
                    yield from _note(key, changes, options)
                yield Discard(came)
                if answer is not None:
                    return answer
            case UseStale(stored):
                status = replace(status, detail="stale-if-error")
                answer = yield from _answer_from(stored, request, key, came.response_time, status)
                if answer is None:
                    return _passed(came, status)
                yield Discard(came)
                return answer
            case Refetch():
                yield Discard(came)
        candidates = ()
    raise AssertionError("an unconditional request leaves nothing to refetch")


def _note(key: str, changes: Changes, options: CacheOptions) -> Generator[Any, Any, None]:
    """Put on record what is worth it."""
    changes = tuple((old, new) for old, new in changes if new is None or is_news(old, new, options))
    if changes:
        yield Change(key, changes)


def _despite(failed: Failed, request: Request, key: str, ask: Ask, options: CacheOptions) -> Exchange:
    """The origin gave no answer: perhaps a stale one may do (RFC 9111 section 4.2.4)."""
    stale = judge_failure(request, ask.candidates, failed.time, options)
    status = CacheStatus(forward=ask.why, detail="stale-if-error")
    if stale and (answer := (yield from _answer_from(stale, request, key, failed.time, status))):
        return answer
    return replace(failed, status=CacheStatus(forward=ask.why))


def _answer_from(
    stored: StoredResponse, request: Request, key: str, now: float, status: CacheStatus, *, shareable: bool = False
) -> Generator[Any, Any, Answer | None]:
    """Answer with a stored response; None when its body cannot be had."""
    response, span = respond(request, stored, now)
    body = None
    if span is not None and (body := (yield Open(key, stored))) is None:
        return None
    return _told(response, status, body, span, stored=stored, shareable=shareable)


def _answer_along(turn: Joined, request: Request, now: float, why: str, options: CacheOptions) -> Answer | None:
    """Answer with what another exchange is receiving; None when that is no answer to *request*."""
    now = max(now, turn.stored.response_time)
    decision = select(request, (turn.stored,), now, options)
    if not isinstance(decision, Reuse) or decision.validate_later:
        return None
    response, _ = respond(request, turn.stored, now)
    status = CacheStatus(forward=why, collapsed=True, ttl=decision.ttl)
    return _told(response, status, turn.body, stored=turn.stored, shareable=True)


def _write_through(request: Request, options: CacheOptions) -> Exchange:
    """Forward a request that a cache may not answer, and forget what it changed (RFC 9111 sections 4 and 4.4).

    What a POST answers may be what a later GET would (RFC 9110 section 9.3.3).
    """
    came = yield Forward(request)
    if isinstance(came, Failed) or options.mode == "off":
        return came if isinstance(came, Failed) else Answer(came.response, body=came.source, arrived=came)
    for uri in invalidated(request, came.response):
        yield Forget(lookup_key(uri, options))
    why = "bypass" if request.method in ("GET", "HEAD") else "method"
    status = CacheStatus(forward=why, forward_status=came.response.status)
    if request.method == "POST" and names_target(request) and storable(request, came.response, options):
        stored = stored_response(request, came.response, came.request_time, came.response_time, options)
        held = yield Store(cache_key(request.uri, options), stored, came, shareable=False)
        if held is not None and held[1]:
            return _told(came.response, replace(status, stored=True), held[0], stored=stored)
    return _passed(came, status)


def _refused(why: str) -> Answer:
    return _told(gateway_timeout(), CacheStatus(detail=why), shareable=True)


def _passed(came: Arrived, status: CacheStatus) -> Answer:
    return replace(_told(came.response, status, came.source), arrived=came)


def _told(
    response: Response,
    status: CacheStatus,
    body: Any = None,
    span: tuple[int, int] | None = None,
    *,
    stored: StoredResponse | None = None,
    shareable: bool = False,
) -> Answer:
    """An answer that says in Cache-Status how it came about (RFC 9211)."""
    fields = Fields((*response.fields, ("Cache-Status", str(status))))
    head = Response(response.status, fields, response.reason)
    return Answer(head, status, body, span, stored, shareable=shareable)
