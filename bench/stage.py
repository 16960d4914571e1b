"""Where contests take place: an origin, the subjects' processes, a folder; and how they take turns."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from .measuring import Sample
from .origin import Origin
from .plan import Plan
from .results import Results, Row, Timing
from .subjects.names import NONE, OWN
from .worker import NotRun, Worker

__all__ = ["Cast", "Entry", "Measure", "Stage", "Task"]

LEAST_ROUNDS = 3
LARGEST_ROUND = 3000  # operations
CHECKED = 4  # operations of which it is known how many requests they may take


@dataclass(frozen=True, slots=True)
class Entry:
    """Who takes part. ``options`` are those of the subject; ``label`` names it where its cache's name is not enough."""

    client: str
    cache: str
    options: tuple[tuple[str, Any], ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.cache


@dataclass(frozen=True, slots=True)
class Task:
    """What each does, again and again.

    :param operation: a method of :class:`.subjects.Subject`.
    :param distinct: with a resource that was never asked for, each time.
    :param afresh: with an empty folder at the beginning of each round.
    :param asks: how many requests to the origin it takes with a cache, and without; None: not checked.
    """

    operation: str
    url: str = ""
    distinct: bool = False
    afresh: bool = False
    asks: tuple[int, int] | None = None


Measure = Callable[[Worker], Sample]


class Stage:
    """:param scratch: a folder for what subjects keep. :param files: those that origins serve."""

    def __init__(self, plan: Plan, origin: Origin, scratch: Path, files: Path, results: Results) -> None:
        self.plan = plan
        self.origin = origin
        self.results = results
        self.files = files
        self._scratch = scratch
        self._workers: dict[tuple[object, ...], Worker] = {}
        self._folders = 0
        self._began = time.monotonic()
        self._closing = ExitStack()
        self.vllm = "vllm" if importlib.util.find_spec("vllm") else "vllm re-created"
        self.vllm_async = f"{self.vllm} async"

    def folder(self) -> Path:
        self._folders += 1
        return self._scratch / f"folder-{self._folders}"

    def worker(self, entry: Entry) -> Worker:
        """The process of a client with a cache; the synchronous and the asynchronous form of a client share it."""
        name = entry.client.removesuffix(" async"), entry.cache, entry.options
        if name not in self._workers:
            self._workers[name] = self.new_worker(entry.client, entry.cache)
        return self._workers[name]

    def new_worker(self, client: str, cache: str) -> Worker:
        """One more process, ended with the stage."""
        forked = self.vllm == "vllm" and (client in (self.vllm, self.vllm_async) or cache == OWN)
        worker = Worker(self._scratch / "subjects.log", forked=forked)
        self._closing.callback(worker.stop)
        return worker

    def compare(self, contest: str, entries: Sequence[Entry], task: Task) -> dict[str, Timing]:
        """Have subjects take turns at one task; what came of it, by name."""
        with Cast(self, contest, entries) as cast:
            return cast.compare(contest, task)

    def report(self, row: Row) -> None:
        self.results.rows.append(row)
        shown = "not run" if row.value is None else f"{row.value:.2f}{row.unit}"
        self.log(f"{row.what}: {shown} (to reach: {row.target:g}) {row.note}")

    def log(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()


class Cast:
    """Subjects that are ready: their processes run, their folders are open. Those that are not are ``absent``."""

    def __init__(self, stage: Stage, contest: str, entries: Sequence[Entry]) -> None:
        self._stage = stage
        self._entries = entries
        self.workers = {entry: stage.worker(entry) for entry in entries}
        self.absent: dict[Entry, str] = {}
        for entry, worker in self.workers.items():
            worker.begin("open", entry.client, entry.cache, stage.folder(), dict(entry.options))
        for entry in entries:
            try:
                self.workers[entry].end()
            except NotRun as reason:
                self._dismiss(contest, entry, reason)

    def _dismiss(self, contest: str, entry: Entry, reason: NotRun) -> None:
        self.absent[entry] = str(reason)
        del self.workers[entry]
        self._stage.log(f"{contest}: {entry.client} with {entry.name} is not run: {reason}")

    def compare(self, contest: str, task: Task, measure: Measure | None = None) -> dict[str, Timing]:
        """:param measure: of one round, where it is not just so many operations."""
        plan = self._stage.plan
        measures = self._measures(contest, task) if measure is None else dict.fromkeys(self.workers, measure)
        samples: dict[Entry, list[Sample]] = {entry: [] for entry in measures}
        deadline = time.monotonic() + plan.patience
        for number in range(plan.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() > deadline:
                break
            for entry in _turned(list(samples), number):
                if task.afresh:
                    self.workers[entry].call("reopen")
                    self.workers[entry].call("warm", task.operation, task.url, task.distinct)
                samples[entry].append(measures[entry](self.workers[entry]))
        timings = [
            Timing(contest, entry.client, entry.name, tuple(samples.get(entry, ())), self.absent.get(entry, ""))
            for entry in self._entries
        ]
        self._stage.results.timings += timings
        self._stage.log(f"{contest}, {self._entries[0].client}: " + ", ".join(map(_brief, timings)))
        return {timing.cache: timing for timing in timings}

    def _measures(self, contest: str, task: Task) -> dict[Entry, Measure]:
        """For each subject, a round of as many operations as fill it; those that do not do the task are dismissed."""
        measures = {}
        for entry in list(self.workers):
            try:
                pace = self.workers[entry].call(
                    "pace", task.operation, task.url, task.distinct, self._stage.plan.round_seconds / 4
                )
                self._check(entry, task)
            except NotRun as reason:
                self._dismiss(contest, entry, reason)
                continue
            count = max(2, min(LARGEST_ROUND, round(self._stage.plan.round_seconds / pace)))
            measures[entry] = _round(task, count)
        return measures

    def _check(self, entry: Entry, task: Task) -> None:
        """See that hits are hits.

        :raises NotRun: they are not.
        """
        if task.asks is None or entry.client == "disk":
            return
        origin = self._stage.origin
        before = origin.requests()
        _round(task, CHECKED)(self.workers[entry])
        asked = origin.requests() - before - 1
        expected = task.asks[entry.cache == NONE] * CHECKED
        if asked != expected:
            raise NotRun(f"{CHECKED} operations took {asked} requests, not {expected}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.call("close")


def _round(task: Task, count: int) -> Measure:
    def measure(worker: Worker) -> Sample:
        sample: Sample = worker.call("round", task.operation, task.url, count, task.distinct)
        return sample

    return measure


def _turned(entries: list[Entry], number: int) -> list[Entry]:
    start = number % len(entries) if entries else 0
    return entries[start:] + entries[:start]


def _brief(timing: Timing) -> str:
    return f"{timing.cache} {timing.wall * 1e6:.0f} µs" if timing.rounds else f"{timing.cache} not run"
