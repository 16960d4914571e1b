"""Rules of bodies: whole or not at all, checked before an octet is given out, growing in sight of others."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    body_files,
    key,
    patched,
    read_body,
    response,
    store,
    v1,
    write_body,
)
from vllm_http_cache.storage import devices
from vllm_http_cache.storage.devices import write_all
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import BodyDamaged, Record

KEY = key("bodies")
FLIGHT = key("flight")


# Writing.


@pytest.mark.parametrize("written", [b"", b"12345", b"1234567"])
def test_a_body_that_is_not_as_long_as_announced_is_not_kept(
    storage: FileStorage, tmp_path: Path, written: bytes
) -> None:
    writer = storage.create_body(KEY, 6)
    assert writer
    assert writer.write(written) is (len(written) <= 6)
    assert writer.commit() is None
    assert body_files(tmp_path / "cache") == []
    assert list(v1(tmp_path / "cache").glob("writers/*.d/*")) == []


def test_what_is_written_after_the_end_goes_nowhere(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    ref = writer.commit()
    assert ref
    assert not writer.write(b"def")
    assert writer.commit() is None
    writer.abort()
    assert read_body(storage, ref) == b"abc"


def test_a_committed_body_is_read_only(storage: FileStorage, tmp_path: Path) -> None:
    assert write_body(storage, KEY, b"abc")
    (file,) = body_files(tmp_path / "cache")
    assert file.stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("pieces", [[1], [7, MIB - 8, 3], [MIB], [MIB + 1, MIB - 1], [3 * MIB + 5], [65536] * 33])
def test_digests_do_not_depend_on_how_it_was_written(storage: FileStorage, pieces: list[int]) -> None:
    data = os.urandom(sum(pieces))
    writer = storage.create_body(KEY, len(data))
    assert writer
    offset = 0
    for piece in pieces:
        assert writer.write(data[offset : offset + piece])
        offset += piece
    ref = writer.commit()
    whole = write_body(storage, KEY, data)
    assert ref and whole
    assert ref.digests == whole.digests
    assert read_body(storage, ref) == data


@given(st.lists(st.binary(max_size=9), max_size=12), st.lists(st.integers(1, 20)))
def test_a_short_write_goes_on_where_it_stopped(pieces: list[bytes], taken: list[int]) -> None:
    pwritev, sizes = os.pwritev, iter(taken)

    def short(fd: int, data: Sequence[memoryview], offset: int) -> int:
        return pwritev(fd, [b"".join(data)[: next(sizes, None)]], offset)

    with TemporaryFile() as file, patched(os, "pwritev", short):
        write_all(file.fileno(), pieces, 3)
        assert file.read() == (bytes(3) + b"".join(pieces) if any(pieces) else b"")


def test_more_pieces_than_the_system_takes_at_once(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, None)
    pieces = [bytes([number % 256]) for number in range(3000)]
    assert writer and writer.write(*pieces)
    ref = writer.commit()
    assert ref and read_body(storage, ref) == b"".join(pieces)


def test_a_body_whose_record_was_not_put_in_its_place_is_there_for_the_next_try(storage: FileStorage) -> None:
    """Even where not all of the record would have fitted in."""
    large = [replace(response(tag="large"), selecting=(("a", "b" * MIB),))]
    ref = write_body(storage, KEY, b"body")
    assert ref
    seen = storage.read(KEY)
    assert storage.swap(KEY, seen, Record((response(tag="rival"),)))
    mine = response(ref, tag="mine")
    assert not storage.swap(KEY, seen, Record((mine, *large)))
    seen = storage.read(KEY)
    assert storage.swap(KEY, seen, Record((mine,)))
    assert read_body(storage, ref) == b"body"


# Following in the same process.


def test_a_follower_reads_what_has_been_written_so_far(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    follower = writer.follow()
    assert follower.length == 0
    assert follower.read(0, 10) == b""
    assert writer.write(b"hello ")
    assert (follower.length, follower.read(0, 100)) == (6, b"hello ")
    assert writer.write(b"world")
    assert follower.read(6, 100) == b"world"
    assert follower.read(3, 4) == b"lo w"
    assert writer.commit()
    assert follower.read(0, 100) == b"hello world", "also after the end"
    storage.close()
    assert follower.read(0, 100) == b"hello world"
    follower.close()


def test_a_follower_outlives_an_abort(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    follower = writer.follow()
    writer.abort()
    assert follower.read(0, 10) == b"abc"
    follower.close()


def test_a_growing_body_that_was_cut_is_damaged(storage: FileStorage, tmp_path: Path) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    follower = writer.follow()
    (file,) = v1(tmp_path / "cache").glob("writers/*.d/*")
    os.truncate(file, 0)
    with pytest.raises(BodyDamaged):
        follower.read(0, 10)
    follower.close()
    writer.abort()


def test_a_follower_needs_no_descriptor_of_its_own(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    with intercepted(Nth(1, fail(errno.EMFILE), on=True)):
        follower = writer.follow()
    writer.abort()
    assert follower.read(0, 10) == b"abc"
    follower.close()
    with pytest.raises(ValueError, match="closed"):
        follower.read(0, 10)


# Following from another process.


def test_a_published_body_is_followed_until_it_is_whole(storage: FileStorage, make: Make) -> None:
    other = make()
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    assert other.growing(FLIGHT) is None
    writer.publish(FLIGHT, response(tag="growing"))
    growing = other.growing(FLIGHT)
    assert growing
    assert growing.stored.fields.get("etag") == '"growing"'
    assert (growing.read(0, 10), growing.read(3, 10), growing.ended()) == (b"abc", b"", None)
    assert writer.write(b"def")
    assert growing.read(3, 10) == b"def"
    assert writer.commit()
    assert growing.ended() is True
    assert growing.read(0, 10) == b"abcdef"
    assert other.growing(FLIGHT) is None
    storage.forget(KEY)
    assert growing.ended() is True, "also when it has been evicted since"
    growing.close()


def test_an_abandoned_body_ends_as_such(storage: FileStorage, make: Make, tmp_path: Path) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    writer.publish(FLIGHT, response())
    growing = make().growing(FLIGHT)
    assert growing
    writer.abort()
    assert growing.ended() is False
    assert list((v1(tmp_path / "cache") / "growing").iterdir()) == []
    growing.close()


def test_a_growing_body_shows_that_its_writer_lives(storage: FileStorage, make: Make, tmp_path: Path) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    writer.publish(FLIGHT, response())
    growing = make().growing(FLIGHT)
    assert growing
    (path,) = v1(tmp_path / "cache").glob("writers/*.d/*")
    assert growing.silent() < 10
    for seconds in (-100, 100):
        os.utime(path, (time.time() + seconds,) * 2)
        assert 90 < growing.silent() < 110
        writer.beat()
        assert growing.silent() < 10
    os.utime(path, (0, 0))
    assert writer.write(b"def")
    assert growing.silent() < 10
    writer.abort()
    writer.beat()
    growing.close()


def test_an_announcement_is_withdrawn_by_its_own_writer_only(storage: FileStorage) -> None:
    first, second = storage.create_body(KEY, None), storage.create_body(KEY, None)
    assert first and second
    first.publish(FLIGHT, response(tag="1"))
    second.publish(FLIGHT, response(tag="2"))
    first.abort()
    growing = storage.growing(FLIGHT)
    assert growing
    assert growing.stored.fields.get("etag") == '"2"'
    growing.close()
    second.abort()
    assert storage.growing(FLIGHT) is None


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(5000), b"vhcgro\x00\x02" + bytes(100)])
def test_a_damaged_announcement_is_none(storage: FileStorage, tmp_path: Path, junk: bytes) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    writer.publish(FLIGHT, response())
    (v1(tmp_path / "cache") / "growing" / FLIGHT).write_bytes(junk)
    assert storage.growing(FLIGHT) is None
    assert writer.commit()


AT_THE_END = """
import os
import sys
import vllm_http_cache.storage.devices
from vllm_http_cache.rfc9111.message import Fields, StoredResponse
from vllm_http_cache.storage.files import FileStorage

storage = FileStorage(sys.argv[1])
writer = storage.create_body("a" * 64, None)
assert writer.write(bytes(3_000_000))
follower = writer.follow()
writer.publish("b" * 64, StoredResponse("https://a.test/", 200, Fields(), (), 1.0, 1.0, 1.0))
growing = storage.growing("b" * 64)
assert growing
os.left = vllm_http_cache, writer, follower, growing  # until all other modules have been cleared
"""


def test_what_is_left_when_the_interpreter_ends_complains_of_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_END, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# Without waiting.


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    path = Path("/dev/shm") / f"vllm-http-cache-{os.getpid()}"
    if not path.parent.is_dir():
        pytest.skip("no /dev/shm")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_what_is_in_memory_is_read_at_once(make: Make, shm: Path, tmp_path: Path) -> None:
    """Also where the file system does not know the question, as tmpfs."""
    for path in (tmp_path / "disk", shm):
        storage = make(path)
        assert store(storage, KEY, b"x" * 100_000)
        record = storage.read(KEY, wait=False)
        assert record and record.responses[0].body
        reader = storage.open_body(record.responses[0].body, wait=False)
        assert reader
        assert reader.read(0, MIB, wait=False) == b"x" * 100_000


def test_a_large_body_is_opened_in_a_thread_and_read_at_once(storage: FileStorage) -> None:
    data = os.urandom(3 * MIB)
    ref = write_body(storage, KEY, data)
    assert ref
    with pytest.raises(BlockingIOError):
        storage.open_body(ref, wait=False)
    reader = storage.open_body(ref)
    assert reader
    assert reader.read(MIB, MIB, wait=False) == data[MIB : 2 * MIB]
    reader.close()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="no RWF_NOWAIT")
@pytest.mark.parametrize("cached", [0, 50_000])
def test_what_is_not_in_memory_is_not_waited_for(storage: FileStorage, cached: int) -> None:
    ref = write_body(storage, KEY, b"x" * 100_000)
    large = write_body(storage, KEY, bytes(3 * MIB))
    assert ref and large
    reader = storage.open_body(large)
    assert reader

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        if cached == 0:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return cached

    with patched(os, "preadv", preadv):
        with pytest.raises(BlockingIOError):
            storage.open_body(ref, wait=False)
        with pytest.raises(BlockingIOError):
            reader.read(MIB, MIB, wait=False)
        assert reader.read(MIB, MIB) == bytes(MIB)
    assert read_body(storage, ref) == b"x" * 100_000
    reader.close()


def test_a_network_is_never_asked_without_waiting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_http_cache.storage.layout.is_remote", lambda name: True)
    storage = make()
    ref = write_body(storage, KEY, b"x")
    assert ref
    for call in (lambda: storage.read(KEY, wait=False), lambda: storage.open_body(ref, wait=False)):
        with pytest.raises(BlockingIOError):
            call()
    assert read_body(storage, ref) == b"x"


@pytest.mark.parametrize(
    "kind, remote",
    [("ext4", False), ("tmpfs", False), ("nfs4", True), ("wekafs", True), ("fuse.gcsfuse", True), ("fuseblk", False)],
)
def test_network_file_systems_are_known_by_name(tmp_path: Path, kind: str, remote: bool) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"20 1 0:99 / / rw - overlay x rw\n36 35 {number} / /mnt rw,noatime master:1 - {kind} x rw\n")
    assert devices.file_system(fd, str(mounts)) == kind
    assert devices.is_remote(kind) is remote
    os.close(fd)
