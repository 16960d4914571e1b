"""What operators do to a storage."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.actors import quiet
from tests.storage.conftest import Clock, Make
from tests.storage.helpers import (
    MIB,
    body_files,
    by_uri,
    flip,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    occupied,
    patched,
    record_file,
    response,
    store,
    write_body,
)
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import is_body
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import (
    by_host,
    older_than,
    purge,
    put,
    put_file,
    trim,
    usage,
    verify,
)

KEY = key("toolbox")


# What there is.


def test_usage_is_what_du_says(storage: FileStorage, tmp_path: Path) -> None:
    assert usage(storage).used == 0
    for number in range(10):
        assert store(storage, key(number), bytes(50_000))
    now = usage(storage)
    assert occupied(tmp_path / "cache") <= now.used <= occupied(tmp_path / "cache") * 1.2
    assert (now.keys, now.reserved, now.max_size) == (10, 0, 5 * 1024**3)


# Purging.


def test_purge_by_uri_host_and_age(storage: FileStorage, clock: Clock) -> None:
    uris = ["https://a.test/1", "https://a.test/2", "http://A.test:8080/1", "https://b.test/1", "nonsense:["]
    for uri in uris:
        storage.swap(key(uri), None, Record((response(uri=uri, at=clock()),)))
    storage.swap(key("old"), None, Record((response(uri="https://old.test/", at=clock() - 1000),)))
    assert purge(storage, by_uri("https://a.test/2")) == 1
    assert purge(storage, by_host("A.TEST")) == 2
    assert purge(storage, older_than(500, clock())) == 1
    assert purge(storage, older_than(500, clock())) == 0
    assert {stat.stored.uri for stat in storage.scan()} == {"https://b.test/1", "nonsense:["}


def test_purge_takes_one_response_of_several(storage: FileStorage, tmp_path: Path) -> None:
    one, two = write_body(storage, KEY, b"1"), write_body(storage, KEY, b"2")
    assert one and two
    storage.swap(KEY, None, Record((response(one, uri="https://a.test/1"), response(two, uri="https://a.test/2"))))
    assert purge(storage, by_uri("https://a.test/1")) == 1
    assert load(storage, KEY) == b"2"
    assert len(body_files(tmp_path / "cache")) == 1


def test_what_could_not_be_removed_is_not_counted(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.swap(KEY, None, Record((response(uri="https://a.test/1"),)))
    monkeypatch.setattr(FileStorage, "swap", lambda *_: True)  # as it says when the disk refuses
    assert purge(storage, by_uri("https://a.test/1")) == 0


def test_purge_takes_what_can_no_longer_answer_and_only_what_was_chosen(
    make: Make, clock: Clock, tmp_path: Path
) -> None:
    storage = quiet(make(ttl=100.0))
    times = {"old": -1000.0, "older": -2000.0, "new": 0.0, "next": 1000.0}
    uris = {name: f"https://a.test/{name}" for name in times}
    stored = []
    for name, ahead in times.items():
        ref = write_body(storage, KEY, name.encode())
        assert ref
        stored.append(response(ref, uri=uris[name], at=clock() + ahead))
    assert storage.swap(KEY, None, Record(tuple(stored)))
    assert {stat.stored.uri for stat in storage.scan()} == set(uris.values())
    for name in ("old", "next", "new", "older"):
        assert purge(storage, by_uri(uris.pop(name))) == 1
        assert {stat.stored.uri for stat in storage.scan()} == set(uris.values())
        assert len(body_files(tmp_path / "cache")) == len(uris)
    assert usage(storage).keys == 0


# Verifying.


@pytest.mark.parametrize("drop", [False, True])
def test_verify_reads_every_digest(storage: FileStorage, tmp_path: Path, drop: bool) -> None:
    for number in range(4):
        assert store(storage, key(number), os.urandom(20 * MIB if number == 0 else 10_000))
    flip(body_files(tmp_path / "cache", key(0))[0])
    flip(body_files(tmp_path / "cache", key(1))[0])
    body_files(tmp_path / "cache", key(2))[0].unlink()
    found = {each.key: each.sound for each in verify(storage, drop=drop)}
    assert found == {key(0): False, key(1): False, key(2): False, key(3): True}
    if drop:
        assert {stat.key for stat in storage.scan()} == {key(3)}


@pytest.mark.parametrize("name", ["open", "pread"])
def test_verify_drops_nothing_that_cannot_be_read(
    storage: FileStorage, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for number, size in enumerate([1000, 2 * MIB, 17 * MIB]):
        assert store(storage, key(number), bytes(size))
    call = getattr(os, name)

    def fail(what: object, *arguments: object, **options: object) -> object:
        body = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
        if is_body(body[-81:]):
            raise OSError(errno.EMFILE, "too many")
        return call(what, *arguments, **options)

    with patched(os, name, fail):
        assert list(verify(storage, drop=True)) == []
    assert is_quiet(storage)
    assert [each.sound for each in verify(storage)] == [True] * 3
    assert "reading a body failed" in caplog.text


def test_what_goes_while_it_is_verified_is_not_damaged(storage: FileStorage) -> None:
    assert store(storage, KEY, b"x")
    stats = storage.stat(KEY)
    storage.forget(KEY)
    looks = iter([stats, []])
    with patched(storage, "keys", lambda: iter([KEY])), patched(storage, "stat", lambda _: next(looks)):
        assert list(verify(storage)) == []


@pytest.mark.parametrize("drop", [False, True])
def test_verify_reads_every_record(storage: FileStorage, tmp_path: Path, clock: Clock, drop: bool) -> None:
    for number in range(3):
        assert store(storage, key(number), bytes(10_000))
    flip(record_file(tmp_path / "cache", key(0)))
    record_file(tmp_path / "cache", key(1)).unlink()
    os.mkfifo(record_file(tmp_path / "cache", key(1)))
    found = {each.key: each.stored is not None and each.sound for each in verify(storage, drop=drop)}
    assert found == {key(0): False, key(1): False, key(2): True}
    assert usage(storage).keys == (1 if drop else 3)


def test_the_bodies_of_a_damaged_record_go_with_it(
    storage: FileStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store(storage, KEY, bytes(10_000))
    flip(record_file(tmp_path / "cache", KEY))
    monkeypatch.setattr(sweeping, "GRACE", -1.0)
    assert [each.stored for each in verify(storage, drop=True)] == [None]
    assert body_files(tmp_path / "cache") == []
    assert ledger_is_exact(storage)


# Trimming.


def test_trim_frees_down_to_a_size(storage: FileStorage, tmp_path: Path) -> None:
    for number in range(20):
        assert store(storage, key(number), bytes(100_000))
    before = usage(storage).used
    assert trim(storage, before // 2) >= before // 2
    assert usage(storage).used <= before // 2
    assert trim(storage, before) == 0
    trim(storage, 0)
    assert list(storage.scan()) == []
    assert ledger_is_exact(storage)


# Putting in.


def test_a_local_file_is_put_in(storage: FileStorage, tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 5)
    (tmp_path / "image").write_bytes(data)
    assert put_file(storage, KEY, response(), tmp_path / "image")
    assert load(storage, KEY) == data
    assert (tmp_path / "image").read_bytes() == data
    with pytest.raises(FileNotFoundError):
        put_file(storage, KEY, response(), tmp_path / "nothing")
    assert not put_file(make_small(tmp_path), KEY, response(), tmp_path / "image")


def make_small(tmp_path: Path) -> FileStorage:
    return FileStorage(tmp_path / "small", max_size=MIB)


def test_put_replaces_what_answers_the_same_requests(storage: FileStorage) -> None:
    plain, gzip = response(tag="plain"), replace(response(tag="gzip"), selecting=(("accept-encoding", "gzip"),))
    assert put(storage, KEY, plain)
    assert put(storage, KEY, gzip)
    newer = replace(plain, confirmed=plain.confirmed + 1)
    assert put(storage, KEY, newer)
    assert not put(storage, KEY, plain, unless_newer=True)
    record = storage.read(KEY)
    assert record
    assert set(record.responses) == {newer, gzip}
