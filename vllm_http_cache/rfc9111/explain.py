"""Why a stored response is fresh or stale, and what would be done about it: the rules, asked to speak.

Nothing is decided here. Every line of an explanation is the outcome of a rule in its own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .dates import format_http_date
from .directives import response_directives
from .freshness import current_age, fresh_until, lifetime, may_be_stale, stale_if_error, stale_since, within_ttl
from .message import Request, StoredResponse
from .options import CacheOptions
from .selecting import Ask, Reuse, is_answerable, select
from .target import same_uri
from .validating import conditional
from .vary import matches, vary_names

__all__ = ["Explanation", "explain", "outcome"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the rules say of one stored response at one moment.

    ``age`` and ``lifetime`` are seconds, ``stale_at`` seconds since the epoch. ``rule`` is the one that gave the
    lifetime. ``outcome`` says what would answer the request. ``validation``: the field lines that would be added to
    the request to validate it; empty when nothing would be, or can be, validated. ``notes``: one sentence for each
    further rule that applies, with its section.
    """

    fresh: bool
    age: float
    lifetime: float
    rule: str
    stale_at: float
    outcome: str
    validation: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def outcome(request: Request, responses: Sequence[StoredResponse], now: float, options: CacheOptions) -> str:
    """What would answer *request* where these are stored under its key; goes on from "it is"."""
    if options.mode == "off":
        return "forwarded: the mode is off"
    decision = select(request, responses, now, options) if is_answerable(request) else Ask("bypass")
    if isinstance(decision, Reuse):
        stale = ", stale" if decision.ttl < 0 else ""
        later = ", and validated in the background (RFC 5861 section 3)" if decision.validate_later else ""
        return f"answered from the cache{stale}{later}"
    if isinstance(decision, Ask):
        return f"forwarded: {decision.why} (RFC 9211 section 2.2)"
    return "refused with 504: only-if-cached (RFC 9111 section 5.2.1.7)"


def explain(request: Request, stored: StoredResponse, now: float, options: CacheOptions) -> Explanation:
    """Explain what *stored* means to *request*.

    :param now: seconds since the epoch.
    """
    seconds, rule = lifetime(stored, options)
    until = fresh_until(stored, options)
    sent = conditional(request, (stored,))
    return Explanation(
        fresh=now < until and within_ttl(stored, now, options),
        age=current_age(stored, now),
        lifetime=seconds,
        rule=rule,
        stale_at=until,
        outcome=outcome(request, (stored,), now, options),
        validation=tuple(line for line in sent.fields if line not in request.fields.lines),
        notes=tuple(_notes(request, stored, now, options)),
    )


def _notes(request: Request, stored: StoredResponse, now: float, options: CacheOptions) -> list[str]:
    directives = response_directives(stored.fields, options)
    notes = []
    if directives.source != "cache-control":
        notes.append(f"{directives.source} is obeyed, Cache-Control and Expires are not (RFC 9213 section 2.2)")
    if stored.confirmed + options.ttl < stale_since(stored, options):
        notes.append(
            f"the ttl of {options.ttl:g} s ends the lifetime early, {format_http_date(stored.confirmed + options.ttl)}"
        )
    if not within_ttl(stored, now, options):
        notes.append("past the ttl, or stored by a clock that was ahead: not used without validation")
    if not may_be_stale(stored, options):
        notes.append("never served stale: the response forbids it (RFC 9111 section 4.2.4)")
    for name, window in (
        ("stale-while-revalidate", directives.stale_while_revalidate),
        ("stale-if-error", stale_if_error(stored, options)),
    ):
        if window is not None and may_be_stale(stored, options):
            notes.append(
                f"{name} allows it stale until {format_http_date(stale_since(stored, options) + window)} (RFC 5861)"
            )
    if not same_uri(stored.uri, request.uri):
        notes.append("stored under another signature: used only after the origin confirms it by a strong validator")
    if not matches(request, stored):
        notes.append(f"Vary: {', '.join(vary_names(stored.fields))}: another request's (RFC 9111 section 4.1)")
    return notes
