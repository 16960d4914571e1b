"""How long an event loop stands still while a large body is stored, or given."""

from __future__ import annotations

from statistics import median

from ..results import Row
from ..stage import Cast, Entry, Stage
from ..subjects.names import ACC_FILES, ACC_SQLITE, HISHEL, NONE, OURS, OWN
from ..worker import NotRun

__all__ = ["stalls"]

MOST = 5.0  # milliseconds
NAME = "10m.bin"


def stalls(stage: Stage) -> None:
    clients = {stage.vllm_async: (OWN,), "httpx async": (HISHEL,), "aiohttp": (ACC_FILES, ACC_SQLITE)}
    for client, peers in clients.items():
        with Cast(stage, "stalls", [Entry(client, cache) for cache in (NONE, OURS, *peers)]) as cast:
            for doing, distinct in (("storing", True), ("hitting", False)):
                _measure(stage, cast, client, doing, distinct=distinct)


def _measure(stage: Stage, cast: Cast, client: str, doing: str, *, distinct: bool) -> None:
    url, plan = stage.origin.fresh(NAME), stage.plan
    stalled: dict[str, list[float]] = {entry.cache: [] for entry in cast.workers}
    reasons = {entry.cache: reason for entry, reason in cast.absent.items()}
    for entry, worker in cast.workers.items():
        try:
            worker.call("stalls", "get", url, 1, distinct)
        except NotRun as reason:
            reasons[entry.cache] = str(reason)
    for _ in range(max(plan.rounds // 3, 2)):
        for entry, worker in cast.workers.items():
            if entry.cache not in reasons:
                stalled[entry.cache] += worker.call("stalls", "get", url, plan.stalls, distinct)
    for cache, values in stalled.items():
        stage.results.facts.append(
            {"contest": "stalls", "client": client, "what": doing, "cache": cache, "stalls": values}
        )
    stage.log(
        f"stalls, {client}, {doing}: " + ", ".join(f"{c} {median(v) * 1e3:.1f} ms" for c, v in stalled.items() if v)
    )
    what = f"{client}: stall of the event loop, {doing} 10 MB"
    if not stalled.get(OURS):
        stage.report(Row("stalls", what, MOST, unit=" ms", note=reasons[OURS]))
        return
    without = f", without a cache {median(stalled[NONE]) * 1e3:.1f} ms" if stalled.get(NONE) else ""
    stage.report(
        Row(
            "stalls",
            what,
            MOST,
            median(stalled[OURS]) * 1e3,
            unit=" ms",
            note=f"worst of {len(stalled[OURS])}: {max(stalled[OURS]) * 1e3:.1f} ms{without}",
        )
    )
