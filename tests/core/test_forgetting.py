"""What was forgotten: nothing that was asked for before it comes back, and nothing that cannot be removed answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.core.memory import MemoryStorage, MemoryWriter
from tests.core.scripted import Clock, Origin, fetch, get, ok
from vllm_http_cache import Cache, CacheOptions, forgetting
from vllm_http_cache.forgetting import Forgotten
from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request, StoredResponse
from vllm_http_cache.rfc9111.target import cache_key
from vllm_http_cache.storage.protocol import Record, Stat
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


def test_what_was_dropped_takes_a_place_but_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "KEYS", 1)
    forgotten = Forgotten()
    before = forgotten.now
    forgotten.note("a")
    for key in "bca":
        forgotten.drop(key, BodyRef("body", 1))
        assert forgotten.since("a", before) and forgotten.since("z", before)


def test_every_key_may_be_forgotten_at_once() -> None:
    forgotten = Forgotten()
    forgotten.note("a")
    before = forgotten.now
    forgotten.note(None)
    after = forgotten.now
    assert forgotten.since("a", before) and forgotten.since("b", before)
    assert not forgotten.since("a", after) and not forgotten.since("b", after)
    forgotten.note("a")
    assert forgotten.since("a", after) and not forgotten.since("b", after)


@pytest.mark.parametrize("uri", ["http://origin.test/a", "http://user:word@origin.test/a", None])
def test_what_was_asked_for_before_is_not_kept(cache: Cache, uri: str | None) -> None:
    origin = Origin(ok(b"old", cache_control=FRESH))

    def send(request: Request) -> Reply:
        reply = origin.send(request)
        cache.clear() if uri is None else cache.forget(uri)
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


def test_what_arrives_while_all_is_dropped_is_not_kept(cache: Cache) -> None:
    origin = Origin((200, {"Cache-Control": FRESH}, [b"o", b"ld"]))
    fetched = cache.fetch(get(), origin.send)
    assert fetched.body.read() == b"o"
    cache.clear()
    assert b"".join(iter(fetched.body.read, b"")) == b"ld"
    assert list(cache.scan()) == []


def test_of_a_shared_storage_only_what_is_ones_own_is_listed_and_dropped(cache: Cache, storage: MemoryStorage) -> None:
    """Nor is what somebody else put there, under keys of their own and URIs that are none."""
    private = Cache(storage, CacheOptions(shared=False))
    uris = {cache: "http://origin.test/a", private: "http://origin.test/b"}
    for each, uri in uris.items():
        fetch(each, Origin(ok(cache_control=FRESH)), get(uri))
    (record,) = (record for record in storage.records.values() if record.responses[0].uri == uris[cache])
    storage.records |= {"0" * 64: record, "1" * 64: Record((replace(record.responses[0], uri="none"),))}
    for each, uri in uris.items():
        assert [stat.stored.uri for stat in each.scan()] == [uri]
        each.clear()
        assert list(each.scan()) == []
    assert set(storage.records) == {"0" * 64, "1" * 64}


def test_a_storage_that_cannot_list_cannot_be_cleared(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan() -> Iterator[Stat]:
        raise NotImplementedError("no list")

    monkeypatch.setattr(storage, "scan", scan)
    for call in (cache.scan, cache.clear):
        with pytest.raises(NotImplementedError, match="no list"):
            call()


def test_the_answer_to_a_post_outlives_what_it_outdates(cache: Cache) -> None:
    uri = "http://origin.test/a"
    origin = Origin(ok(b"posted", cache_control=FRESH, content_location=uri))
    fetch(cache, origin, Request("POST", uri))
    assert fetch(cache, origin, get(uri)) == b"posted" and len(origin) == 1


# What is to be gone and cannot be removed.

ASKED = [get(), get(cache_control="max-age=50")]  # by the memo of hits, and by the rules


@pytest.fixture
def stuck(cache: Cache, storage: MemoryStorage, clock: Clock) -> Iterator[Origin]:
    """An origin whose first answer is stored, and stays whatever is done; it has a new one."""
    origin = Origin(ok(b"old", cache_control=FRESH, etag='"1"'))
    assert [fetch(cache, origin) for _ in range(2)] == [b"old"] * 2 and len(origin) == 1
    clock.now += 1
    storage.stuck = True
    origin.answer = lambda _: ok(b"new", cache_control=FRESH, etag='"2"')
    yield origin
    for request in ASKED:
        assert fetch(cache, origin, request) == b"new"
    storage.stuck = False
    assert [fetch(cache, origin) for _ in range(2)] == [b"new"] * 2
    (stored,) = storage.records[cache_key(get().uri, cache.options)].responses
    assert stored.fields.get("etag") == '"2"'


def test_what_was_forgotten_does_not_answer(cache: Cache, stuck: Origin) -> None:
    cache.forget(get().uri)


def test_what_was_cleared_does_not_answer(cache: Cache, stuck: Origin) -> None:
    cache.clear()


def test_what_an_unsafe_request_has_outdated_does_not_answer(cache: Cache, stuck: Origin) -> None:
    fetch(cache, stuck, Request("POST", get().uri))


@pytest.mark.parametrize("request_", ASKED, ids=["a hit", "by the rules"])
def test_what_its_consumer_has_refused_does_not_answer(cache: Cache, stuck: Origin, request_: Request) -> None:
    fetched = cache.fetch(request_, stuck.send)
    fetched.body.close()
    fetched.refuse()


def test_what_the_origin_has_replaced_does_not_answer_though_there_was_no_room_for_the_new(
    cache: Cache, stuck: Origin
) -> None:
    assert fetch(cache, stuck, get(cache_control="no-cache")) == b"new"


def test_what_the_origin_has_said_may_not_be_stored_any_more_does_not_answer(cache: Cache, stuck: Origin) -> None:
    stuck.answer, new = (lambda _: (304, {"ETag": '"1"', "Cache-Control": "no-store"}, [])), stuck.answer
    assert fetch(cache, stuck, get(cache_control="no-cache")) == b"old"
    stuck.answer = new


def test_what_is_damaged_is_asked_for_once(cache: Cache, storage: MemoryStorage, stuck: Origin) -> None:
    storage.bodies.clear()
    asked = len(stuck)
    assert fetch(cache, stuck) == b"new" and len(stuck) == asked + 1


def test_what_was_forgotten_goes_with_the_next_change(cache: Cache, storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin(lambda request: ok(b"body", cache_control=FRESH, vary="Accept"))
    fetch(cache, origin, get(accept="image/png"))
    clock.now += 1
    storage.stuck = True
    cache.forget(get().uri)
    storage.stuck = False
    fetch(cache, origin, get(accept="image/webp"))
    (record,) = storage.records.values()
    assert [stored.selecting for stored in record.responses] == [(("accept", "image/webp;q=1"),)]


def test_what_is_stored_after_it_was_forgotten_answers_whatever_its_clock_says(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control=FRESH))
    fetch(cache, origin)
    for all_ in (False, True):
        cache.clear() if all_ else cache.forget(get().uri)
        clock.now -= 30
        asked = len(origin)
        assert [fetch(cache, origin) for _ in range(2)] == [b"old"] * 2 and len(origin) == asked + 1


def test_what_somebody_stores_while_it_is_forgotten_answers(
    cache: Cache, storage: MemoryStorage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, other = Origin(ok(b"old", cache_control=FRESH)), Cache(storage, clock=clock)
    fetch(cache, origin)
    origin.answer = lambda _: ok(b"new", cache_control=FRESH)
    forget = storage.forget
    monkeypatch.setattr(storage, "forget", lambda key: (forget(key), fetch(other, origin)))
    cache.forget(get().uri)
    assert fetch(cache, origin) == b"new" and len(origin) == 2


def test_what_does_not_answer_is_not_listed(cache: Cache, stuck: Origin) -> None:
    assert [stat.stored.status for stat in cache.scan()] == [200]
    cache.forget(get().uri)
    assert list(cache.scan()) == []


def test_who_looks_while_more_is_dropped_finds_nothing_of_it() -> None:
    forgotten = Forgotten()
    one = StoredResponse("http://origin.test/a", 200, Fields(), (), 0.0, 0.0, 0.0)
    other = replace(one, status=404)
    found: list[Record | None] = []

    class Looking(OrderedDict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            found.append(forgotten.remaining("a", Record((one,))))
            super().__setitem__(key, value)

        def move_to_end(self, key: str, last: bool = True) -> None:
            found.append(forgotten.remaining("a", Record((one,))))
            super().move_to_end(key, last)

    forgotten.drop("a", one)
    forgotten._gone = Looking(forgotten._gone)
    found.clear()
    for _ in range(2):
        forgotten.drop("a", other)
        forgotten.note("a")
        forgotten.note(None)
    assert found and set(found) == {None}


def test_what_came_after_it_was_forgotten_does(cache: Cache, storage: MemoryStorage, clock: Clock) -> None:
    """From another process, which could store it."""
    origin, other = Origin(ok(b"new", cache_control=FRESH)), Cache(storage, clock=clock)
    cache.forget(get().uri)
    assert fetch(other, origin) == b"new"
    assert fetch(cache, origin) == b"new" and len(origin) == 1


def test_a_forked_child_knows_too(cache: Cache, stuck: Origin) -> None:
    cache.forget(get().uri)
    cache._forked()


def test_only_so_much_is_remembered_of_what_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "MAX_VARIANTS", 2)
    forgotten = Forgotten()
    one, two, three = (
        StoredResponse("http://origin.test/a", 200, Fields(), (), 0.0, 0.0, 0.0, BodyRef(name, 1)) for name in "123"
    )
    for stored in (one, two, three):
        forgotten.drop("a", stored)
    assert forgotten.remaining("a", Record((one, two, three))) == Record((one,))
    assert forgotten.remaining("a", Record((two, three))) is None
    untouched = Record((one,))
    assert forgotten.remaining("a", untouched) is untouched is forgotten.remaining("b", untouched)
