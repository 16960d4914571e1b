"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from .plan import MB
from .results import Results, Row, Timing
from .subjects.names import NONE

__all__ = ["markdown"]

EXPLAINED = (
    "Microseconds for one operation, medians of the rounds: on the wall, and of the CPU. The last column: wall time "
    "over that of the same client without a cache."
)
VERDICTS = {True: "reached", False: "**not reached**", None: "not run"}


def markdown(results: Results) -> str:
    """A fragment to be included in a page."""
    sections = [
        _conditions(results.about),
        "\n".join(_targets(results.rows)),
        "### Times of all who took part",
        EXPLAINED,
        "\n".join(_times(results.timings)),
    ]
    facts = [*_memory(results.facts), *_stalls(results.facts), *_crowds(results.facts)]
    if facts:
        sections += ["### Memory, stalls and crowds of all who took part", "\n".join(facts)]
    return "\n\n".join(sections) + "\n"


def _conditions(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    return (
        f"Measured on {about['date']} at commit `{about['commit']}` by `{about['command']}`: {about['cores']} cores of "
        f"{about['processor']}, {about['system']}, folders on {about['file system']}, load {about['load']} before it "
        f"began, {about['python']}, origin {about['origin']}; {versions}."
    )


def _targets(rows: list[Row]) -> Iterator[str]:
    yield "| What | To reach | Measured | | Of CPU | Compared with | |"
    yield "| --- | ---: | ---: | --- | ---: | --- | --- |"
    for row in rows:
        value = "" if row.value is None else f"{row.value:.2f}{row.unit}"
        cpu = "" if row.cpu is None else f"{row.cpu:.2f}"
        target = f"≤ {row.target:g}{row.unit}"
        yield f"| {row.what} | {target} | {value} | {VERDICTS[row.reached]} | {cpu} | {row.against} | {row.note} |"


def _times(timings: list[Timing]) -> Iterator[str]:
    yield "| Contest | Client | Cache | µs | of CPU | to no cache |"
    yield "| --- | --- | --- | ---: | ---: | ---: |"
    for (contest, client), group in groupby(timings, lambda timing: (timing.contest, timing.client)):
        together = list(group)
        plain = next((timing.wall for timing in together if timing.cache == NONE and timing.rounds), None)
        for timing in together:
            if timing.rounds:
                relative = f"{timing.wall / plain:.2f}" if plain else ""
                shown = f"{timing.wall * 1e6:,.0f} | {timing.cpu * 1e6:,.0f} | {relative}"
            else:
                shown = f"not run: {timing.note} | |"
            yield f"| {contest} | {client} | {timing.cache} | {shown} |"


def _memory(facts: list[dict[str, Any]]) -> Iterator[str]:
    for fact in facts:
        if fact["contest"] == "memory":
            shown = f"not run: {fact['note']}" if fact["octets"] is None else f"{fact['octets'] / MB:.1f} MB"
            yield f"- memory, {fact['client']}, {fact['what']}, {fact['cache']}: {shown}"


def _stalls(facts: list[dict[str, Any]]) -> Iterator[str]:
    for fact in facts:
        if fact["contest"] == "stalls" and fact["stalls"]:
            values = sorted(fact["stalls"])
            middle, worst = values[len(values) // 2] * 1e3, values[-1] * 1e3
            yield f"- stall, {fact['client']}, {fact['what']}, {fact['cache']}: {middle:.1f} ms, worst {worst:.1f} ms"


def _crowds(facts: list[dict[str, Any]]) -> Iterator[str]:
    for fact in facts:
        if fact["contest"] == "crowds":
            waited = sorted(fact["waited"])[len(fact["waited"]) // 2]
            requests = max(fact["requests"])
            yield f"- {fact['what']}, {fact['cache']}: {requests} requests, {waited:.2f} of the origin's delay"
