"""What the parts of the list share."""

from __future__ import annotations

from functools import partial

from tests.conformance.http1 import Got
from tests.conformance.trial import Kind, Line, Trial, case, reply

__all__ = ["ANEW", "FRESH", "SHORT", "TAG", "again", "field", "same", "status"]

FRESH: Line = ("Cache-Control", "max-age=60")
SHORT: Line = ("Cache-Control", "max-age=1")
TAG: Line = ("ETag", '"a"')
ANEW: Line = ("Cache-Control", "no-cache")  # as a request's: ask the origin


def same(first: Got, second: Got) -> None:
    assert second.status == first.status, f"status {second.status}"
    assert second.body == first.body, f"{second.body!r} is not the stored {first.body!r}"


def status(got: Got, expected: int) -> None:
    assert got.status == expected, f"status {got.status}, not {expected}"


def field(got: Got, name: str, expected: str | None) -> None:
    assert got.get(name) == expected, f"{name} is {got.get(name)!r}, not {expected!r}"


async def _again(lines: tuple[Line, ...], reused: bool, status: int, asks: tuple[Line, ...], trial: Trial) -> None:
    trial.script(reply(*lines, status=status))
    first = await trial.ask(*asks)
    second = await trial.ask(*asks)
    trial.asked(1 if reused else 2)
    assert (second.body == first.body) == reused


def again(
    kind: Kind,
    rule: str,
    name: str,
    *lines: Line,
    reused: bool,
    status: int = 200,
    asks: tuple[Line, ...] = (),
    only: str | None = None,
) -> None:
    case(kind, rule, name, only)(partial(_again, lines, reused, status, asks))
