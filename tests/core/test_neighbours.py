"""Nobody is harmed by a neighbour: slow, failing, cancelled, out of date, or of another kind."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import ModuleType

import anyio
import anyio.to_thread
import pytest

from tests.core.memory import MemoryStorage, MemoryWriter
from tests.core.scripted import Answer, Clock, Origin, afetch, fetch, get, nothing_left, ok, whole
from tests.storage.helpers import eventually
from vllm_http_cache import Cache, CacheOptions, boarding
from vllm_http_cache.boarding import Boarding
from vllm_http_cache.loops import ThreadBell
from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request
from vllm_http_cache.steps import Failed, Joined
from vllm_http_cache.tail import CHUNK
from vllm_http_cache.wire import Caller

CALLERS = 10
FRESH = "max-age=60"


def together(cache: Cache, origin: Origin, *requests: Request) -> list[bytes]:
    """All of them at once, the first one first."""
    origin.held.clear()
    with ThreadPoolExecutor(len(requests)) as pool:
        first = pool.submit(fetch, cache, origin, requests[0])
        assert origin.arrived.wait(10)
        rest = [pool.submit(fetch, cache, origin, request) for request in requests[1:]]
        while len(origin) < 2 and sum(len(flight.queue) for flight in cache.flights._flights.values()) < len(rest):
            pass
        origin.held.set()
        return [body.result(10) for body in (first, *rest)]


def test_a_head_that_takes_long_is_shared_all_the_same(cache: Cache, clock: Clock) -> None:
    def answer(_: Request) -> Answer:
        clock.now += 30
        return ok(cache_control=FRESH)

    origin = Origin(answer)
    assert together(cache, origin, *[get()] * CALLERS) == [b"body"] * CALLERS
    assert len(origin) == 1


def test_a_body_that_took_longer_does_not_replace_what_came_later(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"v1", cache_control=FRESH))
    slow = cache.fetch(get(), origin.send)
    clock.now += 1
    origin.answer = lambda _: ok(b"v2", cache_control=FRESH)
    assert fetch(cache, origin, get(cache_control="no-cache")) == b"v2"
    assert whole(slow) == b"v1"
    assert fetch(cache, origin) == b"v2" and len(origin) == 2


def test_what_a_clock_that_was_ahead_has_stored_gives_way(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"v1", cache_control=FRESH))
    clock.now += 1000
    fetch(cache, origin)
    clock.now -= 1000
    origin.answer = lambda _: ok(b"v2", cache_control=FRESH)
    assert [fetch(cache, origin) for _ in range(2)] == [b"v2"] * 2
    assert len(origin) == 2


def test_all_together_wait_once_for_a_process_that_stands_still(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: set[int] = set()

    def claim(flight: str) -> None:
        tried.add(threading.get_ident())
        assert eventually(lambda: len(tried) > 1 or len(cache.flights._flights[flight].queue) == CALLERS - 1)

    monkeypatch.setattr(storage, "claim", claim)
    monkeypatch.setattr(boarding, "CLAIM_SECONDS", 0.0)
    origin = Origin(ok(cache_control="no-store"))
    with ThreadPoolExecutor(CALLERS) as pool:
        assert set(pool.map(lambda _: fetch(cache, origin), range(CALLERS))) == {b"body"}
    assert len(tried) == 1


def test_a_caller_who_has_left_stays_in_nobodys_way(cache: Cache, storage: MemoryStorage) -> None:
    """Its thread may still be at it, for a storage behind a network."""
    fetched = cache.fetch(get(), Origin(ok(b"body", cache_control=FRESH)).send)
    ((flight, landed),) = cache.flights._flights.items()
    late = Boarding(cache, Caller(), flight, ThreadBell())
    assert not late.enter()
    late.leave()
    assert list(late) == []
    assert isinstance(late.outcome, Joined)
    assert landed.landing and len(landed.landing.download._readers) == 1
    fetched.body.close()
    assert nothing_left(cache, storage)


def test_the_time_in_the_queue_counts_for_who_leads_after_it(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process has the claim."""
    monkeypatch.setattr(storage, "claim", lambda flight: None)
    moments = iter([0.0, 1.9, 2.1])
    monkeypatch.setattr(cache.flights, "clock", lambda: next(moments))
    way = Boarding(cache, Caller(timeout=2.0), "flight", ThreadBell())
    assert not way.enter()
    assert len(list(way)) == 1
    assert isinstance(way.outcome, Failed)


def test_a_vary_that_is_new_parts_those_who_wait(cache: Cache) -> None:
    origin = Origin(
        lambda request: ok((request.fields.get("accept") or "").encode(), vary="Accept", cache_control=FRESH)
    )
    bodies = together(cache, origin, get(accept="a"), *[get(accept="b")] * CALLERS)
    assert bodies == [b"a", *[b"b"] * CALLERS]
    assert len(origin) == 2


def test_callers_of_a_failing_origin_do_not_queue(cache: Cache) -> None:
    origin = Origin(lambda _: OSError("refused"))
    origin.held.clear()

    def one() -> str:
        try:
            return str(fetch(cache, origin))
        except OSError as error:
            return str(error)

    with ThreadPoolExecutor(CALLERS) as pool:
        told = [pool.submit(one) for _ in range(CALLERS)]
        assert origin.arrived.wait(10)
        origin.held.set()
        assert {each.result(10) for each in told} == {"refused"}
    assert len(cache.flights) == 0


@pytest.mark.parametrize("stale", [False, True], ids=["failing", "answered by what is stale"])
def test_a_failure_does_not_end_collapsing(storage: MemoryStorage, clock: Clock, stale: bool) -> None:
    cache = Cache(storage, CacheOptions(stale_if_error=600 if stale else None), clock=clock)

    def answer(request: Request) -> Answer:
        if "if-none-match" in request.fields:
            return 304, {"ETag": '"1"', "Cache-Control": FRESH}, []
        return ok(cache_control=FRESH, etag='"1"')

    origin = Origin(answer)
    fetch(cache, origin)
    clock.now += 61
    origin.answer = lambda _: (503, {}, [b"no"])
    assert fetch(cache, origin) == (b"body" if stale else b"no")
    origin.answer = answer
    origin.asked.clear()
    origin.arrived.clear()
    assert together(cache, origin, *[get()] * CALLERS) == [b"body"] * CALLERS
    assert len(origin) == 1


def test_a_follower_who_can_wait_no_longer_may_have_what_is_stale(storage: MemoryStorage, clock: Clock) -> None:
    cache = Cache(storage, CacheOptions(stale_if_error=600), clock=clock)
    origin = Origin(ok(cache_control="max-age=1"))
    fetch(cache, origin)
    clock.now += 2
    origin.held.clear()
    leader = threading.Thread(target=fetch, args=(cache, origin))
    leader.start()
    while len(origin) < 2:
        pass
    assert whole(cache.fetch(get(), origin.send, Caller(timeout=0.01))) == b"body"
    origin.held.set()
    leader.join(10)


def test_a_follower_gets_its_own_clients_error(cache: Cache, storage: MemoryStorage) -> None:
    class Own(Exception):
        pass

    more = threading.Event()

    class Broken(OSError):
        pass

    origin = Origin((200, {"Cache-Control": FRESH}, [b"half", Broken("the leader's")]))
    leader = cache.fetch(get(), origin.send)
    assert leader.body.read() == b"half"
    follower = cache.fetch(get(), origin.send, Caller(broken=Own))
    assert follower.body.read() == b"half"
    origin.answer = lambda _: OSError("gone")
    with pytest.raises(Broken):
        leader.body.read()
    with pytest.raises((Own, OSError)) as caught:
        follower.body.read()
    assert not isinstance(caught.value, Broken)
    for _ in range(2):
        with pytest.raises(Own):
            follower.body.read()
    more.set()


def test_an_invalidation_reaches_what_is_under_way(cache: Cache) -> None:
    origin = Origin(ok(b"v1", cache_control=FRESH))
    slow = cache.fetch(get(), origin.send)
    origin.answer = lambda _: (204, {"Content-Length": "0"}, [])
    cache.fetch(Request("PUT", get().uri), origin.send)
    origin.answer = lambda _: ok(b"v2", cache_control=FRESH)
    assert fetch(cache, origin) == b"v2"
    assert whole(slow) == b"v1"
    assert fetch(cache, origin) == b"v2" and len(origin) == 3


def test_an_invalidation_reaches_what_is_being_committed(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemoryWriter.commit

    def invalidated(writer: MemoryWriter) -> BodyRef | None:
        ref = commit(writer)
        cache.forget(get().uri)
        return ref

    monkeypatch.setattr(MemoryWriter, "commit", invalidated)
    origin = Origin(ok(b"v1", cache_control=FRESH))
    fetch(cache, origin)
    origin.answer = lambda _: ok(b"v2", cache_control=FRESH)
    assert fetch(cache, origin) == b"v2"


def test_a_veto_reaches_what_is_under_way(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control=FRESH))
    fetched = cache.fetch(get(), origin.send)
    fetched.refuse()
    assert whole(fetched) == b"body"
    assert storage.records == {} and storage.open_writers == 0


def test_a_loop_that_was_closed_holds_nobody(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin((200, {"Cache-Control": FRESH}, [b"x"] * 1000))
    loop = asyncio.new_event_loop()
    abandoned = loop.run_until_complete(cache.afetch(get(), origin.asend))
    loop.close()
    assert len(fetch(cache, origin)) == 1000 and len(origin) == 2
    with suppress(Exception):
        abandoned.body._end()
    assert len(cache.flights) == 0 and storage.open_writers == 0


@pytest.mark.anyio
async def test_followers_in_all_of_the_others_threads_do_not_stop_the_leader(cache: Cache) -> None:
    body = b"x" * 1_000_000
    origin = Origin(ok(body, cache_control=FRESH))
    origin.held.clear()
    threads = anyio.to_thread.current_default_thread_limiter()
    before, threads.total_tokens = threads.total_tokens, 2
    got: list[bytes] = []

    async def lead() -> None:
        got.append(await afetch(cache, origin))

    async def follow() -> None:
        got.append(await anyio.to_thread.run_sync(fetch, cache, origin))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lead)
            while not origin.arrived.is_set():
                await anyio.sleep(0.001)
            tasks.start_soon(follow)
            tasks.start_soon(follow)
            await anyio.sleep(0.05)
            origin.held.set()
    threads.total_tokens = before
    assert got == [body] * 3 and len(origin) == 1


def test_a_call_in_a_loops_own_thread_does_not_wait_for_that_loop(cache: Cache) -> None:
    origin = Origin((200, {"Cache-Control": FRESH}, [b"x"] * 10))

    async def both() -> bytes:
        leading = await cache.afetch(get(), origin.asend)
        body = fetch(cache, origin)
        await leading.body.aclose()
        return body

    assert asyncio.run(both()) == b"x" * 10
    assert len(origin) == 2


@pytest.mark.anyio
async def test_a_follower_that_cannot_use_it_may_be_cancelled(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(vary="Accept", cache_control=FRESH))
    leading = await cache.afetch(get(accept="a"), origin.asend)
    origin.held.clear()
    with anyio.move_on_after(0.05) as scope:
        await cache.afetch(get(accept="b"), origin.asend)
    assert scope.cancelled_caught
    origin.held.set()
    await leading.body.aclose()


def test_a_resumed_body_shorter_than_what_was_given_is_no_end(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(b"x" * 600_000, cache_control=FRESH, etag='"1"'))
    fetch(cache, origin)
    fetched = cache.fetch(get(), origin.send)
    storage.damaged_from = len(fetched.body.read())
    origin.answer = lambda _: ok(b"x" * 10, cache_control=FRESH, etag='"1"')
    for _ in range(2):
        with pytest.raises(ConnectionError):
            fetched.body.read()


def test_a_resumed_body_may_end_where_the_first_broke_off(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(b"x" * 600_000, cache_control=FRESH, etag='"1"'))
    fetch(cache, origin)
    fetched = cache.fetch(get(), origin.send)
    storage.damaged_from = given = len(fetched.body.read())
    origin.answer = lambda _: ok(b"x" * given, cache_control=FRESH, etag='"1"')
    assert fetched.body.read() == b"" and len(origin) == 2


def test_a_library_that_another_thread_imports_does_not_matter(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))  # as it is while it is imported
    origin = Origin(ok(cache_control=FRESH))
    assert fetch(cache, origin) == fetch(cache, origin) == b"body" and len(origin) == 1


def test_nobody_waits_for_a_body_there_is_no_room_for(cache: Cache, storage: MemoryStorage) -> None:
    storage.room = CHUNK
    origin = Origin((200, {"Cache-Control": FRESH}, [b"x" * CHUNK] * 3))
    leading = cache.fetch(get(), origin.send)
    for _ in range(2):
        leading.body.read()
    for requests in (2, 3):
        assert whole(cache.fetch(get(), origin.send, Caller(timeout=5))) == b"x" * CHUNK * 3
        assert len(origin) == requests
    leading.body.close()


def test_a_204_has_no_octets_whatever_it_announces(cache: Cache) -> None:
    origin = Origin((204, {"Content-Length": "5", "Cache-Control": FRESH}, []))
    assert fetch(cache, origin) == b""


def test_a_post_to_another_host_is_not_stored_here(cache: Cache) -> None:
    origin = Origin(ok(b"evil", cache_control=FRESH, content_location=get().uri))
    cache.fetch(Request("POST", get().uri, Fields([("Host", "evil.test")])), origin.send)
    origin.answer = lambda _: ok(b"good", cache_control=FRESH)
    assert fetch(cache, origin) == b"good"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_only_if_cached_sends_nothing_whatever_the_method(storage: MemoryStorage, method: str) -> None:
    cache = Cache(storage, CacheOptions(mode="only-if-cached"))
    origin = Origin(ok())
    assert cache.fetch(Request(method, get().uri), origin.send).response.status == 504
    assert len(origin) == 0


def test_a_cache_of_one_user_keeps_to_itself(storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin(ok(b"alice's", cache_control="private, max-age=60"))
    own = Cache(storage, CacheOptions(shared=False), clock=clock)
    assert fetch(own, origin, get(authorization="Basic alice")) == b"alice's"
    assert fetch(own, origin, get(authorization="Basic alice")) == b"alice's" and len(origin) == 1
    fetch(Cache(storage, clock=clock), origin)
    assert len(origin) == 2
