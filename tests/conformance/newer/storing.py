"""What is kept, and what of it."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.conformance.newer.common import FRESH, again, field, same, status
from tests.conformance.trial import Line, Trial, case, reply
from tests.origin import Answer

STORE = "RFC 9111 section 5.2.2.3"
for _name, _code, _value, _reused in (
    ("unknown-status", 599, "max-age=60, no-store, must-understand", False),
    ("unknown-status-alone", 599, "max-age=60, must-understand", False),
    ("known-status", 200, "max-age=60, no-store, must-understand", True),
    ("known-status-alone", 200, "max-age=60, must-understand", True),
    ("known-status-order", 200, "must-understand, no-store, max-age=60", True),
):
    again(
        "optimal" if _reused else "required",
        STORE,
        f"must-understand-{_name}",
        ("Cache-Control", _value),
        reused=_reused,
        status=_code,
    )

PRIVATE = "RFC 9111 section 5.2.2.7"
again("required", PRIVATE, "private-in-shared", ("Cache-Control", "max-age=60, private"), reused=False, only="shared")
again("optimal", PRIVATE, "private-in-private", ("Cache-Control", "max-age=60, private"), reused=True, only="private")
_both: Line = ("Cache-Control", "max-age=0, s-maxage=60")
again("required", "RFC 9111 section 5.2.2.10", "s-maxage-in-private", _both, reused=False, only="private")
_asks: tuple[Line, ...] = (("Authorization", "Basic YTpi"),)
again("required", "RFC 9111 section 3.5", "authorization-in-shared", FRESH, reused=False, asks=_asks, only="shared")
again("optimal", "RFC 9111 section 3.5", "authorization-in-private", FRESH, reused=True, asks=_asks, only="private")
again("check", "RFC 9213 section 2", "cdn-cache-control-is-not-ours", ("CDN-Cache-Control", "max-age=60"), reused=False)


# Which fields come back from the store.

FIELDS = "RFC 9111 section 3.1"


async def _kept(lines: tuple[Line, ...], absent: tuple[str, ...], trial: Trial) -> None:
    trial.script(reply(*lines, ("X-Kept", "1")))
    first = await trial.ask()
    second = await trial.ask()
    trial.asked(1)
    same(first, second)
    field(second, "x-kept", "1")
    for name in absent:
        field(second, name, None)


for _name, _lines, _absent in (
    ("connection", (("Connection", "A, b"), ("a", "1"), ("B", "2")), ("a", "b")),
    ("connection-lines", (("Connection", "a"), ("Connection", "b"), ("a", "1"), ("b", "2")), ("a", "b")),
    ("connection-empty-members", (("Connection", ",a ,, b"), ("a", "1"), ("b", "2")), ("a", "b")),
    ("proxy-authenticate", (("Proxy-Authenticate", "Basic realm=x"),), ("proxy-authenticate",)),
    ("proxy-authentication-info", (("Proxy-Authentication-Info", "x=y"),), ("proxy-authentication-info",)),
    ("proxy-authorization", (("Proxy-Authorization", "Basic x"),), ("proxy-authorization",)),
):
    case("required", FIELDS, f"not-kept-{_name}")(partial(_kept, (FRESH, *_lines), _absent))
for _name, _value, _absent in (
    ("one", 'no-cache="a"', ("a",)),
    ("list", 'no-cache="a, B"', ("a", "b")),
    ("spaced", 'no-cache=" a ,b "', ("a", "b")),
    ("token", "no-cache=a", ("a",)),
):
    _lines = (("Cache-Control", f"max-age=60, {_value}"), ("A", "1"), ("b", "2"))
    case("required", "RFC 9111 section 5.2.2.4", f"no-cache-fields-{_name}")(partial(_kept, _lines, _absent))
_lines = (("Cache-Control", 'max-age=60, private="a, b"'), ("A", "1"), ("b", "2"))
case("required", PRIVATE, "private-fields-in-shared", only="shared")(partial(_kept, _lines, ("a", "b")))


@case("required", "RFC 9111 section 4")
async def reused_response_keeps_date_and_expires(trial: Trial) -> None:
    trial.script(reply(FRESH, ("Date", -5), ("Expires", 55)))
    first = await trial.ask()
    second = await trial.ask()
    trial.asked(1)
    for name in ("date", "expires"):
        field(second, name, first.get(name))
    assert int(second.get("age") or "0") >= 5, second.get("age")


@case("required", "RFC 9111 section 4")
async def reused_response_has_one_age(trial: Trial) -> None:
    trial.script(reply(FRESH, ("Age", "10"), ("Age", "20")))
    await trial.ask()
    ages = (await trial.ask()).get_all("age")
    assert len(ages) == 1, ages
    assert 10 <= int(ages[0]) < 20, ages


@case("check", "RFC 9111 section 4.2.3")
async def forwarded_response_has_no_age_of_ours(trial: Trial) -> None:
    trial.script(reply(FRESH, before=2.0))
    field(await trial.ask(), "age", None)


# Responses that were not whole, or not the last.


@case("required", "RFC 9111 section 3.3")
async def cut_by_length_is_not_kept(trial: Trial) -> None:
    trial.script(reply(FRESH, body=b"12345", length=10, end="cut"), reply(FRESH))
    try:
        cut = await trial.ask()
    except (OSError, asyncio.IncompleteReadError):
        cut = None
    assert cut is None or cut.status != 200, "the caller was given a part for the whole"
    status(await trial.ask(), 200)
    trial.asked(2)


@case("required", "RFC 9111 section 3.3")
async def cut_in_chunks_is_not_kept(trial: Trial) -> None:
    trial.script(reply(FRESH, body=b"12345", framing="chunked", end="cut"), reply(FRESH))
    try:
        cut = await trial.ask()
    except (OSError, asyncio.IncompleteReadError):
        cut = None
    assert cut is None or cut.status != 200, "the caller was given a part for the whole"
    status(await trial.ask(), 200)
    trial.asked(2)


def _early_hints(trial: Trial) -> None:
    final = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 5\r\n\r\nfinal"
    trial.script(Answer(body=b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n" + final, framing="raw"))


@case("required", "RFC 9111 section 3")
async def interim_response_is_not_kept(trial: Trial) -> None:
    _early_hints(trial)
    first = await trial.ask()
    second = await trial.ask()
    status(first, 200)
    same(first, second)
    trial.asked(1)
    field(second, "x-early", None)
    assert not second.interim, second.interim


@case("optimal", "RFC 9110 section 15.2")
async def interim_response_is_passed_on(trial: Trial) -> None:
    _early_hints(trial)
    first = await trial.ask()
    assert [code for code, _ in first.interim] == [103], first.interim
