"""Leaders that do not get on though their origin may: their event loop does not turn, or their process is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import anyio
import pytest

from tests.core.memory import MemoryStorage, MemoryWriter, Unclaimed
from tests.core.receiving import Kept, Pausing, Source, attached, read_all
from tests.core.scripted import Origin, afetch, fetch, get, nothing_left, ok, whole
from tests.core.test_following import Followed
from tests.storage.helpers import eventually
from vllm_http_cache import Cache, patience
from vllm_http_cache.boarding import Boarding
from vllm_http_cache.downloads import PACE
from vllm_http_cache.flights import Seat
from vllm_http_cache.loops import ThreadBell, task_bell
from vllm_http_cache.patience import BEAT
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.steps import Joined
from vllm_http_cache.wire import Caller, Reply

FRESH = {"Cache-Control": "max-age=60", "Content-Length": "4"}


@pytest.mark.parametrize(
    "timeout, remote, seconds",
    [
        (None, False, 3),
        (None, True, 10),
        (60, False, 3),
        (60, True, 10),
        (5, False, 2.5),
        (5, True, 2.5),
        (1, False, 1),
    ],
)
def test_half_of_the_callers_time_within_bounds(timeout: float | None, remote: bool, seconds: float) -> None:
    assert patience.patience(timeout, remote=remote) == seconds


@pytest.mark.parametrize(
    "timeout, looks",
    [
        (None, [(0, 0.75), (0.75, 0.75), (1.5, 0.75), (2.25, 0.75)]),
        (0.625, [(0, 0.25), (0.25, 0.25), (0.5, 0.125)]),
        (0, [(0, 0)]),
    ],
)
def test_looks_until_the_time_is_up(timeout: float | None, looks: list[tuple[float, float]]) -> None:
    assert list(islice(patience.looks(timeout), 4)) == looks


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


# Other processes.

FLIGHT = "".join(f"{number:x}" * 16 for number in range(4))
DEPUTYS = FLIGHT[::-1]


@pytest.fixture
def now(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have gone by."""
    now = [0.0]
    monkeypatch.setattr(cache.flights, "clock", lambda: now[0])
    return now


@pytest.fixture
def taken(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The flights that other processes have claimed."""
    taken = {FLIGHT}
    monkeypatch.setattr(storage, "claim", lambda flight: None if flight in taken else Unclaimed())
    return taken


def board(cache: Cache, timeout: float | None) -> Boarding:
    way = Boarding(cache, Caller(timeout), FLIGHT, ThreadBell())
    assert not way.enter()
    return way


def leads(way: Boarding, now: list[float], moment: float) -> None:
    """It does at this moment, and not before."""
    steps = iter(way)
    for before in (0.0, moment - 0.001):
        now[0] = before
        assert next(steps)
    now[0] = moment
    assert next(steps)  # the last pause before it looks
    assert list(steps) == []
    assert isinstance(way.outcome, Seat)


@pytest.mark.parametrize("timeout, moment", [(None, 10), (60.0, 10), (5.0, 2.5), (1.5, 1)])
def test_without_a_head_one_process_asks_in_the_leaders_stead(
    cache: Cache, now: list[float], taken: set[str], timeout: float | None, moment: float
) -> None:
    way = board(cache, timeout)
    leads(way, now, moment)
    assert isinstance(way.outcome, Seat) and way.outcome.claim


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_at_last_it_leads_without_a_claim(
    cache: Cache, now: list[float], taken: set[str], timeout: float | None
) -> None:
    taken.add(DEPUTYS)
    way, steps = board(cache, timeout), None
    follower = Boarding(cache, Caller(), FLIGHT, ThreadBell())
    assert follower.enter()
    steps = iter(way)
    now[0] = patience.CLAIM_SECONDS
    assert next(steps)
    now[0] += 0.001
    assert list(steps) == []
    assert isinstance(way.outcome, Seat) and way.outcome.claim is None
    assert cache.flights.collect(follower._ticket) is None, "who waits in this process waits for this one"


def test_a_follower_with_less_time_makes_its_leader_hurry(cache: Cache, now: list[float], taken: set[str]) -> None:
    way, follower = board(cache, None), Boarding(cache, Caller(4), FLIGHT, ThreadBell())
    assert follower.enter()
    looks = follower.bells(ThreadBell)
    steps, waited = iter(way), 0.0
    while waited < 2:
        assert next(steps)
        waited += next(looks)[1]
    next(looks)
    assert list(steps) == []
    assert isinstance(way.outcome, Seat) and way.outcome.claim and now == [0.0]


@pytest.mark.parametrize(
    "timeout, silence, joins", [(None, 2.9, True), (None, 3, False), (5, 2.4, True), (5, 2.5, False)]
)
def test_a_body_without_a_sign_of_life_is_not_followed(
    cache: Cache,
    storage: MemoryStorage,
    taken: set[str],
    monkeypatch: pytest.MonkeyPatch,
    timeout: float | None,
    silence: float,
    joins: bool,
) -> None:
    growing = Followed(end=None)
    growing.silence = silence
    monkeypatch.setattr(storage, "growing", lambda flight: growing)
    way = board(cache, timeout)
    pauses = list(way)
    assert isinstance(way.outcome, Joined if joins else Seat)
    assert len(pauses) == (0 if joins else 1), "the deputy does not wait for long"


def test_a_download_that_others_may_follow_gives_signs_of_life(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    now, beats = [0.0], []
    monkeypatch.setattr(MemoryWriter, "beat", lambda self: beats.append(now[0]))
    source = Pausing([b"body"])
    source.given = 1  # it pauses from the first
    download = kept.pulled(source, clock=lambda: now[0])
    reader = attached(download)
    for now[0] in (0.0, BEAT / 2, PACE + BEAT, PACE + BEAT * 1.5, PACE + BEAT * 2, PACE + BEAT * 2.5):
        assert download.tick()
    assert beats == [PACE + BEAT, PACE + BEAT * 2]
    source.go_on.set()
    assert read_all(download, reader) == b"body"
    now[0] += 10
    assert not download.tick() and len(beats) == 2


def test_one_that_others_may_not_follow_gives_none(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.delattr(MemoryWriter, "beat")
    download = kept.pulled(Source([]), clock=lambda: now[0])
    download._publish = None
    for now[0] in (0.0, 1.0, 2.0):
        assert download.tick()
