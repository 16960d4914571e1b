"""What a fresh hit costs, for each client, beside its peers; and what many at once cost."""

from __future__ import annotations

from collections.abc import Sequence

from ..measuring import Sample
from ..plan import KB
from ..results import Row, Timing, ratio
from ..stage import Cast, Entry, Stage, Task
from ..subjects.names import (
    ACC_FILES,
    ACC_SQLITE,
    CC,
    CC_SEPARATE,
    FLOORS,
    HISHEL,
    NONE,
    OURS,
    OWN,
    RC_FILES,
    RC_SQLITE,
    STORAGE,
)
from ..worker import Worker

__all__ = ["against_best", "hits", "throughput"]

RESOURCES = 1000
TASKS = 64


def hits(stage: Stage) -> None:
    floors = tuple(Entry("disk", floor, (("size", 100 * KB),)) for floor in FLOORS)
    timings = stage.compare("hits", [Entry("disk", STORAGE, floors[0].options), *floors], Task("get"))
    ours, floor = timings[STORAGE], timings[FLOORS[0]]
    value = ratio(ours.rounds, floor.rounds) if ours.rounds and floor.rounds else None
    stage.report(Row("hits", "FileStorage alone: hit", 2, value, against=FLOORS[0], note=ours.note))
    acc, requests = (ACC_FILES, ACC_SQLITE), (CC, CC_SEPARATE, RC_FILES, RC_SQLITE)
    _hits(stage, stage.vllm, 0.9, (OWN,), floors)
    _hits(stage, stage.vllm_async, 0.6, (OWN,))
    _hits(stage, "httpx", 0.65, (HISHEL,))
    _hits(stage, "httpx async", 0.3, (HISHEL,))
    _hits(stage, "aiohttp", 0.35, acc)
    _hits(stage, "requests", 0.85, requests, peers=(CC,))


def _hits(
    stage: Stage,
    client: str,
    target: float,
    others: Sequence[str],
    floors: Sequence[Entry] = (),
    peers: Sequence[str] = (),
) -> None:
    entries = [Entry(client, cache) for cache in (NONE, OURS, *others)]
    timings = stage.compare("hits", [*entries, *floors], Task("get", stage.origin.fresh("100k.bin"), asks=(0, 1)))
    stage.report(against_best("hits", f"{client}: fresh hit", target, timings, peers or others))


def throughput(stage: Stage) -> None:
    client, count = stage.vllm_async, stage.plan.hits
    url = stage.origin.fresh("100k.bin")

    def measure(worker: Worker) -> Sample:
        sample: Sample = worker.call("throughput", "get", url, count, RESOURCES, TASKS)
        return sample

    with Cast(stage, "throughput", [Entry(client, cache) for cache in (OURS, OWN)]) as cast:
        for worker in cast.workers.values():
            worker.call("throughput", "get", url, RESOURCES, RESOURCES, TASKS)
        timings = cast.compare("throughput", Task("get", url), measure)
    what = f"{client}: CPU of a hit, {TASKS} tasks over {RESOURCES} entries"
    stage.report(against_best("throughput", what, 0.8, timings, (OWN,), clock="cpu"))


def against_best(
    contest: str, what: str, target: float, timings: dict[str, Timing], peers: Sequence[str], clock: str = "wall"
) -> Row:
    """Ours over the fastest of *peers*."""
    ours = timings[OURS]
    present = [timings[peer] for peer in peers if timings[peer].rounds]
    if not ours.rounds or not present:
        return Row(contest, what, target, note=ours.note or "; ".join(timings[peer].note for peer in peers))
    best = min(present, key=lambda timing: getattr(timing, clock))
    return Row(
        contest,
        what,
        target,
        ratio(ours.rounds, best.rounds, clock),
        cpu=ratio(ours.rounds, best.rounds, "cpu"),
        against=best.cache,
    )
