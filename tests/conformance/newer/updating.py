"""What a newer response does to the stored ones."""

from __future__ import annotations

import asyncio

from tests.conformance.http1 import Got
from tests.conformance.newer.common import ANEW, FRESH, SHORT, TAG, field, same, status
from tests.conformance.trial import Line, Now, Trial, case, reply
from tests.origin import Answer

NEWER = "RFC 9111 section 4.3.3"


@case("required", "RFC 9111 section 5.2.2.5")
async def fresh_response_is_reused_before_the_origin_says_no_store(trial: Trial) -> None:
    trial.script(reply(FRESH, ("A", "1")), reply(("Cache-Control", "no-store"), ("A", "2")))
    await trial.ask()
    field(await trial.ask(), "a", "1")
    trial.asked(1)


for _value in ("no-store", "no-store, max-age=0", "private, no-store"):

    @case("check", NEWER, f"older-response-goes-when-the-newer-is-{_value.replace(', ', '-and-')}")
    async def _older(trial: Trial, value: str = _value) -> None:
        trial.script(reply(FRESH, ("A", "1")), reply(("Cache-Control", value), ("A", "2")), reply(FRESH, ("A", "3")))
        await trial.ask()
        field(await trial.ask(ANEW), "a", "2")
        field(await trial.ask(), "a", "3")


@case("required", NEWER)
async def full_answer_to_a_validation_replaces_the_stored(trial: Trial) -> None:
    trial.script(reply(FRESH, TAG), reply(FRESH, ("ETag", '"b"')))
    await trial.ask()
    second = await trial.ask(ANEW)
    same(second, await trial.ask())
    trial.asked(2)
    assert trial.seen()[1].get("if-none-match") == '"a"'


@case("required", NEWER)
async def error_on_validation_is_passed_on(trial: Trial) -> None:
    trial.script(reply(SHORT, TAG), reply(status=503), reply(status=304))
    await trial.ask()
    await asyncio.sleep(2)
    status(await trial.ask(), 503)


# 304 responses update what is stored.

UPDATE = "RFC 9111 sections 3.2 and 4.3.4"


async def validated(trial: Trial, first: tuple[Line, ...], second: tuple[Line, ...], *asks: Line) -> list[Got]:
    """Store a response that soon is stale, have it validated by a 304, and ask once more."""
    trial.script(reply(SHORT, TAG, *first), reply(*second, status=304), reply(FRESH, ("ETag", '"other"')))
    got = [await trial.ask(*asks)]
    await asyncio.sleep(2.1)
    got.append(await trial.ask(*asks))
    got.append(await trial.ask(*asks))
    return got


@case("required", UPDATE)
async def update_of_date(trial: Trial) -> None:
    first, second, third = await validated(trial, (("Date", -1),), (TAG, FRESH))
    trial.asked(2)
    same(first, third)
    assert second.get("date") != first.get("date"), second.get("date")
    field(third, "date", second.get("date"))
    assert int(second.get("age") or "0") <= 1, second.get("age")


@case("required", UPDATE)
async def update_of_date_when_the_304_has_none(trial: Trial) -> None:
    raw = b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nCache-Control: max-age=60\r\n\r\n'
    trial.script(reply(SHORT, TAG), Answer(body=raw, framing="raw"))
    await trial.ask()
    await asyncio.sleep(2.1)
    second = await trial.ask()
    assert int(second.get("age") or "0") <= 1, second.get("age")
    await trial.ask()
    trial.asked(2)


@case("required", UPDATE)
async def update_of_age(trial: Trial) -> None:
    _, second, third = await validated(trial, (), (TAG, FRESH, ("Age", "30")))
    trial.asked(2)
    for got in (second, third):
        assert 30 <= int(got.get("age") or "0") < 35, got.get("age")


@case("required", UPDATE)
async def update_of_expires(trial: Trial) -> None:
    trial.script(reply(("Expires", 1), TAG), reply(("Expires", 60), TAG, status=304))
    first = await trial.ask()
    await asyncio.sleep(2.1)
    second = await trial.ask()
    third = await trial.ask()
    trial.asked(2)
    same(first, third)
    assert second.get("expires") != first.get("expires"), second.get("expires")
    field(third, "expires", second.get("expires"))


@case("required", UPDATE)
async def update_that_says_nothing_of_freshness_keeps_what_was_said(trial: Trial) -> None:
    trial.script(reply(("Cache-Control", "max-age=3"), TAG, ("Age", "3")), reply(TAG, status=304))
    first = await trial.ask()
    second = await trial.ask()
    same(first, second)
    field(second, "cache-control", "max-age=3")
    same(first, await trial.ask())
    trial.asked(2)


@case("required", UPDATE)
async def update_with_no_store_ends_the_stored_response(trial: Trial) -> None:
    first, _, third = await validated(trial, (), (TAG, ("Cache-Control", "no-store")))
    assert third.body != first.body


@case("optimal", UPDATE)
async def update_with_no_store_still_answers_with_the_stored_response(trial: Trial) -> None:
    trial.script(reply(SHORT, TAG), reply(TAG, ("Cache-Control", "no-store"), status=304), reply())
    first = await trial.ask()
    await asyncio.sleep(2.1)
    same(first, await trial.ask())
    trial.asked(2)


@case("required", UPDATE)
async def update_with_other_strong_tag_updates_nothing(trial: Trial) -> None:
    first, second, _ = await validated(trial, (("A", "1"),), (("ETag", '"z"'), FRESH, ("A", "2")))
    assert second.body != first.body, "a 304 about something else was taken for one about the stored response"
    status(second, 200)
    assert trial.seen()[2].get("if-none-match") is None


@case("required", UPDATE)
async def update_leaves_fields_of_the_connection_out(trial: Trial) -> None:
    _, second, third = await validated(trial, (), (TAG, FRESH, ("Connection", "a"), ("a", "1"), ("b", "2")))
    for got in (second, third):
        field(got, "a", None)
        field(got, "b", "2")


@case("required", UPDATE)
async def update_leaves_content_length(trial: Trial) -> None:
    got = await validated(trial, (), (TAG, FRESH, ("Content-Length", "0")))
    for later in got[1:]:
        same(got[0], later)
        field(later, "content-length", str(len(got[0].body)))
    trial.asked(2)


@case("required", UPDATE)
async def update_of_repeated_fields_replaces_them_all(trial: Trial) -> None:
    lines: tuple[Line, ...] = (("X", "1"), ("X", "2"))
    _, second, third = await validated(trial, lines, (TAG, FRESH, ("X", "3"), ("X", "4"), ("Set-Cookie", "a=b")))
    for got in (second, third):
        field(got, "x", "3, 4")
        field(got, "set-cookie", "a=b")


for _name, _before, _after in (
    ("content-encoding", "x-none", "x-other"),
    ("content-type", "image/png", "text/html"),
    ("content-range", "x", "y"),
):

    @case("check", UPDATE, f"update-leaves-{_name}")
    async def _exempt(trial: Trial, name: str = _name, before: str = _before, after: str = _after) -> None:
        for got in (await validated(trial, ((name, before),), (TAG, FRESH, (name, after))))[1:]:
            field(got, name, before)


@case("check", UPDATE)
async def update_of_parameters_of_content_type(trial: Trial) -> None:
    name, after = "content-type", "text/plain;charset=utf-8"
    for got in (await validated(trial, ((name, "text/plain"),), (TAG, FRESH, (name, after))))[1:]:
        field(got, name, after)


@case("optimal", UPDATE)
async def update_by_weak_tag(trial: Trial) -> None:
    weak: Line = ("ETag", 'W/"a"')
    trial.script(reply(SHORT, weak), reply(weak, FRESH, status=304))
    first = await trial.ask()
    await asyncio.sleep(2.1)
    same(first, await trial.ask())
    same(first, await trial.ask())
    trial.asked(2)
    assert trial.seen()[1].get("if-none-match") == 'W/"a"'


@case("optimal", UPDATE)
async def update_by_date_of_modification(trial: Trial) -> None:
    modified: Line = ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
    trial.script(reply(SHORT, modified), reply(FRESH, status=304))
    first = await trial.ask()
    await asyncio.sleep(2.1)
    same(first, await trial.ask())
    same(first, await trial.ask())
    trial.asked(2)
    assert trial.seen()[1].get("if-modified-since") == modified[1]


# HEAD updates too.

HEAD = "RFC 9111 section 4.3.5"


@case("optimal", "RFC 9110 section 9.3.2")
async def head_is_answered_from_a_stored_get(trial: Trial) -> None:
    trial.script(reply(FRESH, ("A", "1")))
    first = await trial.ask()
    head = await trial.ask(method="HEAD")
    trial.asked(1)
    field(head, "a", "1")
    field(head, "content-length", first.get("content-length"))


@case("required", "RFC 9110 section 9.3.2")
async def get_is_not_answered_from_a_head(trial: Trial) -> None:
    trial.script(reply(FRESH, body=b"12345"))
    await trial.ask(method="HEAD")
    assert (await trial.ask()).body == b"12345"
    trial.asked(2)


async def after_head(trial: Trial, *lines: Line, status: int = 200) -> tuple[Got, Got]:
    """Store a response that soon is stale, ask with HEAD, then with GET: the first answer and the last."""
    stored = reply(SHORT, TAG, ("A", "1"), body=b"12345")
    trial.script(stored, reply(*lines, status=status, body=b"12345"), reply(FRESH, body=b"other"))
    first = await trial.ask()
    await asyncio.sleep(2.1)
    await trial.ask(method="HEAD")
    return first, await trial.ask()


@case("required", HEAD)
async def head_of_a_stale_response_goes_to_the_origin(trial: Trial) -> None:
    await after_head(trial, FRESH, TAG)
    assert [request.method for request in trial.seen()[:2]] == ["GET", "HEAD"]


@case("check", HEAD)
async def head_freshens_a_stored_get(trial: Trial) -> None:
    first, last = await after_head(trial, FRESH, TAG, ("A", "2"))
    trial.asked(2)
    same(first, last)
    field(last, "a", "2")


for _name, _lines in (
    ("etag", (FRESH, ("ETag", '"b"'))),
    ("content-length", (FRESH, TAG, ("Content-Length", "7"))),
    ("last-modified", (FRESH, TAG, ("Last-Modified", -10))),
):

    @case("required", HEAD, f"head-with-other-{_name}-ends-the-stored-get")
    async def _ended(trial: Trial, lines: tuple[Line, ...] = _lines) -> None:
        trial.script(reply(FRESH, TAG, body=b"12345"), Answer(200, _dated(lines), framing="close"), reply(FRESH))
        first = await trial.ask()
        await trial.ask(ANEW, method="HEAD")
        last = await trial.ask()
        assert last.body != first.body
        trial.asked(3)


@case("check", HEAD)
async def head_with_410_leaves_the_stored_get_stale(trial: Trial) -> None:
    _, last = await after_head(trial, FRESH, ("A", "2"), status=410)
    trial.asked(3)
    status(last, 200)


# What a request that changes things makes obsolete.

UNSAFE = "RFC 9111 section 4.4"
for _method, _code in (("POST", 200), ("PUT", 204), ("DELETE", 202), ("PATCH", 200), ("FOO", 200), ("POST", 303)):

    @case("required", UNSAFE, f"{_method.lower()}-{_code}-invalidates")
    async def _invalidates(trial: Trial, method: str = _method, code: int = _code) -> None:
        trial.script(reply(FRESH), reply(status=code), reply(FRESH))
        first = await trial.ask()
        await trial.ask(method=method, body=b"x")
        assert (await trial.ask()).body != first.body


for _method, _code in (("POST", 400), ("POST", 500), ("OPTIONS", 200)):

    @case("optimal", UNSAFE, f"{_method.lower()}-{_code}-invalidates-nothing")
    async def _harmless(trial: Trial, method: str = _method, code: int = _code) -> None:
        trial.script(reply(FRESH), reply(status=code), reply(FRESH))
        first = await trial.ask()
        await trial.ask(method=method, body=b"x")
        same(first, await trial.ask())


for _name in ("Location", "Content-Location"):

    @case("check", UNSAFE, f"{_name.lower()}-of-a-post-is-invalidated")
    async def _named(trial: Trial, name: str = _name) -> None:
        trial.script(reply(FRESH), path="/named")
        trial.script(reply((name, f"{trial.path}/x/../named")))
        first = await trial.ask(path="/named")
        await trial.ask(method="POST", body=b"x")
        assert (await trial.ask(path="/named")).body != first.body


def _dated(lines: tuple[Line, ...]) -> list[tuple[str, str]]:
    return [(name, Now().date(value) if isinstance(value, int) else value) for name, value in lines]
