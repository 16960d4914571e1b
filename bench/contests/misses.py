"""What storing costs on top of a download, and validating on top of a conditional request."""

from __future__ import annotations

from statistics import median

from ..origin import BODIES
from ..results import Row, Timing, ratio
from ..stage import Entry, Stage, Task
from ..subjects.names import ACC_FILES, ACC_SQLITE, CC, HISHEL, NONE, OURS, OWN, RC_FILES, RC_SQLITE, TO_FILE, WRITE

__all__ = ["misses", "validations"]

CLIENTS = {  # and the peers that store for them
    "httpx": (HISHEL,),
    "httpx async": (HISHEL,),
    "aiohttp": (ACC_FILES, ACC_SQLITE),
    "requests": (CC, RC_FILES, RC_SQLITE),
}
SIZES = {"1 MB": "1m.bin", "10 MB": "10m.bin"}
MOST = 1.5


def misses(stage: Stage) -> None:
    for client, peers in {stage.vllm: (OWN,), stage.vllm_async: (OWN,), **CLIENTS}.items():
        for size, name in SIZES.items():
            entries = [Entry(client, cache) for cache in (NONE, TO_FILE, OURS, *peers)]
            entries.append(Entry("disk", WRITE, (("size", BODIES[name]),)))
            task = Task("get", stage.origin.fresh(name), distinct=True, afresh=True, asks=(1, 1))
            timings = stage.compare(f"misses, {size}", entries, task)
            stage.report(_miss(f"{client}: miss and store, {size}", timings))


def _miss(what: str, timings: dict[str, Timing]) -> Row:
    ours, plain, write = timings[OURS], timings[NONE], timings[WRITE]
    if not ours.rounds or not plain.rounds:
        return Row("misses", what, MOST, note=ours.note or plain.note)
    to_file = ratio(timings[TO_FILE].rounds, plain.rounds)
    share = median((a.wall + b.wall) / a.wall for a, b in zip(plain.rounds, write.rounds, strict=False))
    return Row(
        "misses",
        what,
        max(MOST, round(share, 2)),
        ratio(ours.rounds, plain.rounds),
        cpu=ratio(ours.rounds, plain.rounds, "cpu"),
        against="a plain download",
        note=f"download and bare write: {share:.2f}; download to a file: {to_file:.2f}",
    )


def validations(stage: Stage) -> None:
    for client, peers in {stage.vllm: (), stage.vllm_async: (), **CLIENTS}.items():
        entries = [Entry(client, cache) for cache in (NONE, OURS, *peers)]
        timings = stage.compare(
            "validations", entries, Task("validate", stage.origin.validated("100k.bin"), asks=(1, 1))
        )
        ours, plain = timings[OURS], timings[NONE]
        what = f"{client}: 304 and hit"
        if not ours.rounds or not plain.rounds:
            stage.report(Row("validations", what, MOST, note=ours.note or plain.note))
            continue
        stage.report(
            Row(
                "validations",
                what,
                MOST,
                ratio(ours.rounds, plain.rounds),
                cpu=ratio(ours.rounds, plain.rounds, "cpu"),
                against="a bare conditional request",
            )
        )
