"""Serving stale responses, where it is allowed and where it is not."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.conformance.newer.common import ANEW, FRESH, TAG, field, same, status
from tests.conformance.trial import Line, Trial, case, reply
from tests.origin import Answer

SWR = "RFC 5861 section 3"


@case("optimal", SWR)
async def stale_while_revalidate_answers_at_once_and_validates(trial: Trial) -> None:
    stale = ("Cache-Control", "max-age=1, stale-while-revalidate=60")
    trial.script(reply(stale, TAG), reply(FRESH, ("ETag", '"b"'), before=1.0))
    first = await trial.ask()
    await asyncio.sleep(2.1)
    same(first, await trial.ask())
    await trial.settled(2)
    await asyncio.sleep(1.5)
    last = await trial.ask()
    trial.asked(2)
    field(last, "etag", '"b"')


async def _not_stale(value: str, wait: float, trial: Trial) -> None:
    trial.script(reply(("Cache-Control", value), TAG), reply(FRESH, ("ETag", '"b"')))
    await trial.ask()
    await asyncio.sleep(wait)
    field(await trial.ask(), "etag", '"b"')


for _name, _value, _wait, _only in (
    ("after-its-window", "max-age=1, stale-while-revalidate=2", 4.2, None),
    ("with-must-revalidate", "max-age=1, stale-while-revalidate=60, must-revalidate", 2.1, None),
    ("with-no-cache", "max-age=1, stale-while-revalidate=60, no-cache", 2.1, None),
    ("with-proxy-revalidate", "max-age=1, stale-while-revalidate=60, proxy-revalidate", 2.1, "shared"),
    ("with-s-maxage", "s-maxage=1, stale-while-revalidate=60", 2.1, "shared"),
    ("malformed", "max-age=1, stale-while-revalidate=x", 2.1, None),
):
    case("required", SWR, f"no-stale-while-revalidate-{_name}", _only)(partial(_not_stale, _value, _wait))


@case("required", SWR)
async def no_stale_while_revalidate_after_the_origin_said_no_cache(trial: Trial) -> None:
    stale: Line = ("Cache-Control", "max-age=1, stale-while-revalidate=60")
    trial.script(reply(stale, TAG), reply(ANEW, ("ETag", '"b"')), reply(FRESH, ("ETag", '"c"')))
    await trial.ask()
    await asyncio.sleep(2.1)
    await trial.ask()
    await trial.settled(2)
    await asyncio.sleep(0.5)
    field(await trial.ask(), "etag", '"c"')


async def _failing(value: str, failure: Answer, wait: float, expected: int, trial: Trial) -> None:
    trial.script(reply(("Cache-Control", value), ("X-Stored", "1")), failure)
    await trial.ask()
    await asyncio.sleep(wait)
    got = await trial.ask()
    status(got, expected)
    field(got, "x-stored", "1" if expected == 200 else None)


GONE = Answer(body=b"", framing="raw", end="cut")
SIE = "RFC 5861 section 4"
for _status in (500, 502, 503, 504):
    _play = partial(_failing, "max-age=1, stale-if-error=60", Answer(_status), 2.1, 200)
    case("check", SIE, f"stale-if-error-on-{_status}")(_play)
case("check", SIE, "stale-if-error-on-disconnect")(partial(_failing, "max-age=1, stale-if-error=60", GONE, 2.1, 200))
case("required", SIE, "no-stale-if-error-on-404")(
    partial(_failing, "max-age=1, stale-if-error=60", Answer(404), 2.1, 404)
)
case("required", SIE, "no-stale-if-error-after-its-window")(
    partial(_failing, "max-age=1, stale-if-error=2", Answer(503), 4.2, 503)
)
for _name, _only in (
    ("must-revalidate", None),
    ("no-cache", None),
    ("proxy-revalidate", "shared"),
    ("s-maxage=1", "shared"),
):
    for _more in ("", ", stale-if-error=60"):
        _id = f"no-stale-on-disconnect-{_name}{_more.replace(', ', '-with-')}"
        _play = partial(_failing, f"max-age=1, {_name}{_more}", GONE, 2.1, 502)
        case("required", "RFC 9111 section 4.2.4", _id, _only)(_play)
case("check", "RFC 9111 section 4.2.4", "no-stale-on-disconnect-unasked")(
    partial(_failing, "max-age=1", GONE, 2.1, 502)
)
