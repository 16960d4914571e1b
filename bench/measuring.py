"""Measurements, made in a subject's own process."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Sample",
    "acrowd",
    "atimed",
    "crowd",
    "largest_stall",
    "peak_growth",
    "settle_allocator",
    "timed",
    "with_tasks",
]

Call = Callable[[str], object]
AsyncCall = Callable[[str], Awaitable[object]]

TICK = 0.001  # seconds
PICTURE = 31 * 1024**2  # octets; glibc adapts to what is freed up to 32 MiB
SETTLING = 0.02  # seconds of an idle loop before a stall is looked for


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: seconds on the wall and of this process's CPU (all its threads), for each of ``count`` operations."""

    wall: float
    cpu: float
    count: int


class _Stopwatch:
    """The collector stays on, as what it costs is part of the price; each round begins with nothing to collect."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def sample(self, count: int) -> Sample:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Sample(wall / count, cpu / count, count)


def settle_allocator() -> None:
    """Make this process one that has handled a picture before.

    glibc keeps twice the largest block that was freed. A process that has freed none gives its memory back after some
    operations and not after others, by chance, and has it again at the price of a page fault for each 4 KiB.
    """
    bytearray(PICTURE)


def timed(call: Call, urls: list[str]) -> Sample:
    watch = _Stopwatch()
    for url in urls:
        call(url)
    return watch.sample(len(urls))


async def atimed(call: AsyncCall, urls: list[str]) -> Sample:
    watch = _Stopwatch()
    for url in urls:
        await call(url)
    return watch.sample(len(urls))


async def with_tasks(call: AsyncCall, urls: list[str], tasks: int) -> Sample:
    """So many tasks share the URLs among them."""

    async def work(queue: Iterable[str]) -> None:
        for url in queue:
            await call(url)

    watch = _Stopwatch()
    queue = iter(urls)
    await asyncio.gather(*(work(queue) for _ in range(tasks)))
    return watch.sample(len(urls))


async def largest_stall(call: AsyncCall, url: str) -> float:
    """The longest that the event loop, while it made a call, was late for a task that wakes every millisecond."""
    largest = 0.0

    async def tick() -> None:
        nonlocal largest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            largest = max(largest, time.perf_counter() - before - TICK)

    gc.collect()
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(SETTLING)
    largest = 0.0
    await call(url)
    await asyncio.sleep(2 * TICK)
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    return largest


def crowd(call: Call, url: str, callers: int) -> float:
    """Seconds until so many threads, which begin at once, all have their answer."""
    start = threading.Barrier(callers + 1)

    def work() -> None:
        start.wait()
        call(url)

    with ThreadPoolExecutor(callers) as pool:
        futures = [pool.submit(work) for _ in range(callers)]
        start.wait()
        began = time.perf_counter()
        for future in futures:
            future.result()
        return time.perf_counter() - began


async def acrowd(call: AsyncCall, url: str, callers: int) -> float:
    """The same with tasks."""
    began = time.perf_counter()
    await asyncio.gather(*(call(url) for _ in range(callers)))
    return time.perf_counter() - began


def peak_growth(call: Callable[[], object]) -> int:
    """Octets by which the process's resident memory grew, at its peak, while *call* ran and its result was kept.

    The peak is the kernel's (``VmHWM``, reset before); where it has none, ``ru_maxrss``, which cannot be reset and
    hides what stays below an earlier peak.
    """
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _memory("VmRSS")
    kept = call()
    peak = _memory("VmHWM")
    del kept
    return peak - before


def _memory(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
