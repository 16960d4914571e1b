"""A hundred callers of one URL that nobody has: how often the origin is asked, and how long they wait."""

from __future__ import annotations

import itertools
from statistics import median

from ..origin import Asyncio
from ..results import Row
from ..stage import Cast, Entry, Stage
from ..subjects.names import ACC_FILES, ACC_SQLITE, CC, HISHEL, OURS, OWN
from ..worker import NotRun, Worker

__all__ = ["crowds"]

CALLERS = 100
PROCESSES = 4
DELAY = 0.5  # seconds that the origin takes
TRIES = 3


def crowds(stage: Stage) -> None:
    """The origin is ours: it has to be slow and to count."""
    clients = {
        stage.vllm: (OWN,),
        stage.vllm_async: (OWN,),
        "httpx": (HISHEL,),
        "httpx async": (HISHEL,),
        "aiohttp": (ACC_FILES, ACC_SQLITE),
        "requests": (CC,),
    }
    with Asyncio(stage.files) as origin:
        crowd = _Crowd(stage, origin)
        for client, peers in clients.items():
            crowd.in_one_process(client, peers)
        crowd.in_processes("aiohttp")


class _Crowd:
    def __init__(self, stage: Stage, origin: Asyncio) -> None:
        self._stage = stage
        self._origin = origin
        self._numbers = itertools.count()

    def in_one_process(self, client: str, peers: tuple[str, ...]) -> None:
        with Cast(self._stage, "crowds", [Entry(client, cache) for cache in (OURS, *peers)]) as cast:
            for entry, worker in cast.workers.items():
                self._measure(client, entry.cache, [worker], f"{client}: {CALLERS} cold callers")
            for entry, reason in cast.absent.items():
                if entry.cache == OURS:
                    self._report(f"{client}: {CALLERS} cold callers", None, None, reason)

    def in_processes(self, client: str) -> None:
        folder, stage = self._stage.folder(), self._stage
        what = f"{client}: {CALLERS} cold callers in {PROCESSES} processes"
        workers = [stage.new_worker(client, OURS) for _ in range(PROCESSES)]
        try:
            for number, worker in enumerate(workers):
                worker.call("open", client, OURS, folder, {}, number > 0)
            self._measure(client, OURS, workers, what)
        except NotRun as reason:
            self._report(what, None, None, str(reason))

    def _measure(self, client: str, cache: str, workers: list[Worker], what: str) -> None:
        asked, waited = [], []
        for worker in workers:
            worker.call("crowd", "get", self._url(0.0), CALLERS)  # connections and threads are there
        for _ in range(TRIES):
            url, before = self._url(DELAY), self._origin.requests()
            for worker in workers:
                worker.begin("crowd", "get", url, CALLERS // len(workers))
            waited.append(max(worker.end() for worker in workers) / DELAY)
            asked.append(self._origin.requests() - before - 1)
        self._stage.results.facts.append(
            {"contest": "crowds", "what": what, "cache": cache, "requests": asked, "waited": waited}
        )
        self._stage.log(f"{what}, {cache}: {asked} requests, {median(waited):.2f} of the origin's delay")
        if cache == OURS:
            self._report(what, max(asked), median(waited), "")

    def _url(self, delay: float) -> str:
        return f"{self._origin.slow('100k.bin', delay)}&n={next(self._numbers)}"

    def _report(self, what: str, asked: int | None, waited: float | None, note: str) -> None:
        self._stage.report(Row("crowds", f"{what}, requests", 1, asked, unit=" requests", note=note))
        self._stage.report(
            Row("crowds", f"{what}, until all are answered", 1.2, waited, against="the origin's delay", note=note)
        )
