"""Our cache on hishel's SQLite storage, under every client and over real sockets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hishel import SqliteStorage

from tests.clients import Client
from tests.origin import Answer, Origin, Seen
from tests.storage.helpers import eventually
from tests.storage_hishel.conftest import Clock
from vllm_http_cache import Cache, CacheOptions
from vllm_http_cache.storage.hishel import HishelStorage

MIB = 1024 * 1024
FRESH = {"Cache-Control": "max-age=60", "ETag": '"a"'}

MakeClient = Callable[[], Client]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
def make(database: Path, clock: Clock, client_class: type[Client]) -> Iterator[MakeClient]:
    """Makes clients, each on a cache of its own, as another process would; all share the database."""
    with ExitStack() as stack:

        def make() -> Client:
            storage = HishelStorage(SqliteStorage(database_path=database), clock=clock)
            cache = stack.enter_context(Cache(storage, CacheOptions(), clock=clock))
            return stack.enter_context(closing(client_class(cache)))

        yield make


@pytest.fixture
def client(make: MakeClient) -> Client:
    return make()


def by_tag(seen: Seen) -> Answer:
    return Answer(304, FRESH) if seen.get("if-none-match") == '"a"' else Answer(200, FRESH, b"body")


@pytest.mark.parametrize("size", [0, 1000, 3 * MIB])
def test_a_miss_then_hits_also_after_a_restart(make: MakeClient, origin: Origin, size: int) -> None:
    body = os.urandom(size)
    url = origin.on("/a", Answer(200, FRESH, [body[at : at + 50_000] for at in range(0, size, 50_000)]))
    client = make()
    got = [client.get(url), client.get(url), make().get(url)]
    assert [one.body for one in got] == [body] * 3
    assert [one.hit for one in got] == [False, True, True]
    assert origin.count("/a") == 1


def test_a_304_freshens(client: Client, origin: Origin, clock: Clock) -> None:
    url = origin.on("/a", by_tag)
    client.get(url)
    clock.ahead = 61
    validated = client.get(url)
    assert (validated.status, validated.body) == (200, b"body")
    assert "fwd-status=304" in validated.cache_status
    clock.ahead = 100
    assert client.get(url).hit
    assert [seen.get("if-none-match") for seen in origin.seen("/a")] == [None, '"a"']


def test_content_that_changed_is_replaced(client: Client, origin: Origin) -> None:
    stale = {"Cache-Control": "max-age=0", "ETag": '"a"'}
    url = origin.on("/a", Answer(200, stale, b"old"), Answer(200, {"Cache-Control": "max-age=60"}, b"new"))
    assert [client.get(url).body for _ in range(3)] == [b"old", b"new", b"new"]
    assert origin.count("/a") == 2


def test_variants(client: Client, origin: Origin) -> None:
    url = origin.on("/a", lambda seen: Answer(200, {**FRESH, "Vary": "Accept"}, (seen.get("accept") or "").encode()))
    for _ in range(2):
        for accept in ("image/png", "image/webp", "image/avif"):
            assert client.get(url, {"Accept": accept}).body == accept.encode()
    assert origin.count("/a") == 3


def test_a_range_is_cut_out(client: Client, origin: Origin) -> None:
    body = os.urandom(3 * MIB)
    url = origin.on("/a", Answer(200, FRESH, body))
    client.get(url)
    for first, last in ((0, 9), (2 * MIB - 5, 2 * MIB + 5), (len(body) - 3, len(body) - 1)):
        got = client.get(url, {"Range": f"bytes={first}-{last}"})
        assert (got.status, got.body) == (206, body[first : last + 1])
    assert origin.count("/a") == 1


def test_the_consumers_veto_drops_what_is_stored(client: Client, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    client.get(url)
    hit = client.get(url)
    assert hit.hit
    hit.refuse()
    assert not client.get(url).hit
    assert client.get(url).hit


def test_forget(client: Client, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    client.get(url)
    assert client.cache
    client.cache.forget(url)
    assert not client.get(url).hit


def test_truncation_is_an_error_and_not_stored(client: Client, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"half", length=8, end="cut"), Answer(200, FRESH, b"whole"))
    with pytest.raises(client.broken):
        client.get(url)
    assert [client.get(url).body for _ in range(2)] == [b"whole", b"whole"]


def test_callers_at_once_make_one_request(client: Client, origin: Origin) -> None:
    rest = threading.Event()
    url = origin.on("/a", Answer(200, FRESH, [b"first", rest, b"rest"], framing="chunked"))
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(client.get, url) for _ in range(8)]
        assert eventually(lambda: origin.count("/a"))
        rest.set()
        assert [call.result().body for call in calls] == [b"firstrest"] * 8
    assert origin.count("/a") == 1


def test_changes_at_once_lose_nothing(client: Client, origin: Origin) -> None:
    """Variants of one key, stored by as many threads."""
    url = origin.on("/a", lambda seen: Answer(200, {**FRESH, "Vary": "Accept"}, (seen.get("accept") or "").encode()))
    kinds = [f"image/{number}" for number in range(6)]
    with ThreadPoolExecutor(len(kinds)) as pool:
        list(pool.map(lambda kind: client.get(url, {"Accept": kind}), kinds))
    for kind in kinds:
        got = client.get(url, {"Accept": kind})
        assert (got.hit, got.body) == (True, kind.encode())


def test_a_broken_database_costs_speed_and_not_answers(
    client: Client, origin: Origin, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.mkdir()
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    assert [client.get(url).body for _ in range(2)] == [b"body", b"body"]
    assert origin.count("/a") == 2


def test_a_closed_cache_forwards(client: Client, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    client.get(url)
    assert client.cache
    client.cache.close()
    assert client.get(url).body == b"body"
    assert origin.count("/a") == 2
