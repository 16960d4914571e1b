"""What operators do to a storage."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.actors import quiet
from tests.storage.conftest import Clock, Make
from tests.storage.helpers import (
    MIB,
    body_files,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    occupied,
    patched,
    response,
    store,
    write_body,
)
from vllm_http_cache.rfc9111.message import BodyRef
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.archive import export_tar, import_tar
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import is_body
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.records import encode
from vllm_http_cache.storage.toolbox import (
    by_host,
    by_uri,
    older_than,
    purge,
    put,
    put_file,
    sweep,
    trim,
    usage,
    verify,
)

KEY = key("toolbox")


def flip(file: Path) -> None:
    """One bit, and nobody notices by size or time."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    file.chmod(0o400)


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


# Verifying.


@pytest.mark.parametrize("drop", [False, True])
def test_verify_reads_every_digest(storage: FileStorage, tmp_path: Path, drop: bool) -> None:
    for number in range(4):
        assert store(storage, key(number), os.urandom(20 * MIB if number == 0 else 10_000))
    flip(body_files(tmp_path / "cache", key(0))[0])
    flip(body_files(tmp_path / "cache", key(1))[0])
    body_files(tmp_path / "cache", key(2))[0].unlink()
    found = {stat.key: sound for stat, sound in verify(storage, drop=drop)}
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
    assert [sound for _, sound in verify(storage)] == [True] * 3
    assert "reading a body failed" in caplog.text


def test_what_goes_while_it_is_verified_is_not_damaged(storage: FileStorage) -> None:
    assert store(storage, KEY, b"x")
    stats = list(storage.scan())
    storage.forget(KEY)
    with patched(storage, "scan", lambda: iter(stats)):
        assert list(verify(storage)) == []


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


# Archives.


def filled(make: Make, path: Path) -> FileStorage:
    storage = make(path)
    for number, size in enumerate([0, 1, 100_000, 3 * MIB + 7]):
        assert store(storage, key(number), os.urandom(size), tag=str(number))
    storage.swap(key("head"), None, Record((response(tag="head"),)))
    return storage


def exported(storage: FileStorage) -> bytes:
    file = io.BytesIO()
    export_tar(storage, file)
    return file.getvalue()


def test_an_archive_takes_everything_along(make: Make, tmp_path: Path, clock: Clock) -> None:
    source, target = filled(make, tmp_path / "1"), make(tmp_path / "2")
    archive = exported(source)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert len(tar.getnames()) == 9, "any tar reads it"
    result = import_tar(target, io.BytesIO(archive), clock())
    assert (result.stored, result.refused.total(), result.complaint) == (5, 0, "")
    for number in range(4):
        assert load(target, key(number)) == load(source, key(number))
    assert target.read(key("head"))
    assert ledger_is_exact(target)


def test_what_is_there_already_takes_no_room_for_a_moment(make: Make, tmp_path: Path, clock: Clock) -> None:
    source = filled(make, tmp_path / "1")
    archive = exported(source)
    target = make(tmp_path / "2", max_size=5 * MIB)
    assert import_tar(target, io.BytesIO(archive), clock()).stored == 5
    used, bodies = usage(target).used, body_files(tmp_path / "2")
    again = import_tar(target, io.BytesIO(archive), clock())
    assert (again.stored, again.refused) == (0, {"already there": 5})
    assert (usage(target).used, body_files(tmp_path / "2")) == (used, bodies)


def test_an_import_says_why_it_refuses(make: Make, tmp_path: Path, clock: Clock) -> None:
    source = filled(make, tmp_path / "1")
    archive = exported(source)
    small = import_tar(make(tmp_path / "2", max_entry_size=MIB), io.BytesIO(archive), clock())
    assert (small.stored, small.refused) == (4, {"no room": 1})
    position = archive.index(body_files(tmp_path / "1", key(2))[0].read_bytes()[:64])
    harmed = bytearray(archive)
    harmed[position] ^= 1
    result = import_tar(make(tmp_path / "3"), io.BytesIO(harmed), clock())
    assert (result.stored, result.refused) == (4, {"damaged": 1})
    clock.ahead = 86_401
    late = import_tar(make(tmp_path / "4"), io.BytesIO(archive), clock())
    assert (late.stored, late.refused) == (0, {"expired": 5})


def test_an_export_is_not_a_use(make: Make, tmp_path: Path, clock: Clock) -> None:
    storage = filled(make, tmp_path / "1")
    used = {stat.key: stat.used for stat in storage.scan()}
    clock.ahead = 100
    exported(storage)
    assert {stat.key: stat.used for stat in storage.scan()} == used


class Pipe(io.RawIOBase):
    """Gives a few octets at a time and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 1000) if size > 0 else size)


def test_an_archive_comes_through_a_pipe(make: Make, tmp_path: Path, clock: Clock) -> None:
    archive = exported(filled(make, tmp_path / "1"))
    assert import_tar(make(tmp_path / "2"), Pipe(archive), clock()).stored == 5


def test_an_archive_that_comes_slowly_is_stored_as_it_comes(
    make: Make, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sweeps between any two of its octets, after more than the time that bodies wait for a record."""
    source = make(tmp_path / "1")
    bodies = [response(write_body(source, KEY, tag.encode() * 2000), tag=tag) for tag in "abc"]
    variants = [replace(stored, selecting=(("accept", stored.uri),)) for stored in (*bodies, response(tag="none"))]
    assert source.swap(KEY, None, Record(tuple(variants)))
    archive = exported(source)
    target, other = make(tmp_path / "2"), quiet(make(tmp_path / "2"))
    monkeypatch.setattr(sweeping, "GRACE", -1.0)

    class Slow(Pipe):
        def read(self, size: int = -1) -> bytes:
            sweep(other)
            return super().read(size)

    assert store(target, key("another"), b"x")
    assert import_tar(target, Slow(archive), clock()).stored == 4
    assert [sound for stat, sound in verify(target) if stat.key == KEY] == [True] * 4


def test_only_what_is_sound_goes_out(make: Make, tmp_path: Path, clock: Clock) -> None:
    source = filled(make, tmp_path / "1")
    flip(body_files(tmp_path / "1", key(2))[0])
    flip(body_files(tmp_path / "1", key(3))[0])
    file = io.BytesIO()
    assert export_tar(source, file) == 3
    assert import_tar(make(tmp_path / "2"), io.BytesIO(file.getvalue()), clock()).stored == 3


def test_what_has_expired_does_not_come_in(make: Make, tmp_path: Path, clock: Clock) -> None:
    archive = exported(filled(make, tmp_path / "1"))
    clock.ahead = 86_401
    target = make(tmp_path / "2")
    assert import_tar(target, io.BytesIO(archive), clock()).stored == 0
    assert list(target.scan()) == []
    clock.ahead = -86_401
    assert import_tar(target, io.BytesIO(archive), clock()).stored == 0, "from the future"
    assert body_files(tmp_path / "2") == []


def test_what_is_newer_stays(make: Make, tmp_path: Path, clock: Clock) -> None:
    archive = exported(filled(make, tmp_path / "1"))
    target = make(tmp_path / "2")
    assert store(target, key(1), b"newer", at=clock() + 1)
    assert import_tar(target, io.BytesIO(archive), clock()).refused["already there"] == 1
    assert load(target, key(1)) == b"newer"


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE, size: int | None = None) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data) if size is None else size
    info.type = kind
    info.linkname = "/etc/passwd"
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


GOOD = response(BodyRef(f"{KEY}.{'0' * 16}", 5, bytes(8)))


@pytest.mark.parametrize(
    "archive",
    [
        b"",
        b"junk" * 1000,
        bytes(10_240),
        member("../../etc/passwd", b"x"),
        member(f"{KEY}/../../x", b"x"),
        member(f"/{KEY}/record", encode(KEY, [response()])),
        member(f"{KEY}/record", b"junk"),
        member(f"{key(2)}/record", encode(KEY, [response()])),
        member(f"{KEY}/record", b"", tarfile.SYMTYPE),
        member(f"{KEY}/record", b"", tarfile.DIRTYPE),
        member(f"{KEY}/record", b"x", tarfile.XHDTYPE, size=8**11 - 1),
        member(f"{KEY}/record", b"x", tarfile.GNUTYPE_LONGNAME, size=8**11 - 1),
        member(f"{KEY}/record", b"x" * 512, size=8**11 - 1),
        member(f"{KEY}/record", encode(KEY, [GOOD])),
        member(f"{KEY}/record", encode(KEY, [GOOD])) + member(f"{KEY}/{KEY}.{'0' * 16}", b"wrong"),
        member(f"{KEY}/record", encode(KEY, [GOOD])) + member(f"{KEY}/{KEY}.{'0' * 16}", b"x", size=5),
        member(f"{KEY}/record", encode(KEY, [GOOD])) + member(f"{key(2)}/{KEY}.{'0' * 16}", b"12345"),
        member(f"{KEY}/{KEY}.{'0' * 16}", b"12345"),
        member(f"{KEY}/record", encode(KEY, [replace(GOOD, body=BodyRef(f"{KEY}.{'0' * 16}", 2**60, bytes(8)))])),
    ],
    ids=range(19),
)
def test_an_import_trusts_nothing(make: Make, tmp_path: Path, clock: Clock, archive: bytes) -> None:
    storage = make()
    assert store(storage, key("bystander"), b"x")
    assert import_tar(storage, io.BytesIO(archive), clock()).stored == 0
    assert {stat.key for stat in storage.scan()} == {key("bystander")}
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]
    sweep(storage)
    assert usage(storage).reserved == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_archive_gives_what_was_exported_or_nothing(
    make: Make, tmp_path: Path, clock: Clock, data: st.DataObject
) -> None:
    source, target = make(tmp_path / "1"), make(tmp_path / "2")
    bodies = {key(number): bytes([number]) * 700 for number in range(3)}
    for name, body in bodies.items():
        assert store(source, name, body)
        target.forget(name)
    archive = bytearray(exported(source))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(archive) - 1))
        archive[position] = data.draw(st.integers(0, 255))
    import_tar(target, io.BytesIO(archive[: data.draw(st.integers(0, len(archive)))]), clock())
    for name, body in bodies.items():
        assert load(target, name) in {body, None}


def test_an_import_leaves_nothing_of_what_it_refuses(
    make: Make, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = bytearray(exported(filled(make, tmp_path / "1")))
    monkeypatch.setattr(sweeping, "GRACE", -1.0)
    target = quiet(make(tmp_path / "2"))
    import_tar(target, io.BytesIO(archive[:-200_000]), clock())
    sweep(target)
    named = {stat.stored.body.name for stat in target.scan() if stat.stored.body}
    assert {file.name for file in body_files(tmp_path / "2")} == named
