"""Leaders that do not get on though their origin may: their event loop does not turn, or their process is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from tests.core.memory import MemoryStorage
from tests.core.scripted import Origin, afetch, fetch, get, nothing_left, ok, whole
from tests.storage.helpers import eventually
from vllm_http_cache import Cache, patience
from vllm_http_cache.loops import task_bell
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.wire import Caller, Reply

FRESH = {"Cache-Control": "max-age=60", "Content-Length": "4"}


@pytest.mark.parametrize("timeout, seconds", [(None, 3), (60, 3), (5, 2.5), (1, 1)])
def test_half_of_the_callers_time_within_bounds(timeout: float | None, seconds: float) -> None:
    assert patience.patience(timeout) == seconds


# Event loops of this process.


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(patience, "SHORTEST", 0.2)


async def until(state: Callable[[], bool]) -> None:
    while not state():
        await anyio.sleep(0.001)


class Leader:
    """Fetches in a loop of its own, and comes to a point where its origin pauses."""

    def __init__(self, cache: Cache, when: str) -> None:
        self.is_there, self.may_go_on = threading.Event(), threading.Event()
        self.got: list[bytes] = []
        self._cache = cache
        self._pauses_before = [b"bo", b"dy", b""].index(b"bo" if when == "before the head" else b"dy")
        self._chunks = [b"bo", b"dy", b""]

    async def send(self, request: Request) -> Reply:
        if self._pauses_before == 0:
            await self._pause()
        return Reply(Response(200, Fields(FRESH.items())), self)

    async def _pause(self) -> None:
        self.is_there.set()
        await until(self.may_go_on.is_set)

    async def read(self) -> bytes:
        if len(self._chunks) == 2 and self._pauses_before == 1:
            await self._pause()
        return self._chunks.pop(0)

    async def aclose(self) -> None:
        pass

    async def fetch(self) -> None:
        fetched = await self._cache.afetch(get(), self.send)
        while data := await fetched.body.read():
            self.got.append(data)
        await fetched.body.aclose()

    async def fetch_and_stand(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.fetch)
            await until(self.is_there.is_set)
            assert self.may_go_on.wait(10)


WHEN = pytest.mark.parametrize("when", ["before the head", "in mid-body"])


@WHEN
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("tasks", [False, True], ids=["threads follow", "tasks follow"])
def test_a_leader_whose_loop_does_not_turn_costs_one_more_request(
    cache: Cache, storage: MemoryStorage, when: str, loop: str, tasks: bool
) -> None:
    leader, origin = Leader(cache, when), Origin(ok(b"body", cache_control="max-age=60"))

    def follow(_: int) -> bytes:
        return whole(cache.fetch(get(), origin.send, Caller(timeout=5)))

    async def follow_in_another_loop() -> list[bytes]:
        return list(await asyncio.gather(*(afetch(cache, origin) for _ in range(5))))

    thread = threading.Thread(target=anyio.run, args=(leader.fetch_and_stand,), kwargs={"backend": loop})
    thread.start()
    assert leader.is_there.wait(10)
    try:
        if tasks:
            assert asyncio.run(asyncio.wait_for(follow_in_another_loop(), 10)) == [b"body"] * 5
        else:
            with ThreadPoolExecutor(5) as pool:
                assert set(pool.map(follow, range(5), timeout=10)) == {b"body"}
        assert len(origin) == 1
        assert fetch(cache, origin) == b"body" and len(origin) == 1, "it is stored"
    finally:
        leader.may_go_on.set()
        thread.join(10)
    assert b"".join(leader.got) == b"body"
    assert nothing_left(cache, storage)


@WHEN
@pytest.mark.usefixtures("hasty")
def test_a_leader_whose_loop_turns_is_waited_for(cache: Cache, when: str) -> None:
    leader, origin = Leader(cache, when), Origin(ok(b"other", cache_control="max-age=60"))
    leading = threading.Thread(target=anyio.run, args=(leader.fetch,))
    leading.start()
    assert leader.is_there.wait(10)
    silences = threading.Timer(1.0, leader.may_go_on.set)
    silences.start()
    try:
        assert fetch(cache, origin) == b"body" and len(origin) == 0
    finally:
        silences.cancel()
        leader.may_go_on.set()
        leading.join(10)


@WHEN
@pytest.mark.usefixtures("hasty")
def test_a_loop_that_nobody_runs_on_is_not_waited_for(cache: Cache, storage: MemoryStorage, when: str) -> None:
    leader, origin = Leader(cache, when), Origin(ok(b"body", cache_control="max-age=60"))

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(leader.fetch())
        await until(leader.is_there.is_set)
        return task

    with asyncio.Runner() as runner:
        task = runner.run(begin())
        assert fetch(cache, origin) == b"body" and len(origin) == 1
        leader.may_go_on.set()
        runner.run(asyncio.wait_for(task, 10))
    assert b"".join(leader.got) == b"body"
    assert nothing_left(cache, storage)


@pytest.mark.usefixtures("hasty")
def test_who_reads_in_a_loop_that_stood_still_reads_on(cache: Cache) -> None:
    leader = Leader(cache, "in mid-body")
    thread = threading.Thread(target=anyio.run, args=(leader.fetch_and_stand,))
    thread.start()
    assert leader.is_there.wait(10)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(fetch, cache, Origin(lambda _: OSError("it is down")))
        with pytest.raises(OSError, match="down"):
            following.result(10)
    leader.may_go_on.set()
    thread.join(10)
    assert leader.got == [b"bo", b"dy"]


@pytest.mark.anyio
async def test_a_loop_that_has_stood_still_turns_for_whoever_asks_in_it() -> None:
    bell = task_bell()

    def silent() -> bool:
        return bell.silent() > 0.01

    asking = threading.Thread(target=lambda: eventually(silent))
    asking.start()
    asking.join(10)
    assert bell.silent() == 0.0
