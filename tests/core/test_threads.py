"""Threads for calls that may wait: how many, for how long, and what becomes of them at the end of the process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from tests.storage.helpers import eventually
from vllm_http_cache import threads
from vllm_http_cache.threads import Threads


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threads._Thread)]


def end_threads() -> None:
    threads._end()
    assert not ours()


class Held:
    """Calls that wait until they may return."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.begun = threading.Semaphore(0)

    def call(self) -> bool:
        self.begun.release()
        return self.free.wait(10)

    def await_begun(self, number: int) -> None:
        for _ in range(number):
            assert self.begun.acquire(timeout=10)


def test_so_many_at_once_and_no_more() -> None:
    held, some, others = Held(), Threads(3), Threads(3)
    end_threads()
    calls = [some.submit(held.call) for _ in range(10)]
    held.await_begun(3)
    assert len(ours()) == 3
    assert not held.begun.acquire(timeout=0.05)
    assert others.submit(lambda: 7).result(10) == 7
    held.free.set()
    assert all(call.result(10) for call in calls)


def test_one_after_the_other_share_a_thread() -> None:
    end_threads()
    threads_ = Threads(3)
    assert len({threads_.submit(threading.get_ident).result(10) for _ in range(200)}) == 1


def test_an_error_is_the_callers() -> None:
    with pytest.raises(SystemExit):
        Threads(1).submit(exit).result(10)
    assert Threads(1).submit(lambda: 7).result(10) == 7


def test_a_thread_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    end_threads()
    monkeypatch.setattr(threads, "IDLE", 0.001)
    for number in range(100):  # some of them when a thread is about to end
        assert Threads(1).submit(lambda: number).result(10) == number  # noqa: B023
        threading.Event().wait(0.001)
    eventually(lambda: not ours())
    assert not threads._idle


def test_a_thread_without_work_keeps_nothing_of_its_last_call() -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    done = Threads(1).submit(partial(id, thing))
    done.result(10)
    del done, thing
    eventually(lambda: gone() is None)


@pytest.fixture
def no_more(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


def test_without_a_thread_the_call_is_refused(no_more: Callable[[], None]) -> None:
    end_threads()
    no_more()
    made: list[int] = []
    refusing = Threads(2)
    with pytest.raises(RuntimeError, match="start"):
        refusing.submit(lambda: made.append(1))
    assert not made
    assert refusing._busy == 0


def test_the_end_waits_for_a_call_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    end_threads()
    held = Held()
    call: Future[bool] = Threads(1).submit(held.call)
    held.await_begun(1)
    monkeypatch.setattr(threads, "ENDING", 0.01)
    threads._end()
    assert not call.done() and len(ours()) == 1
    threading.Timer(0.05, held.free.set).start()
    monkeypatch.setattr(threads, "ENDING", 10.0)
    end_threads()
    assert call.done()


def test_after_the_end_there_may_be_more() -> None:
    end_threads()
    assert Threads(1).submit(lambda: 7).result(10) == 7
