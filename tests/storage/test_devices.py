"""What the disk under the folder may be: full, read-only, not there yet, of large blocks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    eventually,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    needs_root,
    occupied,
    own_folder,
    patched,
    store,
    v1,
    warnings,
    write_body,
)
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.devices import Device
from vllm_http_cache.storage.layout import Home
from vllm_http_cache.storage.toolbox import usage

KEY = key("devices")

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four mebibytes."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", path], check=False).returncode:
        pytest.skip("cannot mount a small file system")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk(make: Make, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = make(small_disk, free_space_floor=0)
    assert store(storage, KEY, b"kept")
    (small_disk / "others").write_bytes(bytes(3 * MIB))
    writer = storage.create_body(key(2), None)
    assert writer
    written = 0
    while writer.write(bytes(100_000)):
        written += 1
    assert 3 <= written <= 10
    assert writer.commit() is None
    assert load(storage, KEY) == b"kept", "old entries are intact"
    for number in range(20):
        store(storage, key(number), bytes(400_000))
    assert warnings(caplog) <= 1
    (small_disk / "others").unlink()
    assert eventually(lambda: store(storage, KEY, bytes(1_000_000)))
    assert usage(storage).reserved == 0
    assert ledger_is_exact(storage)


def free(disk: Path) -> int:
    device = os.statvfs(disk)
    return device.f_bavail * device.f_frsize


def test_a_disk_that_is_mostly_the_caches_keeps_its_floor_and_takes_new_media(make: Make, small_disk: Path) -> None:
    storage = make(small_disk, free_space_floor=2 * MIB)
    for number in range(30):
        assert store(storage, key(number), bytes(200_000))
        assert free(small_disk) >= 2 * MIB
    assert 5 < usage(storage).keys <= 10


def test_a_body_of_unknown_length_takes_half_of_a_disk_smaller_than_the_bound_at_most(
    make: Make, small_disk: Path
) -> None:
    storage = make(small_disk, free_space_floor=0)
    for number in range(20):
        assert store(storage, key(number), bytes(150_000))
    writer = storage.create_body(KEY, None)
    assert writer
    while writer.write(bytes(50_000)):
        pass
    assert usage(storage).keys >= 9


def test_what_is_being_written_is_the_caches_own_too(make: Make, small_disk: Path) -> None:
    storage = make(small_disk, free_space_floor=0)
    for number in range(6):
        assert store(storage, key(number), bytes(200_000))
    writer = storage.create_body(KEY, 2_400_000)
    assert writer
    assert writer.write(bytes(2_400_000))
    assert all(store(storage, key(("new", number)), bytes(100_000)) for number in range(12))
    assert writer.commit()


def test_a_disk_of_few_files_keeps_some_for_others_and_takes_new_media(make: Make, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", small_disk], check=True)
    storage = make(small_disk, free_space_floor=0)
    looks: list[str] = []
    by_use = sweeping._by_use

    def look(home: Home, folder: str, *arguments: Any) -> object:
        looks.append(folder)
        return by_use(home, folder, *arguments)

    with patched(sweeping, "_by_use", look):
        for number in range(600):
            assert store(storage, key(number), b"x"), number
            assert os.statvfs(small_disk).f_favail >= 45, "fifty, but for a record and its folder"
    assert usage(storage).keys > 200
    assert 1 <= looks.count("00") < 30, "not for each of them"


def test_where_others_have_taken_the_files_what_is_stored_stays(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make()
    for number in range(10):
        assert store(storage, key(number), bytes(MIB))
    monkeypatch.setattr(Home, "device", lambda self: Device(20 * MIB, 9 * MIB, 1000, 49))
    assert not store(storage, KEY, b"x")
    assert usage(storage).keys == 10
    assert warnings(caplog) == 1
    monkeypatch.setattr(Home, "device", lambda self: Device(20 * MIB, 9 * MIB))
    assert store(storage, KEY, b"x")


def test_bodies_begun_together_leave_the_floor(make: Make, small_disk: Path) -> None:
    storage = make(small_disk, free_space_floor=MIB)
    writers = [writer for number in range(4) if (writer := storage.create_body(key(number), 2 * MIB))]
    assert len(writers) == 1
    assert writers[0].write(bytes(2 * MIB))
    assert free(small_disk) >= MIB
    assert storage.create_body(key(5), MIB // 2), "what is written is not reserved once more"
    assert writers[0].commit()


def test_a_body_ends_where_others_have_taken_the_floor(make: Make, small_disk: Path) -> None:
    storage = make(small_disk, free_space_floor=MIB)
    writer = storage.create_body(KEY, 2 * MIB + 1)
    assert writer
    assert writer.write(bytes(MIB // 2))
    (small_disk / "others").write_bytes(bytes(2_700_000))
    assert not writer.write(bytes(600_000)), "though there would be room on the disk"
    assert writer.commit() is None


@needs_root
def test_a_disk_that_is_read_only_serves_hits(make: Make, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = make(small_disk, free_space_floor=0)
    assert store(first, KEY, b"kept")
    first.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    storage = make(small_disk, free_space_floor=0)
    assert load(storage, KEY) == b"kept"
    assert not store(storage, key(2), b"x")
    storage.forget(KEY)
    claim = make(small_disk).claim(KEY)
    assert claim
    assert warnings(caplog) == 2, "one for each storage that would write"
    assert usage(storage).keys == 1
    assert usage(storage).used >= 8192
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert store(storage, key(2), b"x")
    storage.forget(KEY)
    assert storage.read(KEY) is None


@needs_root
def test_a_disk_that_is_not_there_yet(make: Make, tmp_path: Path) -> None:
    """Mounted over the folder while the server runs."""
    path = tmp_path / "disk"
    storage = make(path, free_space_floor=0)
    assert store(storage, KEY, b"below")
    assert is_quiet(storage)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", path], check=False).returncode:
        pytest.skip("cannot mount")
    try:
        assert store(storage, KEY, b"above")
        assert v1(path).exists()
    finally:
        subprocess.run(["umount", "-l", path], check=True)
    assert load(make(path), KEY) == b"below"


def test_a_file_system_without_inodes_numbers_or_times(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of use that cannot be set are no reason not to answer."""
    storage = make()
    assert store(storage, KEY, b"x")

    def utime(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "not permitted")

    fresh = make()
    with patched(os, "utime", utime):
        assert load(fresh, KEY) == b"x"


def test_a_disk_with_large_blocks_is_charged_for_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fstatvfs = os.fstatvfs

    def with_large_blocks(fd: int) -> os.statvfs_result:
        return os.statvfs_result((65_536, 65_536, *tuple(fstatvfs(fd))[2:]))

    with patched(os, "fstatvfs", with_large_blocks):
        storage = make(max_size=4 * MIB, free_space_floor=0)
        ref = write_body(storage, KEY, b"x")
        assert ref
        assert usage(storage).used >= 65_536
        for number in range(100):
            store(storage, key(number), b"x")
        assert usage(storage).keys < 40


def test_a_tag_that_found_no_room_is_written_later(make: Make, tmp_path: Path) -> None:
    with intercepted(Nth(1, fail(errno.ENOSPC), only="write", on=True)):
        assert not make().open()
    tag = own_folder(tmp_path / "cache") / "CACHEDIR.TAG"
    assert tag.read_bytes() == b""
    assert store(make(), KEY, b"x")
    assert tag.read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    tag.write_bytes(tag.read_bytes() + b"# more\n")
    shutil.rmtree(v1(tmp_path / "cache"))
    assert store(make(), KEY, b"x")
    assert tag.read_bytes().endswith(b"# more\n")


@needs_root
@pytest.mark.parametrize("kind", ["clusters", "huge pages"])
def test_where_a_small_file_occupies_more_than_a_block_it_is_charged_so(make: Make, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "disk"
    path.mkdir()
    if kind == "clusters":
        image = tmp_path / "image"
        image.touch()
        os.truncate(image, 64 * MIB)
        make_it = ["mkfs.ext4", "-q", "-O", "bigalloc", "-C", "65536", str(image)]
        commands = [make_it, ["mount", "-o", "loop", str(image), str(path)]]
    else:
        commands = [["mount", "-t", "tmpfs", "-o", "size=200m,huge=always", "none", str(path)]]
    if any(subprocess.run(command, check=False, capture_output=True).returncode for command in commands):
        pytest.skip("cannot make such a file system")
    try:
        storage = make(path, max_size=48 * MIB, free_space_floor=0)
        assert store(storage, KEY, b"x")
        begun = (storage.create_body(key(number), 1) for number in range(1000))
        writers = list(takewhile(bool, begun))
        assert all(writer and writer.write(b"x") for writer in writers)
        assert occupied(path) <= usage(storage).used + usage(storage).reserved <= 48 * MIB
        assert writers
        storage.close()
    finally:
        subprocess.run(["umount", "-l", path], check=True)
