"""A subject's process, and the handle that the contests have of it."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import traceback
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from . import measuring
from .ground import emptied
from .measuring import Sample
from .subjects import AsyncSubject, Subject, make

__all__ = ["NotRun", "Worker"]

PATIENCE = 600.0  # seconds for any one answer
WARM = 3  # operations before any that count


class NotRun(Exception):
    """A subject cannot take part; says why."""


class Worker:
    """One process; it holds one subject at a time.

    :param log: a file for what the subject prints.
    :param forked: from a process that has imported vLLM, which takes seconds, and nothing else.
    """

    def __init__(self, log: Path, *, forked: bool) -> None:
        context: Any = multiprocessing.get_context("forkserver" if forked else "spawn")
        if forked:
            context.set_forkserver_preload(["bench.subjects.vllm_loaded"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, log), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, method: str, *arguments: Any) -> None:
        """Have it do something; :meth:`end` waits for it."""
        self._connection.send((method, arguments))

    def end(self) -> Any:
        """:raises NotRun: it could not do it."""
        if not self._connection.poll(PATIENCE):
            self._process.kill()
            raise NotRun(f"no answer in {PATIENCE:.0f} s")
        try:
            done, answer = self._connection.recv()
        except EOFError:
            self._process.join()
            raise NotRun(f"its process ended with status {self._process.exitcode}") from None
        if not done:
            raise NotRun(answer)
        return answer

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, *arguments)
        return self.end()

    def stop(self) -> None:
        """Idempotent."""
        if self._connection.closed:
            return
        self._connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    host = Host()
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = True, getattr(host, method)(*arguments)
        except ModuleNotFoundError as error:
            answer = False, f"{error.name} is not installed"
        except Exception as error:
            traceback.print_exc()
            answer = False, f"{type(error).__name__}: {error}"
        connection.send(answer)


class Host:
    """What a worker's process does when asked to. Operations are methods of the subject, by name."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._subject: Subject | AsyncSubject | None = None
        self._folder = self._first_folder = Path()
        self._number = self._openings = 0

    def open(self, client: str, cache: str, folder: Path, options: Mapping[str, Any], shared: bool = False) -> None:
        """Take a subject, on an empty folder or, where it is shared, on that of another process."""
        self._subject = make(client, cache, options)
        self._folder = self._first_folder = folder
        self._open(shared)
        gc.collect()
        gc.freeze()  # what was imported is not looked at again: else the largest library would pay most

    def close(self) -> None:
        """Let go of it, and of its folder."""
        self._close()
        self._subject = None
        gc.unfreeze()

    def reopen(self) -> None:
        """Begin again with an empty folder, and elsewhere: see :mod:`.ground`."""
        self._close()
        self._openings += 1
        self._folder = self._first_folder.with_name(f"{self._first_folder.name}-{self._openings}")
        self._open()

    def warm(self, operation: str, url: str, distinct: bool) -> None:
        self._timed(operation, self._urls(url, WARM, distinct))

    def pace(self, operation: str, url: str, distinct: bool, seconds: float) -> float:
        """Seconds that an operation takes, from as many as fill *seconds*; the best of three, for others run too."""
        measuring.settle_allocator()
        self.warm(operation, url, distinct)
        count = WARM
        while True:
            wall = min(self._timed(operation, self._urls(url, count, distinct)).wall for _ in range(3))
            if wall * count >= seconds:
                return wall
            count *= 2

    def round(self, operation: str, url: str, count: int, distinct: bool) -> Sample:
        """:param distinct: a resource that was never asked for, for each operation."""
        return self._timed(operation, self._urls(url, count, distinct))

    def throughput(self, operation: str, url: str, count: int, resources: int, tasks: int) -> Sample:
        """Ask for so many resources in turn, *count* times in all."""
        urls = [f"{url}?n={number % resources}" for number in range(count)]
        return self._runner.run(measuring.with_tasks(getattr(self._subject, operation), urls, tasks))

    def stalls(self, operation: str, url: str, count: int, distinct: bool) -> list[float]:
        call = getattr(self._subject, operation)
        urls = self._urls(url, count, distinct)
        return [self._runner.run(measuring.largest_stall(call, url)) for url in urls]

    def crowd(self, operation: str, url: str, callers: int) -> float:
        call = getattr(self._subject, operation)
        if isinstance(self._subject, AsyncSubject):
            return self._runner.run(measuring.acrowd(call, url, callers))
        return measuring.crowd(call, url, callers)

    def peak(self, operation: str, url: str) -> int:
        call = getattr(self._subject, operation)
        if not isinstance(self._subject, AsyncSubject):
            return measuring.peak_growth(partial(call, url))
        kept: list[object] = []

        async def keep() -> None:  # a runner writes out what a task returns, for the message of an exception
            kept.append(await call(url))

        return measuring.peak_growth(lambda: self._runner.run(keep()))

    def _open(self, shared: bool = False) -> None:
        assert self._subject is not None
        if not shared:
            self._folder.mkdir(parents=True)
        if isinstance(self._subject, AsyncSubject):
            self._runner.run(self._subject.open(self._folder))
        else:
            self._subject.open(self._folder)

    def _close(self) -> None:
        if isinstance(self._subject, AsyncSubject):
            self._runner.run(self._subject.close())
        elif self._subject is not None:
            self._subject.close()
        emptied(self._folder)

    def _timed(self, operation: str, urls: list[str]) -> Sample:
        call = getattr(self._subject, operation)
        if isinstance(self._subject, AsyncSubject):
            return self._runner.run(measuring.atimed(call, urls))
        return measuring.timed(call, urls)

    def _urls(self, url: str, count: int, distinct: bool) -> list[str]:
        if not distinct:
            return [url] * count
        first, self._number = self._number, self._number + count
        return [f"{url}?n={number}" for number in range(first, self._number)]
