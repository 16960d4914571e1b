"""What becomes of content that vLLM has not read, or not in its time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("vllm.connections")

from vllm.connections import global_http_connection as connection

from tests.origin import Answer, Origin
from tests.storage.helpers import eventually
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch
from vllm_http_cache.rfc9111.cachestatus import CacheStatus
from vllm_http_cache.rfc9111.message import Response
from vllm_http_cache.vllm.answers import DRAINED, AsyncAnswer, adrain, drain
from vllm_http_cache.vllm.attempt import Attempt, is_being_stored
from vllm_http_cache.vllm.hops import first_hop
from vllm_http_cache.wire import Fetched

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}


def test_an_errors_content_is_read_for_it_to_be_stored(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(404, FRESH, [b"not", 0.1, b" found"], framing="chunked"))
    for _ in range(2):
        with pytest.raises(Exception, match="404"):
            fetch.octets(url)
    assert origin.count() == 1


def test_time_that_has_passed_since_the_answer_counts(plugin: Plugin, origin: Origin) -> None:
    """Of the whole that vLLM gives a task, also where all octets are here already."""
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"x" * 100_000))
    Fetch(asynchronous=True).octets(url)

    async def late() -> None:
        loop: Any = asyncio.get_running_loop()
        async with await connection.get_async_response(url, timeout=5) as answer:
            time = loop.time
            loop.time = lambda: time() + 10
            try:
                with pytest.raises(TimeoutError):
                    await answer.read()
            finally:
                loop.time = time

    asyncio.run(late())


def test_a_cancelled_load_ends_with_what_has_come(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    rest = threading.Event()
    url = origin.on("/a", Answer(fields=FRESH, body=[b"x" * 1000, rest], length=2000))
    given: list[bytes] = []

    async def read() -> None:
        async with await connection.get_async_response(url) as answer:
            answer._reading._attempt.joined = 10_000
            async for piece in answer.content.iter_chunked(100):
                given.append(piece)  # noqa: PERF401 - those before an error too

    async def cancelled() -> None:
        reading = asyncio.create_task(read())
        while not origin.requests:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(cancelled())
    rest.set()
    assert given == []


class Endless:
    """A body without an end, which counts what was taken of it."""

    def __init__(self) -> None:
        self.taken = 0
        self.closed = False

    def read(self) -> bytes:
        self.taken += 1000
        return bytes(1000)

    def close(self) -> None:
        self.closed = True


class AsyncEndless(Endless):
    async def read(self) -> bytes:  # type: ignore[override]
        return super().read()

    def ready(self) -> None: ...

    async def aclose(self) -> None:
        self.closed = True


def test_what_is_no_error_is_not_read_when_it_is_left() -> None:
    """vLLM leaves what is too large, at its beginning or in the middle."""

    async def left(read: int) -> int:
        status = CacheStatus(forward="uri-miss", stored=True)
        fetched = Fetched(Response(200), body := AsyncEndless(), status=status)
        answer = AsyncAnswer(first_hop("http://a.test/", {}), fetched, Attempt("http://a.test/"), None)
        pieces = answer.iter_any()
        for _ in range(read):
            await anext(pieces)
        await answer.aclose()
        assert body.closed
        return body.taken

    assert [asyncio.run(left(read)) for read in (0, 2)] == [0, 2000]


def test_what_has_no_content_by_its_status_is_kept(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(204, FRESH))
    assert [fetch.octets(url) for _ in range(2)] == [b""] * 2
    assert origin.count() == 1


class Stalled(Endless):
    """One that has nothing to give for as long as a client would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def read(self) -> bytes:
        self.go_on.wait(20)
        return b""


def test_a_content_that_does_not_come_holds_nobody_up() -> None:
    unwanted = Stalled()
    drain(Fetched(Response(404), unwanted, status=CacheStatus(forward="uri-miss", stored=True)))
    assert not unwanted.closed, "it is still waited for"
    unwanted.go_on.set()
    assert eventually(lambda: unwanted.closed)


def test_the_content_of_a_failure_is_not_read(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    """It will not be kept, whatever the origin says."""
    plugin.start()
    go_on = threading.Event()
    url = origin.on("/a", Answer(503, FRESH, [b"b", go_on, b"usy"], length=4))
    fetched: list[Fetched] = []

    def note(it: Fetched) -> bool:
        fetched.append(it)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
        patch.setattr("vllm_http_cache.vllm.answers.is_being_stored", note)
        with pytest.raises(Exception, match="503"):
            fetch.octets(url)
    go_on.set()
    assert fetched and not any(is_being_stored(it) for it in fetched)


@pytest.mark.parametrize("stored, most", [(True, DRAINED + 1000), (False, 0)])
@pytest.mark.parametrize("body", [Endless, AsyncEndless])
def test_no_more_is_read_of_it_than_that_is_worth(body: type[Endless], stored: bool, most: int) -> None:
    unwanted = body()
    fetched = Fetched(Response(404), unwanted, status=CacheStatus(forward="uri-miss", stored=stored))
    if isinstance(unwanted, AsyncEndless):
        asyncio.run(adrain(fetched, None))
    else:
        drain(fetched)
    assert unwanted.taken <= most
    assert (unwanted.taken > 0) is stored
    assert unwanted.closed
