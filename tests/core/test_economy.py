"""What an answer does without: hits at hand, in turns with other tasks, and no more looks than needed."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from tests.core.memory import MemoryStorage
from tests.core.scripted import Clock, Origin, afetch, fetch, get, nothing_left, ok, status
from vllm_http_cache import Cache, CacheOptions
from vllm_http_cache.bodies import TURN
from vllm_http_cache.cache import AT_HAND
from vllm_http_cache.exchange import exchange, revalidate
from vllm_http_cache.rfc9111.message import BodyRef, Fields, StoredResponse
from vllm_http_cache.rfc9111.options import Mode
from vllm_http_cache.steps import Again, Enter, Failed, Forward, Joined, Leave, LookUp
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.tail import CHUNK


def stale() -> StoredResponse:
    """At 100 seconds it may answer while it is validated."""
    fields = Fields([("Cache-Control", "max-age=1, stale-while-revalidate=600")])
    return StoredResponse(get().uri, 200, fields, (), 0.0, 0.0, 0.0, BodyRef("b", 4))


def expired() -> StoredResponse:
    return replace(stale(), fields=Fields([("Cache-Control", "max-age=1"), ("ETag", '"1"')]))


def test_a_small_fresh_hit_is_at_hand_whole(cache: Cache, storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"x" * 300_000, b"y" * 300_000]))
    assert cache.at_hand(get()) is None
    body = fetch(cache, origin)
    at_hand = cache.at_hand(get())
    assert at_hand is not None
    hit = cache.fetch(get(), origin.send)
    assert (at_hand.body, status(at_hand), at_hand.stored) == (body, status(hit), hit.stored)
    assert hit.stored is not None
    hit.body.close()
    at_hand.refuse()
    assert cache.at_hand(get()) is None
    fetch(cache, origin)
    clock.now += 60
    assert cache.at_hand(get()) is None
    assert nothing_left(cache, storage)


def test_no_damaged_large_or_distant_hit_is_at_hand_nor_one_in_pieces(cache: Cache, storage: MemoryStorage) -> None:
    large = Origin((200, {"Cache-Control": "max-age=60"}, [b"x" * AT_HAND, b"x"]))
    fetch(cache, large)
    assert cache.at_hand(get()) is None
    cache.forget(get().uri)
    origin = Origin(ok(cache_control="max-age=60"))
    fetch(cache, origin)
    storage.slow = True
    with pytest.raises(BlockingIOError):
        cache.at_hand(get(), wait=False)
    assert cache.at_hand(get()) is not None
    storage.most = 3
    assert cache.at_hand(get()) is None
    assert (fetch(cache, origin), len(origin.asked)) == (b"body", 1)
    storage.slow, storage.most, storage.damaged_from = False, sys.maxsize, 0
    with pytest.raises(BlockingIOError):
        cache.at_hand(get(), wait=False)
    assert cache.at_hand(get()) is None
    storage.damaged_from = None
    assert cache.at_hand(get()) is None  # it has been dropped
    assert nothing_left(cache, storage)


def test_at_hand_are_contents_only(cache: Cache) -> None:
    origin = Origin((404, {"Cache-Control": "max-age=60", "Content-Length": "4"}, [b"body"]))
    fetch(cache, origin)
    assert "hit" in status(cache.fetch(get(), origin.send))
    assert cache.at_hand(get()) is None
    cache.forget(get().uri)
    fetch(cache, Origin(ok(cache_control="max-age=60")))
    assert cache.at_hand(get(), 3) is None
    assert cache.at_hand(get(), 4) is not None


@pytest.mark.anyio
async def test_others_have_their_turn_while_much_is_read(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"x" * CHUNK] * 16))
    await afetch(cache, origin)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    fetched = await cache.afetch(get(), origin.asend)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        while await fetched.body.read():
            pass
        assert turns
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_is_ready_ends_with_the_turn(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"x" * CHUNK] * 16))
    await afetch(cache, origin)
    fetched = await cache.afetch(get(), origin.asend)
    octets = 0
    while data := fetched.body.ready():
        octets += len(data)
    assert (data, octets) == (None, TURN)
    while data := await fetched.body.read():
        octets += len(data)
    assert octets == 16 * CHUNK


@pytest.mark.anyio
@pytest.mark.parametrize("remote", [False, True])
async def test_what_may_wait_for_a_network_is_asked_in_a_thread(
    cache: Cache, storage: MemoryStorage, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    claim = storage.claim
    storage.remote = remote

    def asking(flight: str) -> object:
        asked.append(threading.get_ident())
        return claim(flight)

    monkeypatch.setattr(storage, "claim", asking)
    assert await afetch(cache, Origin(ok(cache_control="max-age=60"))) == b"body"
    assert [ident != threading.get_ident() for ident in asked] == [remote]


@pytest.mark.parametrize(
    "mode, reads",  # before a flight, and again by its leader
    [("off", 0), ("no-store", 1), ("reload", 1), ("no-cache", 1), ("force-cache", 2), ("default", 2)],
)
def test_a_record_is_read_no_more_often_than_needed(
    storage: MemoryStorage, mode: Mode, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, keys = storage.read, []

    def counted(key: str, *, wait: bool = True) -> Record | None:
        keys.append(key)
        return read(key, wait=wait)

    monkeypatch.setattr(storage, "read", counted)
    fetch(Cache(storage, CacheOptions(mode=mode)), Origin(ok(cache_control="no-store")))
    assert len(keys) == reads


@pytest.mark.parametrize("turn", [Joined(stale(), object()), Failed(OSError(), 0)], ids=["joined", "failed"])
def test_what_another_validates_is_not_validated_once_more(turn: Joined | Failed) -> None:
    way = revalidate(get(), CacheOptions())
    assert isinstance(next(way), LookUp)
    assert isinstance(way.send(((stale(),), 100.0)), Enter)
    if isinstance(turn, Joined):
        assert way.send(turn) == Leave(turn.body)
    with pytest.raises(StopIteration) as end:
        way.send(None if isinstance(turn, Joined) else turn)
    assert end.value.value is None


def test_who_waits_twice_for_what_is_not_kept_goes_alone() -> None:
    """A storage that cannot store must not make its callers go one after another."""
    way = exchange(get(), CacheOptions())
    looked = ((expired(),), 700.0)
    assert isinstance(next(way), LookUp)
    for _ in range(2):
        assert isinstance(way.send(looked), Enter)
        assert isinstance(way.send(Again()), LookUp)
    assert isinstance(way.send(looked), Forward)
    way.close()


def test_who_waits_for_what_changes_each_time_goes_on_waiting() -> None:
    way = exchange(get(), CacheOptions())
    assert isinstance(next(way), LookUp)
    for seconds in range(5):
        assert isinstance(way.send(((replace(expired(), confirmed=float(seconds)),), 700.0)), Enter)
        assert isinstance(way.send(Again()), LookUp)
    way.close()
