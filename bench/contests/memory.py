"""How much memory a large body takes, read whole and streamed. Each measurement has a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..plan import MB
from ..results import Row
from ..stage import Stage
from ..subjects.names import ACC_FILES, CC, HISHEL, NONE, OURS, OWN, RC_FILES
from ..worker import NotRun

__all__ = ["memory"]

AT_ONCE = 2  # processes
MOST_WHOLE = 1.1
MOST_STREAMED = 10.0  # MB
FIRST = {True: "hit", False: "miss"}


@dataclass(frozen=True, slots=True)
class _Case:
    client: str
    cache: str
    operation: str
    hit: bool


def memory(stage: Stage) -> None:
    size = stage.plan.whole // MB
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for case, peak in pool.map(_measured(stage), _cases(stage)):
            shown = f"{peak / MB:.1f} MB" if isinstance(peak, int) else f"not run: {peak}"
            stage.log(f"memory, {case.client}, {case.operation}, {FIRST[case.hit]}, {case.cache}: {shown}")
            stage.results.facts.append(
                {
                    "contest": "memory",
                    "client": case.client,
                    "cache": case.cache,
                    "what": f"{case.operation}, {FIRST[case.hit]}",
                    "octets": peak if isinstance(peak, int) else None,
                    "note": "" if isinstance(peak, int) else peak,
                }
            )
            if case.cache == OURS:
                stage.report(_row(case, size, peak))
    finally:
        pool.shutdown(cancel_futures=True)


def _row(case: _Case, size: int, peak: int | str) -> Row:
    what = f"{case.client}: peak memory, {size} MB"
    value, note = (peak / MB, "") if isinstance(peak, int) else (None, peak)
    if case.operation == "get":
        value = None if value is None else value / size
        return Row(
            "memory", f"{what} whole, {FIRST[case.hit]}", MOST_WHOLE, value, against="the body's size", note=note
        )
    return Row("memory", f"{what} streamed, {FIRST[case.hit]}", MOST_STREAMED, value, unit=" MB", note=note)


def _cases(stage: Stage) -> Iterator[_Case]:
    for client in (stage.vllm, stage.vllm_async):
        for cache in (OURS, OWN):
            yield from (_Case(client, cache, "get", hit) for hit in (False, True))
        yield _Case(client, NONE, "get", hit=False)
    peers = {"httpx": HISHEL, "httpx async": HISHEL, "aiohttp": ACC_FILES, "requests": CC}
    for client, peer in peers.items():
        for cache in (OURS, peer):
            yield from (_Case(client, cache, "stream", hit) for hit in (False, True))
    yield from (_Case("requests", RC_FILES, "stream", hit) for hit in (False, True))


def _measured(stage: Stage) -> Callable[[_Case], tuple[_Case, int | str]]:
    warm, url = stage.origin.fresh("100k.bin"), stage.origin.fresh("whole.bin")

    def measured(case: _Case) -> tuple[_Case, int | str]:
        worker = stage.new_worker(case.client, case.cache)
        try:
            worker.call("open", case.client, case.cache, stage.folder(), {})
            for _ in range(2):
                worker.call("round", case.operation, warm, 1, False)
            if case.hit:
                worker.call("round", case.operation, url, 1, False)
            peak: int = worker.call("peak", case.operation, url)
            worker.call("close")
        except NotRun as reason:
            return case, str(reason)
        finally:
            worker.stop()
        return case, peak

    return measured
