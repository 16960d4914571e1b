"""An origin that changes, delays, truncates, resets, fails, redirects and signs."""

from __future__ import annotations

import random
import time
from email.utils import formatdate
from functools import partial

from tests.origin import Answer, Origin, Seen, Stop
from tests.soak.world import KINDS, NUMBERS, body, version_at

__all__ = ["serve"]

TROUBLE = 0.06  # share of answers that go wrong


def serve(seed: int) -> Origin:
    """Start it; the caller closes it."""
    origin = Origin()
    chance = random.Random(seed)
    for kind in KINDS:
        for number in range(NUMBERS):
            name = f"{kind}/{number}"
            if kind == "moved":
                origin.on(f"/moved/{number}", partial(_moved, number))
                origin.on(f"/here/{number}", partial(_answer, name, chance))
            else:
                origin.on(f"/{name}", partial(_answer, name, chance))
    return origin


def _now() -> str:
    return formatdate(time.time(), usegmt=True)


def _moved(number: int, _: Seen) -> Answer:
    fields = {"Location": f"/here/{number}", "Cache-Control": "max-age=9", "Date": _now()}
    return Answer(302, fields, date=False)


def _answer(name: str, chance: random.Random, seen: Seen) -> Answer:
    kind = KINDS[name.partition("/")[0]]
    now = time.time()
    version = version_at(name, now)
    octets = body(name, version)
    tag = f'"{version}"'
    fields = {"Cache-Control": kind.control, "Date": formatdate(now, usegmt=True), "Content-Type": "image/png"}
    if kind.etag:
        fields["ETag"] = tag
    delay = chance.choice((0.0, 0.0, 0.0, 0.005, 0.05))
    half = len(octets) // 2
    if chance.random() < TROUBLE:
        match chance.randrange(5):
            case 0:
                raise Stop
            case 1:
                return Answer(
                    503, {"Cache-Control": "no-store", "Date": _now()}, b"overloaded", before=delay, date=False
                )
            case 2:
                return Answer(200, fields, octets[:half], length=len(octets), end="cut", date=False)
            case 3:
                return Answer(200, fields, octets[:half], length=len(octets), end="reset", date=False)
            case _:
                return Answer(200, fields, [octets[:half], 0.3, octets[half:]], length=len(octets), date=False)
    if kind.etag and tag in (seen.get("if-none-match") or ""):
        return Answer(304, fields, before=delay, date=False)
    framing = chance.choice(("length", "length", "chunked"))
    return Answer(200, fields, octets, framing=framing, before=delay, date=False)  # type: ignore[arg-type]
