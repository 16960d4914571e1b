"""What is read of a stored body: damage on the way, the request that then goes on, and the end."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.core.memory import MemoryStorage
from tests.core.scripted import Clock, Origin, afetch, fetch, get, nothing_left, ok, status, whole
from vllm_http_cache import Cache
from vllm_http_cache.bodies import AsyncCachedBody, CachedBody
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.wire import Caller

BODY = b"x" * 600_000


def answer(body: bytes = BODY, tag: str = '"1"') -> Any:
    return ok(body, cache_control="max-age=60", **({"etag": tag} if tag else {}))


@pytest.mark.parametrize("tag", ['"1"', 'W/"1"', ""], ids=["strong", "weak", "none"])
def test_damage_found_while_reading_goes_on_with_a_request_of_its_own(
    cache: Cache, storage: MemoryStorage, tag: str
) -> None:
    origin = Origin(answer(tag=tag))
    fetch(cache, origin)
    fetched = cache.fetch(get(), origin.send)
    first = fetched.body.read()
    storage.damaged_from = len(first)
    rest = fetched.body.read()
    storage.damaged_from = None
    assert first + rest + whole(fetched) == BODY
    assert len(origin) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("from_", [0, 300_000])
async def test_what_cannot_be_read_now_is_asked_for_anew_and_stays(
    cache: Cache, storage: MemoryStorage, from_: int
) -> None:
    """Also where it is found out late, by a caller to whom the same would answer again."""
    origin = Origin(answer())
    fetch(cache, origin)
    storage.stuck = True  # what comes now is not stored in its place
    storage.damaged_from, storage.whole = from_, True
    assert fetch(cache, origin) == await afetch(cache, origin) == BODY
    assert cache.at_hand(get()) is None
    storage.damaged_from = None
    assert fetch(cache, origin) == await afetch(cache, origin) == BODY
    assert len(origin) == 3


@pytest.mark.anyio
async def test_what_cannot_be_opened_now_is_a_miss_and_stays(
    cache: Cache, storage: MemoryStorage, clock: Clock
) -> None:
    origin = Origin(lambda asked: (304, {}, []) if "if-none-match" in asked.fields else answer())
    fetch(cache, origin)
    records = dict(storage.records)
    storage.stuck = storage.unreadable = True
    for fresh, asked in ((True, 1), (False, 2)):  # with the 304 in vain there is nothing to answer with
        if not fresh:
            clock.now += 61
        before = len(origin)
        assert fetch(cache, origin) == await afetch(cache, origin) == BODY
        assert len(origin) - before == 2 * asked
    storage.stuck = storage.unreadable = False
    assert storage.records == records
    assert status(cache.fetch(get(), origin.send)).startswith("vllm-http-cache; fwd=stale; fwd-status=304")


def test_at_the_limit_of_descriptors_what_is_stored_stays(tmp_path: Path) -> None:
    origin = Origin(answer())
    uris = [f"http://origin.test/{number}" for number in range(20)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Cache(FileStorage(tmp_path)) as cache:
        for uri in uris:
            fetch(cache, origin, get(uri))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, limits[0]), limits[1]))
        held = []
        try:
            with suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            for uri in uris:
                assert fetch(cache, origin, get(uri)) == BODY
            asked = len(origin)
            assert asked > len(uris)  # all, but for those for whom a descriptor came free in between
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for uri in uris:
            assert fetch(cache, origin, get(uri)) == BODY
        assert len(origin) == asked


OTHERS = {
    "octets": answer(b"y" + BODY[1:]),
    "octets in the middle of a chunk": answer(BODY[:262_143] + b"y" + BODY[262_144:]),
    "tag": answer(tag='"2"'),
    "fewer octets than were given": answer(BODY[:1000]),
    "no answer": ConnectionError("no longer there"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_does_not_begin_with_what_was_given_is_the_callers_error(
    cache: Cache, storage: MemoryStorage, other: Any
) -> None:
    fetch(cache, origin := Origin(answer()))
    fetched = cache.fetch(get(), origin.send)
    storage.damaged_from = len(fetched.body.read())
    origin.answer = lambda _: other
    for _ in range(2):  # a body that has failed does not end as if it were whole
        with pytest.raises(ConnectionError):
            fetched.body.read()


@pytest.mark.anyio
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_it_is_an_error_for_a_task_too(cache: Cache, storage: MemoryStorage, other: Any) -> None:
    await afetch(cache, origin := Origin(answer()))
    fetched = await cache.afetch(get(), origin.asend)
    storage.damaged_from = len(await fetched.body.read())
    origin.answer = lambda _: other
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await fetched.body.read()
    assert fetched.body.ready() is None


@pytest.mark.anyio
async def test_the_request_that_goes_on_ends_with_its_reader(cache: Cache, storage: MemoryStorage) -> None:
    body = b"x" * 600_000
    for asynchronous in (False, True):
        cache.forget(get().uri)
        origin = Origin((200, {"Cache-Control": "max-age=60", "ETag": '"1"'}, [body]))
        fetch(cache, origin)
        origin.answer = lambda _: (
            200,
            {"Cache-Control": "max-age=60", "ETag": '"1"'},
            [body[:400_000], body[400_000:]],
        )
        if asynchronous:
            fetched = await cache.afetch(get(), origin.asend)
            storage.damaged_from = len(await fetched.body.read())
            await fetched.body.read()
            await fetched.body.aclose()
        else:
            fetched = cache.fetch(get(), origin.send)
            storage.damaged_from = len(fetched.body.read())
            fetched.body.read()
            fetched.body.close()
        storage.damaged_from = None
        with anyio.fail_after(10):
            while not (origin.bodies[1].closed and nothing_left(cache, storage)):
                await anyio.sleep(0.001)


class Short:
    """A supply that ends too early."""

    length = 4

    def take(self, *, wait: bool = True) -> bytes:
        return b""

    def close(self) -> None:
        pass


@pytest.mark.anyio
async def test_a_supply_that_ends_too_early_is_no_end() -> None:
    short: Any = Short()
    with pytest.raises(ConnectionError, match="0 octets came where 4 were announced"):
        CachedBody(short, Caller(), None, None).read()
    body = AsyncCachedBody(short, Caller(), None, None)
    assert body.ready() is None
    with pytest.raises(ConnectionError, match="0 octets came where 4 were announced"):
        await body.read()


@pytest.mark.anyio
async def test_a_body_at_its_end_holds_nothing_closed_or_not(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    fetch(cache, origin)
    one, other = cache.fetch(get(), origin.send), await cache.afetch(get(), origin.asend)
    assert storage.open_readers == 2
    assert (one.body.read(), one.body.read()) == (await other.body.read(), await other.body.read()) == (b"body", b"")
    assert storage.open_readers == 0


def test_a_veto_reaches_the_request_that_goes_on(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(b"x" * 600_000, cache_control="max-age=60", etag='"1"'))
    fetch(cache, origin)
    fetched = cache.fetch(get(), origin.send)
    storage.damaged_from = len(fetched.body.read())
    fetched.body.read()
    storage.damaged_from = None
    whole(fetched)
    assert len(storage.records) == 1
    fetched.refuse()
    assert storage.records == {} and len(origin) == 2


@pytest.mark.errors_are_logged
def test_what_was_thrown_away_and_cannot_be_closed_harms_nobody_else(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Short):
        def close(self) -> None:
            raise OSError("cannot be closed")

    stuck: Any = Stuck()
    CachedBody(stuck, Caller(), None, None)  # and nobody has it
    assert fetch(cache, Origin(ok())) == b"body"
    assert "could not be closed" in caplog.text


def test_what_is_thrown_away_after_the_end_is_closed_at_the_next_call(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"some", b"more"]))
    fetched = cache.fetch(get(), origin.send)
    cache.close()
    del fetched
    assert not origin.bodies[0].closed
    cache.close()
    assert origin.bodies[0].closed
    assert nothing_left(cache, storage)
