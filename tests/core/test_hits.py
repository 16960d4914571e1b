"""The short cut to fresh hits answers what an exchange would, or not at all."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.core.memory import MemoryStorage
from vllm_http_cache.forgetting import Forgotten
from vllm_http_cache.hits import URIS, Hit, Hits
from vllm_http_cache.rfc9111.cachestatus import CacheStatus
from vllm_http_cache.rfc9111.memo import LONGEST
from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.responding import respond
from vllm_http_cache.rfc9111.selecting import Reuse, is_answerable, select
from vllm_http_cache.rfc9111.target import cache_key
from vllm_http_cache.storage.protocol import Record

URI = "http://origin.test/a"
START = 1_800_000_000.0
OPTIONS = CacheOptions(ttl=86_400)

response_fields = st.lists(
    st.sampled_from(
        [
            ("Cache-Control", "max-age=60"),
            ("Cache-Control", "max-age=5, stale-while-revalidate=60"),
            ("Cache-Control", "no-cache"),
            ("Expires", "Thu, 01 Jan 2099 00:00:00 GMT"),
            ("Age", "30"),
            ("Age", "nonsense"),
            ("Vary", "Accept"),
            ("Content-Encoding", "gzip"),
            ("Content-Length", "4"),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("ETag", '"1"'),
        ]
    ),
    max_size=5,
)
request_fields = st.lists(
    st.sampled_from(
        [
            ("Accept", "*/*"),
            ("User-Agent", "test"),
            ("Cache-Control", "no-cache"),
            ("Cache-Control", "max-age=10"),
            ("Pragma", "no-cache"),
            ("Range", "bytes=0-1"),
            ("If-None-Match", '"1"'),
            ("If-Modified-Since", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("If-Match", '"1"'),
            ("Authorization", "Bearer x"),
            ("Content-Length", "3"),
            ("Host", "origin.test"),
            ("Host", "other.test"),
        ]
    ),
    max_size=2,
)


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


def stored_at(uri: str, fields: list[tuple[str, str]], storage: MemoryStorage) -> StoredResponse:
    storage.bodies["b"] = b"body"
    stored = StoredResponse(uri, 200, Fields(fields), (), START - 1, START, START, BodyRef("b", 4))
    storage.records[cache_key(uri, OPTIONS)] = Record((stored,))
    return stored


def hits_of(fields: list[tuple[str, str]], clock: Clock) -> tuple[Hits, StoredResponse]:
    storage = MemoryStorage()
    stored = stored_at(URI, fields, storage)
    return Hits(storage, Forgotten(), OPTIONS, clock), stored


def found(hits: Hits, request: Request) -> Hit | None:
    look = hits.look(request)
    return None if look is None else look.hit


@given(
    response_fields,
    request_fields,
    request_fields,
    st.sampled_from(["GET", "HEAD"]),
    st.floats(0, 200),
    st.lists(st.floats(-10, 90_000), min_size=1, max_size=3),
)
def test_a_short_cut_ends_where_the_rules_do(
    fields: list[tuple[str, str]],
    first: list[tuple[str, str]],
    second: list[tuple[str, str]],
    method: str,
    noted_after: float,
    asked_after: list[float],
) -> None:
    clock = Clock()
    clock.now = START + noted_after
    hits, stored = hits_of(fields, clock)
    found(hits, Request("GET", URI, Fields(first)))
    request = Request(method, URI, Fields(second))
    for seconds in asked_after:
        clock.now = START + seconds
        hit = found(hits, request)
        if hit is None:
            continue
        decision = select(request, (stored,), clock.now, OPTIONS)
        assert is_answerable(request)
        assert isinstance(decision, Reuse) and not decision.validate_later
        response, span = respond(request, stored, clock.now)
        status = ("Cache-Status", str(CacheStatus(hit=True, ttl=decision.ttl)))
        assert span == (0, hit.reader.length)
        assert hit.response.status == response.status
        assert sorted(hit.response.fields) == sorted((*response.fields, status))


def test_plain_requests_take_it() -> None:
    clock = Clock()
    hits, _ = hits_of([("Cache-Control", "max-age=60")], clock)
    assert found(hits, Request("GET", URI, Fields([("Accept", "*/*")]))) is not None


def test_a_changed_record_ends_it() -> None:
    clock = Clock()
    hits, stored = hits_of([("Cache-Control", "max-age=60")], clock)
    assert found(hits, Request("GET", URI)) is not None
    key = cache_key(URI, OPTIONS)
    hits._storage.swap(key, hits._storage.read(key), Record((replace(stored, fields=Fields([("A", "b")])),)))
    assert found(hits, Request("GET", URI)) is None
    hits._storage.swap(key, hits._storage.read(key), Record((stored,)))
    assert found(hits, Request("GET", URI)) is not None


def test_the_memo_is_bounded() -> None:
    clock = Clock()
    storage = MemoryStorage()
    hits = Hits(storage, Forgotten(), OPTIONS, clock)
    for n in range(URIS + 1):
        stored_at(f"{URI}/{n}", [("Cache-Control", "max-age=60")], storage)
        assert found(hits, Request("GET", f"{URI}/{n}")) is not None
    assert len(hits._memos) == URIS


def test_long_uris_are_not_remembered() -> None:
    storage = MemoryStorage()
    hits = Hits(storage, Forgotten(), OPTIONS, Clock())
    for length, remembered in ((LONGEST, 1), (LONGEST + 1, 1)):
        uri = f"{URI}?".ljust(length, "x")
        stored_at(uri, [("Cache-Control", "max-age=60")], storage)
        assert found(hits, Request("GET", uri)) is not None
        assert len(hits._memos) == remembered
