"""Threads, asyncio and trio under one face: bells that anybody may ring, and tasks that outlive their caller.

The only file that knows which event loop runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread

__all__ = ["Bell", "TaskBell", "ThreadBell", "in_thread", "spawn"]

T = TypeVar("T")


class Bell(Protocol):
    """Wakes one waiter, once; from any thread."""

    def ring(self) -> None: ...


class ThreadBell:
    """A bell that a thread waits for."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None) -> bool:
        """Whether it rang within *timeout* seconds."""
        return self._event.wait(timeout)


class TaskBell:
    """A bell that a task of the current event loop waits for."""

    __slots__ = ("_event", "_soon")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._soon = _scheduler()

    def ring(self) -> None:
        self._soon(self._event.set)

    async def wait(self, timeout: float | None) -> bool:
        """Whether it rang within *timeout* seconds."""
        with anyio.move_on_after(timeout):
            await self._event.wait()
        return self._event.is_set()


def _scheduler() -> Callable[[Callable[[], object]], None]:
    """A function that runs another in the current loop soon, from any thread; nothing happens once the loop is gone."""
    try:
        soon: Callable[..., Any] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio

        soon = trio.lowlevel.current_trio_token().run_sync_soon

    def schedule(call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # closed loop; trio.RunFinishedError is one too
            soon(call)

    return schedule


def spawn(work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run *work* as a task of the current loop that does not depend on the caller's. *work* must not raise.

    :returns: a function that cancels it, from any thread. The task ends with its loop at the latest.
    """
    scope = anyio.CancelScope()
    schedule = _scheduler()

    async def run() -> None:
        with scope:
            await work()

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        trio.lowlevel.spawn_system_task(run)
    else:
        task = loop.create_task(run())
        _running.add(task)
        task.add_done_callback(_running.discard)
    return partial(schedule, scope.cancel)


_running: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Run a call that may wait for the disk, in a thread; it runs to its end even when the caller is cancelled."""
    return await anyio.to_thread.run_sync(call, *arguments)
