"""What a case of our own list is made of: an origin that follows its script, and a caller behind the gateway."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tests.conformance.http1 import Got, ask
from tests.origin import Answer, Clock, Origin, Seen

__all__ = ["CASES", "Case", "Now", "Trial", "case", "reply", "run"]

Kind = Literal["required", "optimal", "check"]
Line = tuple[str, str | int]
"""A field. A number is a date so many seconds from now."""
Script = Callable[[Seen], Answer]

LIMIT = 30.0  # seconds for one case; none waits longer than seven

_numbers = itertools.count()


@dataclass(frozen=True)
class Case:
    """:param rule: where it is written. :param only: about shared, or about private caches."""

    id: str
    kind: Kind
    rule: str
    play: Callable[[Trial], Awaitable[None]]
    only: str | None = None

    def applies(self, *, shared: bool) -> bool:
        return self.only is None or (self.only == "shared") == shared


CASES: dict[str, Case] = {}


def case(
    kind: Kind, rule: str, name: str | None = None, only: str | None = None
) -> Callable[[Callable[[Trial], Awaitable[None]]], Callable[[Trial], Awaitable[None]]]:
    """Put a function on the list, under its own name."""

    def register(play: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
        known = name or play.__name__.replace("_", "-")
        assert known not in CASES, known
        CASES[known] = Case(known, kind, rule, play, only)
        return play

    return register


class Now(Clock):
    """The real time."""

    def __init__(self) -> None: ...

    @property
    def now(self) -> float:  # type: ignore[override]
        return time.time()


def reply(*lines: Line, status: int = 200, body: bytes | None = None, **more: Any) -> Script:
    """An answer whose dates are counted from when it is given, and whose body, unless stated, is like no other."""

    def answer(_: Seen) -> Answer:
        fields = [(name, Now().date(value) if isinstance(value, int) else value) for name, value in lines]
        dated = any(name.lower() == "date" for name, _ in fields)
        content = b"body %d" % next(_numbers) if body is None else body
        return Answer(status, fields, content, date=not dated, **more)

    return answer


class Trial:
    """One case under way; the paths of its URLs are its own."""

    def __init__(self, name: str, gateway: int, origin: Origin) -> None:
        self.path = f"/{name}"
        self._gateway = gateway
        self._origin = origin

    def script(self, *answers: Script | Answer, path: str = "") -> None:
        """What the origin answers, in this order, the last one for ever."""
        self._origin.on(self.path + path, *answers)

    async def ask(self, *fields: Line, method: str = "GET", path: str = "", body: bytes = b"") -> Got:
        dated = ((name, Now().date(value) if isinstance(value, int) else value) for name, value in fields)
        lines = [(name.encode(), value.encode("latin-1")) for name, value in dated]
        return await ask(self._gateway, method, self.path + path, lines, body)

    def seen(self, path: str = "") -> list[Seen]:
        """What the origin was asked."""
        return self._origin.seen(self.path + path)

    async def settled(self, requests: int) -> None:
        """Wait until the origin was asked so often, by something that runs in the background."""
        for _ in range(40):
            if len(self.seen()) >= requests:
                break
            await asyncio.sleep(0.05)

    def asked(self, times: int) -> None:
        """The origin was asked just so often."""
        seen = [(request.method, request.get("if-none-match")) for request in self.seen()]
        assert len(seen) == times, f"the origin was asked {len(seen)} times, not {times}: {seen}"


async def run(cases: Iterable[Case], gateway: int, origin: Origin) -> dict[str, str]:
    """Play them all at once. Empty for a case that passed, otherwise what was wrong."""

    async def result(this: Case) -> str:
        try:
            async with asyncio.timeout(LIMIT):
                await this.play(Trial(this.id, gateway, origin))
        except AssertionError as failed:
            return str(failed) or "assertion failed"
        except Exception as error:
            return repr(error)
        return ""

    chosen = list(cases)
    results = await asyncio.gather(*map(result, chosen))
    return {this.id: said for this, said in zip(chosen, results, strict=True)}
