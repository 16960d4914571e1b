"""Exports and imports."""

from __future__ import annotations

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
    flip,
    key,
    ledger_is_exact,
    load,
    response,
    store,
    write_body,
)
from vllm_http_cache.rfc9111.message import MAX_VARIANTS, BodyRef
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.archive import export_tar, import_tar
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.records import encode
from vllm_http_cache.storage.toolbox import (
    sweep,
    usage,
    verify,
)

KEY = key("archive")


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


def test_an_import_counts_what_is_left(make: Make, tmp_path: Path, clock: Clock) -> None:
    source = make(tmp_path / "1")
    for number in range(5):
        assert store(source, key(number), os.urandom(3 * MIB))
    target = make(tmp_path / "2", max_size=8 * MIB)
    result = import_tar(target, io.BytesIO(exported(source)), clock())
    left = len(list(target.scan()))
    assert 0 < left < 5
    assert (result.stored, result.evicted, result.refused.total()) == (left, 5 - left, 0)


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
    assert [each.sound for each in verify(target) if each.key == KEY] == [True] * 4


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


def test_of_one_url_as_many_come_in_as_a_cache_keeps(make: Make, tmp_path: Path, clock: Clock) -> None:
    source, target = make(tmp_path / "1"), make(tmp_path / "2")
    ages = range(MAX_VARIANTS + 3)
    responses = tuple(
        replace(response(tag=str(age)), selecting=(("accept", str(age)),), confirmed=clock() - age) for age in ages
    )
    assert source.swap(KEY, None, Record(responses))
    result = import_tar(target, io.BytesIO(exported(source)), clock())
    assert (result.stored, result.refused) == (MAX_VARIANTS, {"too many of one URL": 3})
    record = target.read(KEY)
    assert record and {int(stored.selecting[0][1]) for stored in record.responses} == set(ages[:MAX_VARIANTS])


def test_an_archive_whose_end_is_in_its_middle_is_damaged(make: Make, tmp_path: Path, clock: Clock) -> None:
    source = make(tmp_path / "1")
    for number in range(3):
        assert store(source, key(number), b"body", tag=str(number))
    archive = bytearray(exported(source))
    assert not import_tar(make(tmp_path / "whole"), io.BytesIO(archive), clock()).complaint
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        middle = tar.getmembers()[2].offset
    archive[middle : middle + 512] = bytes(512)
    result = import_tar(make(tmp_path / "2"), io.BytesIO(archive), clock())
    assert result.stored == 1 and "damaged" in result.complaint


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
