"""as_hishel: hishel's contract for its storages, held by ours."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from math import inf
from typing import Any
from uuid import uuid4

import anyio
import pytest
from hishel import Headers, Request, Response

from tests.core.memory import MemoryStorage
from tests.storage_hishel.conftest import Clock, MakeFace
from tests.storage_hishel.faces import URL, Face
from vllm_http_cache import FileStorage
from vllm_http_cache.storage.hishel import as_hishel_async
from vllm_http_cache.storage.hishel import entries as module
from vllm_http_cache.storage.protocol import BodyDamaged, BodyUnreadable, Storage

KEY = "key"
MIB = 1024 * 1024


def bodies(face: Face, key: str = KEY) -> list[bytes]:
    return sorted(found.body.rest() for found in face.find(key))


def asking(**fields: str) -> Request:
    return Request("GET", URL, Headers({name.replace("_", "-"): value for name, value in fields.items()}))


def test_an_entry_is_found_once_its_stream_was_read_to_the_end(face: Face) -> None:
    created = face.create(KEY, [b"bo", b"dy"], {"ETag": '"a"', "Set-Cookie": ["a=1", "b=2, 3"]})
    assert (created.read(), created.read()) == (b"bo", b"dy")
    assert face.find(KEY) == []
    assert created.read() is None
    (found,) = face.find(KEY)
    assert (found.id, found.status, found.request.method, found.request.url) == (created.id, 200, "GET", URL)
    assert found.headers == Headers({"etag": '"a"', "set-cookie": ["a=1", "b=2, 3"]})
    assert found.body.rest() == b"body"


@pytest.mark.parametrize("size", [0, 1, 300_000, 3 * MIB + 5])
def test_bodies_come_back_as_they_went(face: Face, size: int) -> None:
    data = os.urandom(size)
    created = face.create(KEY, [data[at : at + 65_536] for at in range(0, size, 65_536)])
    assert created.rest() == data
    assert bodies(face) == [data]


def test_what_is_not_read_to_the_end_is_not_kept(face: Face) -> None:
    cut = face.create(KEY, [b"bo", b"dy"])
    cut.read()
    cut.close()
    failing = face.create(KEY, [b"bo", ConnectionError("gone")])
    failing.read()
    with pytest.raises(ConnectionError, match="gone"):
        failing.read()
    face.create(KEY, [b"never read"]).close()
    assert face.find(KEY) == []
    if isinstance(face.storage, MemoryStorage):
        assert face.storage.open_writers == 0
        assert face.storage.bodies == {}


@pytest.mark.parametrize("body", [b"bod", b"bodies"])
def test_what_is_not_as_long_as_it_said_is_not_kept(face: Face, body: bytes) -> None:
    assert face.create(KEY, [body], {"Content-Length": "4"}).rest() == body
    assert face.find(KEY) == []
    face.put(KEY, b"body", {"Content-Length": "4"})
    assert bodies(face) == [b"body"]


def test_the_length_in_an_answer_to_head_is_not_its_own(face: Face) -> None:
    face.put(KEY, b"", {"Content-Length": "4"}, request=Request("HEAD", URL))
    (found,) = face.find(KEY)
    assert (found.request.method, found.body.rest()) == ("HEAD", b"")


def test_entries_are_changed_and_removed_one_by_one(face: Face) -> None:
    ids = [face.put(KEY, body, {"ETag": body.decode(), "Age": "1"}) for body in (b"a", b"b", b"c")]
    face.update(ids[1], {"ETag": "new", "Vary": ["Accept", "Origin"]})
    face.remove(ids[2])
    face.remove(uuid4())
    face.update(uuid4(), {"ETag": "nothing"})
    found = {found.id: found for found in face.find(KEY)}
    assert set(found) == {ids[0], ids[1]}
    assert found[ids[0]].headers["etag"] == "a"
    assert found[ids[1]].headers == Headers({"etag": "new", "vary": ["Accept", "Origin"]})
    assert found[ids[1]].body.rest() == b"b"
    assert face.find("another") == []


def test_another_adapter_changes_the_same_entries(make_face: MakeFace, ours: Storage) -> None:
    one, other = make_face(ours), make_face(ours)
    first, second = one.put(KEY, b"first"), one.put(KEY, b"second")
    other.update(first, {"ETag": "new"})
    other.remove(second)
    assert [found.headers.get("etag") for found in one.find(KEY)] == ["new"]


def test_an_entry_can_be_changed_and_removed_while_it_arrives(face: Face) -> None:
    kept, gone = face.create(KEY, [b"kept"]), face.create(KEY, [b"gone"])
    kept.read()
    gone.read()
    face.update(kept.id, {"ETag": "new"})
    face.remove(gone.id)
    assert (kept.rest(), gone.rest()) == (b"", b"")
    (found,) = face.find(KEY)
    assert (found.id, found.headers["etag"]) == (kept.id, "new")


def test_keys_that_share_a_record_do_not_share_entries(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_digest", lambda key: bytes(8) + sha256(key.encode()).digest()[8:])
    ids = {key: face.put(key, key.encode()) for key in ("a", "b")}
    assert (bodies(face, "a"), bodies(face, "b")) == ([b"a"], [b"b"])
    face.remove(ids["a"])
    assert (bodies(face, "a"), bodies(face, "b")) == ([], [b"b"])


@pytest.mark.parametrize("text", ["plain", "caf\u00e9", "\u96ea", "\ud800"])
def test_any_text_survives(face: Face, text: str) -> None:
    face.put(text, b"body", {"X-Text": text, "Vary": "User-Agent"}, request=asking(user_agent=text))
    (found,) = face.find(text)
    assert (found.headers["x-text"], found.request.headers["user-agent"]) == (text, text)


# What is kept of a request.


def test_only_what_vary_names_is_kept_of_a_request(face: Face) -> None:
    asked = asking(accept="image/png", authorization="Bearer secret", x_trace="secret", origin="http://a.test")
    face.put(KEY, b"body", {"Vary": "Accept, Accept-Language"}, request=asked)
    (found,) = face.find(KEY)
    assert found.request.headers == Headers({"accept": "image/png"})


def test_what_may_be_a_credential_matches_nothing(face: Face) -> None:
    headers = {"Vary": "Authorization, Cookie"}
    face.put(KEY, b"body", headers, request=asking(authorization="Bearer secret"))
    (found,) = face.find(KEY)
    assert "secret" not in str(found.request.headers)
    assert found.request.headers.get("authorization") is not None
    assert found.request.headers.get("cookie") is None, "the request had none, and this may be told"


def test_a_field_that_vary_names_only_later_matches_nothing(face: Face) -> None:
    id_ = face.put(KEY, b"body", {"Vary": "Accept"}, request=asking(accept="image/png", origin="http://a.test"))
    face.update(id_, {"Vary": "Accept, Origin"})
    (found,) = face.find(KEY)
    assert found.request.headers["accept"] == "image/png"
    assert found.request.headers["origin"] not in ("http://a.test", None)


def test_urls_with_a_password_are_not_kept(face: Face) -> None:
    face.put(KEY, b"body", request=Request("GET", "http://user:password@origin.test/"))
    assert face.find(KEY) == []
    face.put(KEY, b"body", request=Request("GET", "http://origin.test/@a"))
    assert len(face.find(KEY)) == 1


# Limits.


def test_a_ttl_counts_from_the_creation(make_face: MakeFace, ours: Storage, clock: Clock) -> None:
    face = make_face(ours, default_ttl=100.0)
    by_default = face.put(KEY, b"100")
    longer = face.put(KEY, b"200", ttl=200.0)
    clock.ahead = 99
    face.update(by_default, {"ETag": "new"})
    assert len(face.find(KEY)) == 2
    clock.ahead = 101
    assert [found.id for found in face.find(KEY)] == [longer]
    clock.ahead = 201
    assert face.find(KEY) == []
    assert [stat.key for stat in ours.scan()] == [], "what expired is gone"


def test_a_tti_counts_from_the_last_return(make_face: MakeFace, ours: Storage, clock: Clock) -> None:
    face = make_face(ours, default_tti=100.0)
    face.put(KEY, b"body", ttl=220.0)
    for clock.ahead in (60, 120, 180):
        assert bodies(face) == [b"body"]
    clock.ahead = 221
    assert face.find(KEY) == [], "the ttl holds besides"
    face.put(KEY, b"body", ttl=inf)
    clock.ahead = 322
    assert face.find(KEY) == []


def test_looking_often_does_not_write_often(make_face: MakeFace, clock: Clock) -> None:
    storage = MemoryStorage()
    face = make_face(storage, default_tti=100.0)
    face.put(KEY)
    (before,) = storage.records.values()
    for clock.ahead in range(0, 50, 5):
        assert len(face.find(KEY)) == 1
    (after,) = storage.records.values()
    assert after is before


def test_the_storages_own_ttl_holds_and_a_validation_renews_it(
    make_face: MakeFace, tmp_path: object, clock: Clock
) -> None:
    face = make_face(FileStorage(str(tmp_path), ttl=100.0, clock=clock))
    renewed, _ = face.put(KEY, b"renewed"), face.put(KEY, b"old")
    clock.ahead = 90
    face.update(renewed, {"ETag": "a"})
    clock.ahead = 110
    assert bodies(face) == [b"renewed"]


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "11"}])
def test_what_is_larger_than_a_stream_may_be_is_given_and_not_kept(
    make_face: MakeFace, ours: Storage, headers: dict[str, str]
) -> None:
    face = make_face(ours, max_stream_size=10)
    assert face.create(KEY, [b"12345", b"678901"], headers).rest() == b"12345678901"
    assert face.find(KEY) == []
    face.put(KEY, b"1234567890")
    assert bodies(face) == [b"1234567890"]


def test_of_one_key_the_newest_sixteen_are_kept(face: Face) -> None:
    ids = [face.put(KEY, b"%d" % number) for number in range(20)]
    assert [found.id for found in face.find(KEY)] == ids[:3:-1]


def test_what_finds_no_room_is_given_and_not_kept(make_face: MakeFace) -> None:
    storage = MemoryStorage()
    storage.room = 6
    face = make_face(storage)
    assert face.create(KEY, [b"1234", b"5678"]).rest() == b"12345678"
    assert face.create(KEY, [b"1234", b"5678"], {"Content-Length": "8"}).rest() == b"12345678"
    assert face.find(KEY) == []


def test_memory_does_not_grow_with_the_body(make_face: MakeFace, tmp_path: object) -> None:
    face = make_face(FileStorage(str(tmp_path)))
    size = 48 * MIB

    def chunks() -> Iterator[bytes]:
        for _ in range(size // 65_536):
            yield bytes(65_536)

    tracemalloc.start()
    try:
        created = face.create(KEY, chunks())
        assert sum(map(len, iter(created.read, None))) == size
        (found,) = face.find(KEY)
        assert sum(map(len, iter(found.body.read, None))) == size
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


# Damage and failure.


def test_a_body_that_is_gone_is_a_miss(make_face: MakeFace) -> None:
    storage = MemoryStorage()
    face = make_face(storage)
    face.put(KEY)
    storage.bodies.clear()
    assert face.find(KEY) == []
    assert storage.records == {}


def test_a_body_that_turns_out_to_be_damaged_raises_and_is_a_miss_then(make_face: MakeFace) -> None:
    storage = MemoryStorage()
    face = make_face(storage)
    face.put(KEY, bytes(2 * MIB))
    (found,) = face.find(KEY)
    storage.damaged_from = MIB
    with pytest.raises(BodyDamaged):
        found.body.rest()
    assert face.find(KEY) == []


def test_a_body_that_cannot_be_read_now_is_a_miss_and_stays(make_face: MakeFace) -> None:
    storage = MemoryStorage()
    face = make_face(storage)
    face.put(KEY, bytes(2 * MIB))
    storage.unreadable = True
    assert face.find(KEY) == []
    storage.unreadable = False
    (found,) = face.find(KEY)
    storage.damaged_from, storage.whole = MIB, True
    with pytest.raises(BodyUnreadable):
        found.body.rest()
    storage.damaged_from = None
    (found,) = face.find(KEY)
    assert found.body.rest() == bytes(2 * MIB)


def test_a_stream_outlives_its_entry(face: Face) -> None:
    data = os.urandom(3 * MIB)
    id_ = face.put(KEY, data)
    (found,) = face.find(KEY)
    first = found.body.read()
    assert first
    face.remove(id_)
    assert face.find(KEY) == []
    assert first + found.body.rest() == data


class Failing:
    """A storage whose methods raise."""

    ttl = inf

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise OSError(f"{name} failed")

        return fail

    def close(self) -> None: ...


class FailingWriter:
    """A body that can be begun and nothing else."""

    def write(self, *pieces: bytes) -> bool:
        raise OSError("no")

    def abort(self) -> None:
        raise OSError("no")


@pytest.mark.parametrize("begins", [False, True])
def test_a_failing_storage_harms_nobody(make_face: MakeFace, caplog: pytest.LogCaptureFixture, begins: bool) -> None:
    storage: Any = Failing()
    if begins:
        storage.create_body = lambda *_: FailingWriter()
    face = make_face(storage)
    assert face.create(KEY, [b"bo", b"dy"]).rest() == b"body"
    assert face.find(KEY) == []
    face.update(uuid4(), {"ETag": "a"})
    face.remove(uuid4())
    assert len(caplog.records) == 1
    assert caplog.records[0].name == "vllm_http_cache.storage"


def test_a_record_that_others_change_too_loses_nothing(make_face: MakeFace, ours: Storage) -> None:
    face = make_face(ours)
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda number: face.put(KEY, b"%d" % number), range(16)))
    assert {found.id for found in face.find(KEY)} == ids


def test_closing_a_client_closes_the_storage(make_face: MakeFace, tmp_path: object) -> None:
    storage = FileStorage(str(tmp_path))
    face = make_face(storage)
    face.put(KEY)
    face.close()
    assert storage.read("0" * 64) is None
    assert list(storage.scan()) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_reader_leaves_nothing(backend: str) -> None:
    storage = MemoryStorage()
    hishel = as_hishel_async(storage)

    async def run() -> None:
        began = anyio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            began.set()
            await anyio.sleep_forever()

        async def read() -> None:
            entry = await hishel.create_entry(Request("GET", URL), Response(200, stream=chunks()), KEY)
            stream: Any = entry.response.stream
            assert [chunk async for chunk in stream]

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await began.wait()
            assert storage.open_writers == 1
            group.cancel_scope.cancel()
        assert await hishel.get_entries(KEY) == []

    anyio.run(run, backend=backend)
    assert storage.open_writers == 0
    assert storage.bodies == {}
