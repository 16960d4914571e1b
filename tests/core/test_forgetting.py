"""What was forgotten meanwhile: nothing that was asked for before it comes back."""

from __future__ import annotations

import pytest

from tests.core.memory import MemoryStorage, MemoryWriter
from tests.core.scripted import Origin, fetch, get, ok
from vllm_http_cache import Cache, forgetting
from vllm_http_cache.forgetting import Forgotten
from vllm_http_cache.rfc9111.message import Request
from vllm_http_cache.wire import Reply

FRESH = "max-age=60"


def test_a_moment_before_and_one_after() -> None:
    forgotten = Forgotten()
    before = forgotten.now
    assert not forgotten.since("a", before)
    forgotten.note("a")
    assert forgotten.since("a", before) and not forgotten.since("b", before)
    assert not forgotten.since("a", forgotten.now)


def test_of_what_was_forgotten_long_ago_the_worst_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "KEYS", 2)
    forgotten = Forgotten()
    moments = []
    for key in "abc":
        moments.append(forgotten.now)
        forgotten.note(key)
    assert forgotten.since("a", moments[0]) and forgotten.since("z", moments[0])
    assert not forgotten.since("z", moments[1])
    assert forgotten.since("b", moments[1]) and forgotten.since("c", moments[2])


@pytest.mark.parametrize("uri", ["http://origin.test/a", "http://user:word@origin.test/a"])
def test_what_was_asked_for_before_is_not_kept(cache: Cache, uri: str) -> None:
    origin = Origin(ok(b"old", cache_control=FRESH))

    def send(request: Request) -> Reply:
        reply = origin.send(request)
        cache.forget(uri)
        return reply

    request = get("http://origin.test/a")
    fetched = cache.fetch(request, send)
    assert b"".join(iter(fetched.body.read, b"")) == b"old"
    assert not fetched.status.stored
    origin.answer = lambda _: ok(b"new", cache_control=FRESH)
    assert fetch(cache, origin, request) == b"new"
    assert fetch(cache, origin, request) == b"new" and len(origin) == 2


def test_what_is_forgotten_while_room_is_made_for_it_is_not_kept(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what was forgotten and the first octet there is a disk."""
    create = storage.create_body

    def create_body(key: str, length: int | None) -> MemoryWriter | None:
        writer = create(key, length)
        cache.forget(get().uri)
        return writer

    origin = Origin(ok(b"old", cache_control=FRESH))
    with monkeypatch.context() as patch:
        patch.setattr(storage, "create_body", create_body)
        assert fetch(cache, origin) == b"old"
    origin.answer = lambda _: ok(b"new", cache_control=FRESH)
    assert [fetch(cache, origin) for _ in range(2)] == [b"new"] * 2
    assert (len(origin), len(cache.flights)) == (2, 0)


def test_the_answer_to_a_post_outlives_what_it_outdates(cache: Cache) -> None:
    uri = "http://origin.test/a"
    origin = Origin(ok(b"posted", cache_control=FRESH, content_location=uri))
    fetch(cache, origin, Request("POST", uri))
    assert fetch(cache, origin, get(uri)) == b"posted" and len(origin) == 1
