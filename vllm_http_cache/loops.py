"""Threads, asyncio and trio under one face: bells that anybody may ring, and tasks that outlive their caller.

The only file that knows which event loop runs.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import anyio
from anyio.lowlevel import RunVar

__all__ = ["Bell", "Pulse", "Task", "TaskBell", "ThreadBell", "in_a_loop", "in_pool", "in_thread", "spawn", "task_bell"]

T = TypeVar("T")

THREADS = 16  # at once, of one event loop
STEPS = 100  # in which a task whose loop was closed has to come to its end
_pools: RunVar[ThreadPoolExecutor] = RunVar("vllm_http_cache threads")


class Bell(Protocol):
    """Wakes one waiter, once; from any thread."""

    def ring(self) -> bool:
        """False: the waiter's loop has ended, and nobody hears it."""

    def is_lost(self) -> bool:
        """Has the waiter's loop ended, and the waiter with it or never?"""

    def silent(self) -> float:
        """Seconds for which the waiter's loop does not turn, as far as is known: the first to ask has it asked."""


class ThreadBell:
    """A bell that a thread waits for."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> bool:
        self._event.set()
        return True

    def is_lost(self) -> bool:
        return False

    def silent(self) -> float:
        return 0.0

    def wait(self, timeout: float | None) -> bool:
        """Whether it rang within *timeout* seconds."""
        return self._event.wait(timeout)


def task_bell() -> TaskBell:
    """A bell that a task of the current event loop waits for."""
    loop = _asyncio_loop()
    return _TrioBell() if loop is None else _AsyncioBell(loop)


class TaskBell(Bell, Protocol):
    async def wait(self, timeout: float | None) -> bool:
        """Whether it rang within *timeout* seconds."""


class Pulse:
    """Of the current loop: whether it turns.

    :param schedule: has it call something soon, from any thread.
    """

    __slots__ = ("_asked", "_schedule", "_thread")

    def __init__(self, schedule: Callable[[Callable[[], object]], bool]) -> None:
        self._schedule = schedule
        self._thread = threading.get_ident()
        self._asked: float | None = None  # since when it has not answered

    def silent(self) -> float:
        """Seconds for which it has not come to what it was asked to do. If it has, it is asked again."""
        if self._thread == threading.get_ident() and in_a_loop():
            return 0.0
        asked, now = self._asked, time.monotonic()
        if asked is None:
            self._asked = asked = now
            self._schedule(self._answer)
        return now - asked

    def _answer(self) -> None:
        self._asked = None


class _AsyncioBell:
    __slots__ = ("_future", "_loop", "_soon", "silent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon = _scheduler()
        self.silent = Pulse(self._soon).silent
        self._future: asyncio.Future[bool] = loop.create_future()

    def ring(self) -> bool:
        if self._loop is not _asyncio_loop():
            return self._soon(partial(self._set, True))
        self._set(True)  # waking a loop from within would cost a system call
        return True

    def is_lost(self) -> bool:
        return self._loop.is_closed()

    def _set(self, rang: bool) -> None:
        if not self._future.done():
            self._future.set_result(rang)

    async def wait(self, timeout: float | None) -> bool:
        timer = None if timeout is None else self._loop.call_later(timeout, self._set, False)
        try:
            return await self._future
        finally:
            if timer is not None:
                timer.cancel()


class _TrioBell:
    __slots__ = ("_event", "_soon", "silent")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._soon = _scheduler()
        self.silent = Pulse(self._soon).silent

    def ring(self) -> bool:
        return self._soon(self._event.set)

    def is_lost(self) -> bool:
        return not self._soon(lambda: None)

    async def wait(self, timeout: float | None) -> bool:
        with anyio.move_on_after(timeout):
            await self._event.wait()
        return self._event.is_set()


def _scheduler() -> Callable[[Callable[[], object]], bool]:
    """A function that runs another in the current loop soon, from any thread. It says False once the loop is gone."""
    soon: Callable[..., Any]
    if (loop := _asyncio_loop()) is not None:
        soon = loop.call_soon_threadsafe
    else:
        import trio

        soon = trio.lowlevel.current_trio_token().run_sync_soon

    def schedule(call: Callable[[], object]) -> bool:
        try:
            soon(call)
        except RuntimeError:  # closed loop; trio.RunFinishedError is one too
            return False
        return True

    return schedule


class Task:
    """A task that does not depend on its caller's."""

    def __init__(
        self,
        cancel: Callable[[], object],
        schedule: Callable[[Callable[[], object]], bool],
        is_lost: Callable[[], bool],
    ) -> None:
        self._cancel = cancel
        self._schedule = schedule
        self.is_lost = is_lost  # has its loop ended?
        self.silent = Pulse(schedule).silent  # seconds for which its loop does not turn

    def cancel(self) -> bool:
        """Cancel it, from any thread. False: its loop has ended, and the task with it or never."""
        return self._schedule(self._cancel)


def in_a_loop() -> bool:
    """Does an event loop run in this thread?"""
    if _asyncio_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    try:
        return trio is not None and trio.lowlevel.in_trio_run()
    except AttributeError:  # another thread is importing it
        return False


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> Task:
    """Run *work* as a task of the current loop, whatever becomes of the current task. *work* must not raise."""
    schedule = _scheduler()
    if (loop := _asyncio_loop()) is None:
        import trio

        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await work()

        trio.lowlevel.spawn_system_task(run)
        return Task(scope.cancel, schedule, lambda: not schedule(lambda: None))

    _end_lost()
    coroutine = work()
    task = _Task(coroutine, loop=loop)  # not by the loop's factory: it may be an eager one
    _running.setdefault(loop, {})[task] = coroutine
    task.add_done_callback(_ended)
    return Task(task.cancel, schedule, loop.is_closed)


class _Task(asyncio.Task[None]):
    """One that begins even when it is cancelled before, by whoever cancels all tasks of a loop: it has to clean up."""

    def cancel(self, msg: Any | None = None) -> bool:
        loop, coroutine = self.get_loop(), cast("Coroutine[Any, Any, None]", self.get_coro())
        if self.done() or loop.is_closed() or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
            return super().cancel(msg)
        loop.call_soon(super().cancel, msg)
        return True

    def __del__(self) -> None:
        """Do not complain, as others do, of a loop that was closed before: whoever closed it does not know of this."""
        if self.done():
            super().__del__()


def _ended(task: asyncio.Task[None]) -> None:
    loop = task.get_loop()
    running = _running.get(loop, {})
    running.pop(task, None)
    if not running:
        _running.pop(loop, None)


def _end_lost() -> None:
    """Have the tasks whose loop was closed let go of what they hold."""
    for loop in tuple(_running):
        if loop.is_closed():
            for task, coroutine in _running.pop(loop, {}).items():
                _break_off(task, coroutine)


def _break_off(task: asyncio.Task[None], coroutine: Coroutine[Any, Any, None]) -> None:
    """Cancel a task in its loop's place, and let it come to its end.

    Were its coroutine just closed, a client's own coroutines and generators, which have to await something to end,
    would be left to a collector, and that would complain.
    """
    here, loop = _asyncio_loop(), task.get_loop()
    current = None if here is None else asyncio.current_task()
    if here is not None and current is not None:
        asyncio._leave_task(here, current)
    asyncio._set_running_loop(loop)
    asyncio._enter_task(loop, task)
    try:
        with suppress(Exception, asyncio.CancelledError):
            coroutine.throw(asyncio.CancelledError())
            for _ in range(STEPS):
                coroutine.send(None)
        with suppress(Exception):
            coroutine.close()
    finally:
        asyncio._leave_task(loop, task)
        asyncio._set_running_loop(here)
        if here is not None and current is not None:
            asyncio._enter_task(here, current)


# By loop, which keeps only weak references to its tasks.
_running: dict[asyncio.AbstractEventLoop, dict[asyncio.Task[None], Coroutine[Any, Any, None]]] = {}


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Run a call that may wait for the disk, in a thread; it runs to its end even when the caller is cancelled.

    The threads are our own in number: others' may all be waiting for what is to be done here. Where none can be
    started the loop itself has to wait.
    """
    run = partial(copy_context().run, call, *arguments)
    made: Future[T] = Future()
    try:
        _pool().submit(_make, [made], run)
    except RuntimeError:
        if made.cancel():  # otherwise a thread has come to it all the same
            return run()
    try:
        return await _result(made)
    finally:
        del made  # here and below: no cycle of an error with the frames that it has come through


def _make(asked: list[Future[T]], run: Callable[[], T]) -> None:
    made = asked.pop()  # the pool's own frame, which an error leads back to, keeps the list
    if not made.set_running_or_notify_cancel():
        return
    try:
        made.set_result(run())
    except BaseException as error:
        made.set_exception(error)
    finally:
        del made


def _pool() -> Executor:
    """The current loop's. Its threads, unlike anyio's, end with the process whatever has become of the loop."""
    try:
        return _pools.get()
    except LookupError:
        _pools.set(pool := ThreadPoolExecutor(THREADS, "vllm-http-cache disk"))
        return pool


async def in_pool(pool: Executor, call: Callable[..., T], *arguments: Any) -> T:
    """Run a call in a thread of *pool*; a caller who is cancelled takes it back unless it has begun."""
    submitted = pool.submit(call, *arguments)
    try:
        return await _result(submitted)
    finally:
        submitted.cancel()
        del submitted


async def _result(submitted: Future[T]) -> T:
    """As the loop's ``wrap_future``, which mirrors the thread's future in one of its own, in both directions: here the
    loop is only woken, which takes a sixth less of a hop.
    """
    bell = task_bell()
    submitted.add_done_callback(lambda _: bell.ring())
    await bell.wait(None)
    try:
        return submitted.result()
    finally:
        del submitted


def _forked() -> None:
    """In a child process: the threads are the parent's."""
    global _pools  # noqa: PLW0603
    _pools = RunVar("vllm_http_cache threads")


os.register_at_fork(after_in_child=_forked)
