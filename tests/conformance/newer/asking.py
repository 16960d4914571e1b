"""The caller's own conditions and ranges."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.conformance.http1 import Got
from tests.conformance.newer.common import FRESH, SHORT, TAG, field, same, status
from tests.conformance.trial import Kind, Line, Trial, case, reply
from tests.origin import Answer, Seen

OWN = "RFC 9111 section 4.3.2"
MODIFIED = "Sun, 06 Nov 1994 08:49:37 GMT"


async def _asked_of_fresh(stored: tuple[Line, ...], asks: tuple[Line, ...], expected: int, trial: Trial) -> None:
    trial.script(reply(FRESH, *stored))
    first = await trial.ask()
    got = await trial.ask(*asks)
    trial.asked(1)
    status(got, expected)
    assert got.body == (b"" if expected == 304 else first.body)


def fresh(kind: Kind, rule: str, name: str, stored: tuple[Line, ...], *asks: Line, expect: int) -> None:
    case(kind, rule, name)(partial(_asked_of_fresh, stored, asks, expect))


WEAK: Line = ("ETag", 'W/"a"')
for _name, _stored, _condition in (
    ("strong-strong", TAG, '"a"'),
    ("strong-weak", TAG, 'W/"a"'),
    ("weak-strong", WEAK, '"a"'),
    ("weak-weak", WEAK, 'W/"a"'),
    ("first", TAG, '"a", "b", "c"'),
    ("middle", TAG, '"b", "a", "c"'),
    ("last", TAG, '"b", W/"c", "a"'),
    ("without-spaces", TAG, '"b","a"'),
    ("empty-members", TAG, ', "b",, "a" ,'),
    ("any", TAG, "*"),
    ("comma-inside", ("ETag", '"a,b"'), '"x", "a,b"'),
    ("backslash-inside", ("ETag", '"a\\"'), '"a\\"'),
    ("empty-tag", ("ETag", '""'), '""'),
    ("octets-above-127", ("ETag", '"\xfc"'), '"\xfc"'),
):
    fresh("optimal", OWN, f"if-none-match-{_name}", (_stored,), ("If-None-Match", _condition), expect=304)
for _name, _stored, _condition in (
    ("other", TAG, '"b"'),
    ("other-case", TAG, '"A"'),
    ("part-of-another", TAG, '"ab"'),
    ("inside-another", ("ETag", '"b"'), '"a, b"'),
    ("no-tag-stored", ("X", "x"), '"a"'),
):
    fresh("required", OWN, f"if-none-match-{_name}", (_stored,), ("If-None-Match", _condition), expect=200)
for _name, _stored, _condition in (
    ("unquoted", TAG, "a"),
    ("lower-case-weakness", WEAK, 'w/"a"'),
):
    fresh("check", OWN, f"if-none-match-{_name}-is-no-match", (_stored,), ("If-None-Match", _condition), expect=200)


@case("optimal", OWN)
async def if_none_match_on_two_lines(trial: Trial) -> None:
    trial.script(reply(FRESH, TAG))
    await trial.ask()
    status(await trial.ask(("If-None-Match", '"b"'), ("If-None-Match", '"a"')), 304)
    trial.asked(1)


@case("required", "RFC 9110 section 15.4.5")
async def generated_304_has_the_fields_that_a_200_would_have(trial: Trial) -> None:
    kept: tuple[Line, ...] = (("Content-Location", "/x"), ("Expires", 60), ("Vary", "Foo"), ("Date", -1))
    trial.script(reply(FRESH, TAG, *kept, body=b"12345"))
    first = await trial.ask()
    got = await trial.ask(("If-None-Match", '"a"'))
    status(got, 304)
    for name in ("cache-control", "content-location", "date", "etag", "expires", "vary"):
        field(got, name, first.get(name))
    assert got.get("age") is not None
    assert got.get("content-length") in (None, "5"), got.get("content-length")


for _name, _condition, _expected in (
    ("equal", MODIFIED, 304),
    ("later", "Sun, 06 Nov 1994 08:49:38 GMT", 304),
    ("equal-rfc850", "Sunday, 06-Nov-94 08:49:37 GMT", 304),
    ("equal-asctime", "Sun Nov  6 08:49:37 1994", 304),
    ("earlier", "Sun, 06 Nov 1994 08:49:36 GMT", 200),
    ("earlier-rfc850", "Sunday, 06-Nov-94 08:49:36 GMT", 200),
    ("malformed", "Sun, 06 Nov 1994 8:49:37 GMT", 200),
    ("empty", "", 200),
):
    fresh(
        "optimal" if _expected == 304 else "required",
        "RFC 9110 section 13.1.3",
        f"if-modified-since-{_name}",
        (("Last-Modified", MODIFIED),),
        ("If-Modified-Since", _condition),
        expect=_expected,
    )
for _name, _seconds, _expected in (("later", 5, 304), ("earlier", -3000, 200)):
    fresh(
        "optimal" if _expected == 304 else "required",
        OWN,
        f"if-modified-since-{_name}-than-date-without-last-modified",
        (),
        ("If-Modified-Since", _seconds),
        expect=_expected,
    )
BOTH: tuple[Line, ...] = (TAG, ("Last-Modified", MODIFIED))
_late: Line = ("If-Modified-Since", 0)
_early: Line = ("If-Modified-Since", "Sun, 06 Nov 1994 08:49:36 GMT")
fresh("required", OWN, "tag-counts-before-date-no-match", BOTH, ("If-None-Match", '"b"'), _late, expect=200)
fresh("required", OWN, "tag-counts-before-date-match", BOTH, ("If-None-Match", '"a"'), _early, expect=304)
for _code in (404, 301, 503):

    @case("required", OWN, f"condition-on-a-stored-{_code}-gets-{_code}")
    async def _not_ok(trial: Trial, code: int = _code) -> None:
        trial.script(reply(FRESH, TAG, status=code))
        await trial.ask()
        status(await trial.ask(("If-None-Match", '"a"')), code)


for _name, _value in (("If-Match", '"a"'), ("If-Unmodified-Since", MODIFIED)):

    @case("required", OWN, f"{_name.lower()}-is-for-the-origin")
    async def _for_the_origin(trial: Trial, name: str = _name, value: str = _value) -> None:
        trial.script(reply(FRESH, *BOTH), reply(status=412), reply(FRESH))
        await trial.ask()
        status(await trial.ask((name, value)), 412)
        assert trial.seen()[1].get(name) == value


@case("required", OWN)
async def condition_is_forwarded_where_nothing_is_stored(trial: Trial) -> None:
    trial.script(reply(TAG, FRESH, status=304), reply(FRESH, TAG))
    status(await trial.ask(("If-None-Match", '"a"')), 304)
    assert trial.seen()[0].get("if-none-match") == '"a"'
    got = await trial.ask()
    status(got, 200)
    assert got.body
    trial.asked(2)


async def _stale(trial: Trial, answer: Line | None, *asks: Line) -> tuple[Got, Got]:
    """The first answer, and what a caller with conditions gets when the stored response is stale and the origin says
    304 for this tag."""
    trial.script(reply(SHORT, TAG), reply(*([answer] if answer else []), FRESH, status=304))
    first = await trial.ask()
    await asyncio.sleep(2.1)
    return first, await trial.ask(*asks)


@case("optimal", OWN)
async def validated_for_a_caller_who_has_it(trial: Trial) -> None:
    _, got = await _stale(trial, TAG, ("If-None-Match", '"a"'))
    status(got, 304)


@case("required", OWN)
async def validated_for_a_caller_who_has_another(trial: Trial) -> None:
    first, got = await _stale(trial, TAG, ("If-None-Match", '"b"'))
    if '"a"' in (trial.seen()[1].get("if-none-match") or ""):
        same(first, got)
    else:
        status(got, 304)


@case("required", OWN)
async def the_callers_own_304_goes_to_the_caller(trial: Trial) -> None:
    _, got = await _stale(trial, ("ETag", '"b"'), ("If-None-Match", '"b"'))
    status(got, 304)
    field(got, "etag", '"b"')


# Ranges.

RANGE = "RFC 9110 section 14.2"
DIGITS = b"0123456789"


async def _part(asks: tuple[Line, ...], expected: bytes, place: str | None, trial: Trial) -> None:
    trial.script(reply(FRESH, *BOTH, ("A", "1"), body=DIGITS), reply(FRESH, *BOTH, status=200, body=DIGITS))
    await trial.ask()
    got = await trial.ask(*asks)
    status(got, 200 if place is None else 206)
    field(got, "content-range", place)
    field(got, "content-length", str(len(expected)))
    field(got, "a", "1")
    assert got.body == expected, got.body
    trial.asked(1)


for _name, _range, _octets, _place in (
    ("first-and-last", "bytes=2-4", b"234", "bytes 2-4/10"),
    ("one-octet", "bytes=0-0", b"0", "bytes 0-0/10"),
    ("open", "bytes=7-", b"789", "bytes 7-9/10"),
    ("suffix", "bytes=-3", b"789", "bytes 7-9/10"),
    ("suffix-longer-than-all", "bytes=-30", DIGITS, "bytes 0-9/10"),
    ("last-beyond-the-end", "bytes=8-99", b"89", "bytes 8-9/10"),
    ("unit-in-upper-case", "BYTES=2-4", b"234", "bytes 2-4/10"),
):
    case("optimal", RANGE, f"range-{_name}")(partial(_part, (("Range", _range),), _octets, _place))
for _name, _range in (("unknown-unit", "items=0-1"), ("backwards", "bytes=4-2"), ("words", "bytes=a-b")):
    case("required", RANGE, f"range-{_name}-is-ignored")(partial(_part, (("Range", _range),), DIGITS, None))
case("check", RANGE, "several-ranges-get-the-whole")(partial(_part, (("Range", "bytes=0-1, 4-5"),), DIGITS, None))
IF_RANGE = "RFC 9110 section 13.1.5"
for _name, _value in (("tag", '"a"'), ("date", MODIFIED)):
    _play = partial(_part, (("Range", "bytes=2-4"), ("If-Range", _value)), b"234", "bytes 2-4/10")
    case("optimal", IF_RANGE, f"if-range-{_name}-matches")(_play)
for _name, _value in (
    ("other-tag", '"b"'),
    ("weak-tag", 'W/"a"'),
    ("later-date", "Sun, 06 Nov 1994 08:49:38 GMT"),
    ("malformed", "x"),
):
    _play = partial(_part, (("Range", "bytes=2-4"), ("If-Range", _value)), DIGITS, None)
    case("required", IF_RANGE, f"if-range-{_name}-gets-the-whole")(_play)


@case("required", RANGE)
async def range_beyond_the_end_gets_no_octets(trial: Trial) -> None:
    trial.script(reply(FRESH, body=DIGITS), reply(("Content-Range", "bytes */10"), status=416))
    await trial.ask()
    got = await trial.ask(("Range", "bytes=10-"))
    status(got, 416)
    field(got, "content-range", "bytes */10")


@case("required", RANGE)
async def range_counts_after_if_none_match(trial: Trial) -> None:
    trial.script(reply(FRESH, TAG, body=DIGITS))
    await trial.ask()
    status(await trial.ask(("Range", "bytes=0-1"), ("If-None-Match", '"a"')), 304)


@case("required", "RFC 9111 section 3.3")
async def part_does_not_answer_for_the_whole(trial: Trial) -> None:
    part = (("Content-Range", "bytes 0-4/10"), FRESH, TAG)
    trial.script(reply(*part, status=206, body=DIGITS[:5]), _rest_or_whole)
    status(await trial.ask(("Range", "bytes=0-4")), 206)
    got = await trial.ask()
    status(got, 200)
    assert got.body == DIGITS, got.body
    field(got, "content-range", None)


@case("optimal", "RFC 9111 section 3.3")
async def part_is_completed(trial: Trial) -> None:
    part = (("Content-Range", "bytes 0-4/10"), FRESH, TAG)
    trial.script(reply(*part, status=206, body=DIGITS[:5]), _rest_or_whole)
    await trial.ask(("Range", "bytes=0-4"))
    for _ in range(2):
        got = await trial.ask()
        assert got.body == DIGITS, got.body
    trial.asked(2)
    assert trial.seen()[1].get("range") == "bytes=5-"
    assert trial.seen()[1].get("if-range") == '"a"'


@case("required", "RFC 9111 section 3.4")
async def parts_of_different_representations_are_not_joined(trial: Trial) -> None:
    rest = (("Content-Range", "bytes 5-9/10"), FRESH, ("ETag", '"b"'))
    part = (("Content-Range", "bytes 0-4/10"), FRESH, TAG)
    answers = (reply(*rest, status=206, body=b"vwxyz"), reply(FRESH, ("ETag", '"b"'), body=b"qrstuvwxyz"))
    trial.script(reply(*part, status=206, body=DIGITS[:5]), *answers)
    await trial.ask(("Range", "bytes=0-4"))
    got = await trial.ask()
    assert got.body == b"qrstuvwxyz", got.body


@case("required", "RFC 9111 section 4")
async def fields_of_a_stored_response_come_with_its_part(trial: Trial) -> None:
    trial.script(reply(FRESH, ("A", "1"), body=DIGITS))
    await trial.ask()
    got = await trial.ask(("Range", "bytes=0-1"))
    trial.asked(1)
    field(got, "a", "1")


def _rest_or_whole(seen: Seen) -> Answer:
    if seen.get("range") == "bytes=5-":
        return reply(("Content-Range", "bytes 5-9/10"), FRESH, TAG, status=206, body=DIGITS[5:])(seen)
    return reply(FRESH, TAG, body=DIGITS)(seen)
