"""Whatever a system call answers, no method raises, answers stay right, and all is well once the cause has gone."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    body_files,
    eventually,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    patched,
    record_file,
    response,
    store,
    v1,
    write_body,
)
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import BodyDamaged, BodyUnreadable, Record
from vllm_http_cache.storage.records import names
from vllm_http_cache.storage.toolbox import sweep, trim, usage

KEY, OLD, NEW = actors.KEY, actors.OLD, actors.NEW
CODES = [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.ENOENT]


def everything(storage: FileStorage) -> None:
    """Every method once, as a cache would call them."""
    record = storage.read(KEY)
    if record is not None and record.responses[0].body is not None:
        reader = None
        with suppress(BodyDamaged):  # where nothing is found
            reader = storage.open_body(record.responses[0].body)
        if reader is not None:
            assert reader.read(0, len(NEW)) in {OLD, NEW}
            reader.close()
    claim = storage.claim(actors.FLIGHT)
    assert claim is not None
    writer = storage.create_body(KEY, None)
    if writer is not None:
        follower = writer.follow()
        kept = writer.write(NEW[:70_000])
        writer.publish(actors.FLIGHT, response(tag="new"))
        growing = storage.growing(actors.FLIGHT)
        if growing is not None:
            assert NEW.startswith(growing.read(0, 100_000))
            growing.ended()
            growing.close()
        kept = kept and writer.write(NEW[70_000:])
        with suppress(BodyUnreadable):
            assert NEW.startswith(follower.read(0, 100_000))
        follower.close()
        ref = writer.commit() if kept else None
        writer.abort()
        if ref is not None:
            assert storage.swap(KEY, storage.read(KEY), Record((response(ref, tag="new"),))) in {True, False}
    claim.release()
    storage.forget(key("nobody"))
    list(storage.scan())


def is_well(storage: FileStorage, path: Path) -> bool:
    """As good as new: everything left behind is reclaimed, everything works."""
    assert load(storage, KEY) in {OLD, NEW, None}
    assert load(storage, key(1)) == b"bystander"
    assert store(storage, key(2), b"works")
    with patched(sweeping, "GRACE", -1.0):
        sweep(storage)
    assert usage(storage).reserved == 0
    assert ledger_is_exact(storage)
    assert [*v1(path).glob("writers/*.d/*"), *v1(path).glob("growing/*")] == []
    return {file.name for file in body_files(path)} == names(stat.stored for stat in storage.scan())


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
def test_a_failure_of_any_system_call(make: Make, tmp_path: Path, code: int) -> None:
    storage = actors.quiet(make(tmp_path / "cache", max_size=10 * MIB))
    assert store(storage, key(1), b"bystander")
    nth, happened = 0, True
    while happened:
        nth += 1
        assert store(storage, KEY, OLD)
        fault = Nth(nth, fail(code))
        with intercepted(fault):
            everything(storage)
        happened = fault.happened
        place = storage._access.reading()
        assert place
        sweeping.count(place.ledger)  # as the janitor would: a ledger that is not at its path has all counted
        if nth % 10 == 0 or not happened:
            assert is_well(storage, tmp_path / "cache"), nth
    assert nth > 50


@pytest.mark.parametrize(
    "name",
    [
        *(
            "open",
            "write",
            "pwrite",
            "pwritev",
            "pread",
            "rename",
            "mkdir",
            "unlink",
            "stat",
            "fstat",
            "flock",
            "fcntl",
        ),
        "listdir",
    ],
)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.__getitem__)
def test_a_system_call_that_keeps_failing(make: Make, tmp_path: Path, name: str, code: int) -> None:
    storage = make(tmp_path / "cache", max_size=10 * MIB)
    assert store(storage, key(1), b"bystander")
    assert store(storage, KEY, OLD)
    with intercepted(Nth(1, fail(code), only=name, on=True)):
        for _ in range(3):
            everything(storage)
        storage._room.suspect(KEY)
    assert is_well(storage, tmp_path / "cache")


def test_one_warning_for_each_cause_and_interval(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = make(tmp_path / "cache")
    assert store(storage, KEY, OLD)
    now = [1000.0]
    monkeypatch.setattr(storage._troubles, "_clock", lambda: now[0])

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    def fail_with(code: int) -> None:
        with intercepted(Nth(1, fail(code), only="pwrite", on=True)):
            for number in range(20):
                assert not store(storage, key(number), b"x")

    fail_with(errno.ENOSPC)
    assert len(warnings()) == 1
    assert "No space left" in warnings()[0]
    assert str(tmp_path / "cache") in warnings()[0]
    fail_with(errno.ENOSPC)
    assert len(warnings()) == 1
    fail_with(errno.EIO)
    assert len(warnings()) == 2
    now[0] += 601
    fail_with(errno.ENOSPC)
    assert len(warnings()) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("how", ["forget", "trim", "swap", "janitor", "sweep"])
def test_where_even_a_change_needs_room_removing_does_not(make: Make, tmp_path: Path, how: str, code: int) -> None:
    """A full file system that copies on write."""
    storage = make(tmp_path / "cache", max_size=10 * MIB)
    for number in range(10):
        assert store(storage, key(number), bytes(100_000))
    two = tuple(response(write_body(storage, KEY, OLD), tag=tag) for tag in "ab")
    assert storage.swap(KEY, None, Record(two))
    assert is_quiet(storage)
    used = usage(storage).used
    seen = storage.read(KEY)
    with intercepted(Nth(1, fail(code), only="pwrite", on=True)):
        match how:
            case "forget":
                storage.forget(KEY)
            case "swap":
                assert storage.swap(KEY, seen, Record(two[1:]))
            case "trim":
                assert trim(storage, used // 2) > 300_000
            case "sweep":
                record_file(tmp_path / "cache", KEY).write_bytes(b"junk")
                with patched(sweeping, "GRACE", -1.0):
                    sweep(storage)
            case _:
                body_files(tmp_path / "cache", KEY)[0].unlink()
                storage._room.suspect(min(names(two)))
                assert is_quiet(storage)
        if how == "trim":
            assert 2 < len(list(storage.scan())) < 8
        else:
            assert storage.read(KEY) is None
            assert body_files(tmp_path / "cache", KEY) == []
    assert eventually(lambda: store(storage, key(20), b"works"))
    assert is_quiet(storage)
    assert ledger_is_exact(storage)


def test_a_body_that_failed_cannot_be_committed(storage: FileStorage, tmp_path: Path) -> None:
    writer = storage.create_body(KEY, 100)
    assert writer
    with intercepted(Nth(1, fail(errno.EIO), only="pwritev")):
        assert not writer.write(bytes(50))
    assert not writer.write(bytes(100))
    assert writer.commit() is None
    assert usage(storage).reserved == 0
    assert body_files(tmp_path / "cache") == []


def test_several_may_settle_what_is_left_over(storage: FileStorage) -> None:
    class Emptied(deque[tuple[str, int, str]]):
        """Another thread takes the last one as soon as there seems to be one."""

        def __bool__(self) -> bool:
            return True

    assert store(storage, KEY, OLD)
    place = storage._access.place
    assert place
    place.lost = Emptied([("", 0, "")])
    assert store(storage, KEY, NEW)


def test_a_threadless_process_stores_nevertheless(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    assert store(storage, KEY, OLD)
    assert store(storage, KEY, NEW)


@pytest.mark.parametrize("fsync", [True, False])
def test_a_switch_has_everything_synced_before_it_shows(make: Make, fsync: bool) -> None:
    storage = make(fsync=fsync)
    calls: list[str] = []
    with intercepted(calls.append):
        assert store(storage, KEY, NEW)
    assert calls.count("fsync") == (3 if fsync else 0)
    if fsync:
        body, record, folder = (index for index, name in enumerate(calls) if name == "fsync")
        renames = [index for index, name in enumerate(calls) if name == "rename"]
        assert body < renames[0] < record < renames[-1] < folder


def test_on_a_network_every_body_is_synced_and_no_record_is_believed_by_its_attributes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, only a sync tells that there is no room, and only opening a file asks what it is now."""
    monkeypatch.setattr("vllm_http_cache.storage.layout.is_remote", lambda name: True)
    storage, other = actors.quiet(make()), actors.quiet(make())
    calls: list[str] = []
    with intercepted(calls.append):
        assert store(storage, KEY, NEW)
    assert calls.count("fsync") == 1
    assert load(other, KEY) == NEW
    assert store(storage, KEY, OLD)
    calls.clear()
    with intercepted(calls.append):
        seen = other.read(KEY)
    assert seen
    assert calls[0] == "open"
    assert load(other, KEY) == OLD
    assert other.swap(KEY, seen, seen)
    assert not storage.swap(KEY, seen, seen)
    with intercepted(Nth(1, fail(errno.EDQUOT), only="fsync", on=True)):
        assert write_body(storage, KEY, NEW) is None
    assert is_well_enough(storage)


def test_a_body_that_cannot_be_synced_is_whole_for_nobody(make: Make) -> None:
    storage = make(fsync=True)
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(NEW)
    writer.publish(actors.FLIGHT, response())
    growing = storage.growing(actors.FLIGHT)
    assert growing
    ends: list[bool | None] = []
    with intercepted(lambda name: ends.append(growing.ended())), patched(os, "fsync", failing):
        assert writer.commit() is None
    assert growing.ended() is False
    assert True not in ends
    growing.close()


def failing(fd: int) -> None:
    raise OSError(errno.EDQUOT, "the quota")


def is_well_enough(storage: FileStorage) -> bool:
    return store(storage, KEY, NEW) and usage(storage).reserved == 0


def test_a_hit_costs_few_system_calls(storage: FileStorage) -> None:
    assert store(storage, KEY, NEW)
    assert storage.read(KEY)
    assert is_quiet(storage)
    calls: list[str] = []
    with intercepted(calls.append):
        record = storage.read(KEY)
        assert record and record.responses[0].body
        assert calls == ["stat"]
        calls.clear()
        assert storage.open_body(record.responses[0].body)
        assert calls == ["open", "pread", "close"]


def test_nothing_is_synced_or_listed_by_a_store(storage: FileStorage) -> None:
    """Nothing grows with the number of entries."""
    assert store(storage, KEY, NEW)
    assert is_quiet(storage)
    storage = actors.quiet(storage)
    calls: list[str] = []
    with intercepted(calls.append):
        assert write_body(storage, KEY, NEW)
    assert not {"listdir", "fsync"} & set(calls)
    assert len(calls) < 60


def test_closing_a_descriptor_that_complains(storage: FileStorage) -> None:
    """As network file systems do, for writes that failed late."""
    assert store(storage, key(3), bytes(3 * MIB))
    record = storage.read(key(3))
    assert record and record.responses[0].body
    reader = storage.open_body(record.responses[0].body)
    assert reader
    close: Callable[[int], None] = os.close

    def complain(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "late")

    with patched(os, "close", complain):
        reader.close()
        everything(storage)
    assert load(storage, key("nobody")) is None


@pytest.mark.parametrize("code, left", [(errno.ENOSPC, []), (errno.EIO, ['"a"', '"b"'])])
def test_only_for_want_of_room_does_what_stays_go_with_what_must(make: Make, code: int, left: list[str]) -> None:
    storage = make()
    two = tuple(response(tag=tag) for tag in "ab")
    assert storage.swap(KEY, None, Record(two))
    seen = storage.read(KEY)
    with intercepted(Nth(1, fail(code), only="write", on=True)):
        assert storage.swap(KEY, seen, Record(two[:1]))
    record = storage.read(KEY)
    assert [stored.fields.get("etag") for stored in (record.responses if record else ())] == left
