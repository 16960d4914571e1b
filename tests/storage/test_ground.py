"""Hostile ground: what may be in the place of the folder, or become of it, while a server runs on."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    eventually,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    occupied,
    own_folder,
    patched,
    record_file,
    response,
    store,
    v1,
    write_body,
)
from vllm_http_cache.storage import access
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import sweep, usage

KEY = key("ground")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and mount")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be opened is tried again at once."""
    monkeypatch.setattr(access, "RETRY_SECONDS", 0.0)


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return len([record for record in caplog.records if record.name == "vllm_http_cache.storage"])


def works_not(storage: FileStorage) -> bool:
    """Every method answers as if there were no cache."""
    assert storage.read(KEY) is None
    assert storage.create_body(KEY, 5) is None
    assert storage.swap(KEY, None, Record((response(),)))
    storage.forget(KEY)
    claim = storage.claim(KEY)
    assert claim is not None
    claim.release()
    assert storage.growing(KEY) is None
    return list(storage.scan()) == []


def remove(path: Path) -> None:
    """As ``rm -rf`` by an operator who insists."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


# In the folder's place.


@pytest.mark.parametrize("what", ["a file", "a link to a folder", "a dangling link"])
@pytest.mark.parametrize("where", ["cache", "cache/.vllm-http-cache", "cache/.vllm-http-cache/v1"])
def test_something_else_is_in_its_place(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, what: str
) -> None:
    place = tmp_path / where
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    match what:
        case "a file":
            place.write_bytes(b"theirs")
        case "a link to a folder":
            elsewhere.mkdir()
            place.symlink_to(elsewhere)
        case _:
            place.symlink_to(tmp_path / "nowhere")
    storage = make()
    if where == "cache" and what == "a link to a folder":
        assert store(storage, KEY, b"x"), "the operator's own link is followed"
        return
    assert works_not(storage)
    assert works_not(storage)
    assert warnings(caplog) == 1
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
    assert what != "a file" or place.read_bytes() == b"theirs"
    place.unlink()
    assert store(storage, KEY, b"recovered")


@needs_root
@pytest.mark.parametrize("where", [".vllm-http-cache", ".vllm-http-cache/v1"])
def test_a_folder_of_another_owner_is_not_used(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    first = make()
    assert store(first, KEY, b"x")
    first.close()
    os.chown(tmp_path / "cache" / where, 12345, 12345)
    storage = make()
    assert works_not(storage)
    assert warnings(caplog) == 1
    assert "12345" in caplog.text
    os.chown(tmp_path / "cache" / where, 0, 0)
    assert load(storage, KEY) == b"x"


@needs_root
def test_a_group_shares_with_whoever_is_in_it(make: Make, tmp_path: Path) -> None:
    first = make(group=True)
    assert store(first, KEY, b"x")
    first.close()
    for path in (own_folder(tmp_path / "cache"), *own_folder(tmp_path / "cache").rglob("*")):
        os.chown(path, 12345, 0)
    assert load(make(group=True), KEY) == b"x"
    assert store(make(group=True), KEY, b"y")


@needs_root
@pytest.mark.parametrize("mode, gid", [(0o700, 0), (0o2750, 0), (0o770, 0), (0o2770, 12345)])
def test_a_group_leaves_alone_what_is_not_shared_with_it(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, gid: int
) -> None:
    first = make()
    assert store(first, KEY, b"x")
    first.close()
    own = own_folder(tmp_path / "cache")
    os.chown(own, 12345, gid)
    own.chmod(mode)
    shared = mode == 0o2770  # and root is a member of every group
    assert (load(make(group=True), KEY) is None) is not shared
    assert ("not shared with this user's groups" in caplog.text) is not shared


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("where", [".vllm-http-cache", ".vllm-http-cache/v1"])
def test_a_folder_that_anybody_may_write_is_not_used(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, group: bool
) -> None:
    first = make(group=group)
    assert store(first, KEY, b"x")
    first.close()
    mode = (tmp_path / "cache" / where).stat().st_mode
    (tmp_path / "cache" / where).chmod(0o777)
    storage = make(group=group)
    assert works_not(storage)
    assert warnings(caplog) == 1
    (tmp_path / "cache" / where).chmod(stat.S_IMODE(mode))
    assert load(storage, KEY) == b"x"


def test_a_parent_that_anybody_may_write_is_used(make: Make, tmp_path: Path) -> None:
    """As /tmp, or an emptyDir: the own subfolder is what counts."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert store(make(), KEY, b"x")
    assert stat.S_IMODE(own_folder(tmp_path / "cache").stat().st_mode) == 0o700


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_something_else_is_in_a_subfolders_place(make: Make, tmp_path: Path, what: str) -> None:
    storage = make()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert store(storage, key(1), b"x")
    place = v1(tmp_path / "cache") / KEY[:2]
    place.write_bytes(b"x") if what == "a file" else place.symlink_to(elsewhere)
    assert storage.read(KEY) is None
    assert eventually(lambda: store(storage, KEY, b"y"))
    assert place.is_dir()
    assert not place.is_symlink()
    assert list(elsewhere.iterdir()) == []
    sweep(storage)
    assert ledger_is_exact(storage)


# What becomes of it.


@pytest.mark.parametrize("where", ["cache", "cache/.vllm-http-cache", "cache/.vllm-http-cache/v1"])
@pytest.mark.parametrize("how", ["deleted", "moved away", "replaced"])
def test_a_folder_that_vanishes_is_made_anew(make: Make, tmp_path: Path, where: str, how: str) -> None:
    storage = make()
    assert store(storage, KEY, b"old")
    writer = storage.create_body(KEY, 3)
    claim = storage.claim(KEY)
    assert writer and claim
    assert is_quiet(storage)
    match how:
        case "deleted":
            remove(tmp_path / where)
        case "moved away":
            (tmp_path / where).rename(tmp_path / "away")
        case _:
            (tmp_path / where).rename(tmp_path / "away")
            (tmp_path / where).mkdir(mode=0o700)
    claim.release()
    writer.write(b"lost")
    writer.abort()
    assert store(storage, KEY, b"new")
    assert record_file(tmp_path / "cache", KEY).exists()
    assert usage(storage).reserved == 0
    assert ledger_is_exact(storage)
    assert load(make(), KEY) == b"new"


def test_a_reader_notices_that_others_have_made_the_folder_anew(make: Make, tmp_path: Path) -> None:
    reader, writer = make(), make()
    assert store(writer, KEY, b"old")
    assert load(reader, KEY) == b"old"
    assert is_quiet(writer)
    remove(tmp_path / "cache")
    assert store(writer, KEY, b"new")
    assert eventually(lambda: load(reader, KEY) == b"new")


def test_a_folder_deleted_bit_by_bit(make: Make, tmp_path: Path) -> None:
    """Every file of it may be missing."""
    storage = make()
    for name in ("ledger", "claims", "sweep", "growing", "writers", KEY[:2]):
        assert store(storage, KEY, b"x")
        claim = storage.claim(KEY)
        assert claim
        assert is_quiet(storage)
        path = v1(tmp_path / "cache") / name
        if path.is_dir():
            remove(path)
        elif path.exists():
            path.unlink()
        claim.release()
        assert eventually(lambda: store(storage, key(2), b"y")), name
        writer = storage.create_body(KEY, None)
        assert writer
        writer.publish(key(3), response())
        assert storage.growing(key(3)), name
        writer.abort()
        sweep(storage)
        assert ledger_is_exact(storage), name


@pytest.mark.parametrize("look", [sweep, lambda storage: storage._room._janitor.ask()], ids=["operator", "janitor"])
def test_what_lies_beside_a_cache_that_was_moved_is_somebody_elses(
    make: Make, tmp_path: Path, look: Callable[[FileStorage], None]
) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    assert is_quiet(storage)
    for name in ("v0", "CACHEDIR.TAG"):
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "releases" / name / "file").write_bytes(b"theirs")
    v1(tmp_path / "cache").rename(tmp_path / "releases" / "v1")
    look(storage)
    assert (tmp_path / "releases" / "v0" / "file").read_bytes() == b"theirs"
    (own_folder(tmp_path / "cache") / "v0").mkdir()
    look(storage)
    assert (own_folder(tmp_path / "cache") / "v0").exists(), "until a server comes back to it"
    assert store(storage, KEY, b"y")
    assert is_quiet(storage)
    look(storage)
    assert not (own_folder(tmp_path / "cache") / "v0").exists()


def test_a_working_directory_that_changes(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = make(Path("relative"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert store(storage, KEY, b"x")
    assert v1(tmp_path / "relative").is_dir()


# Devices.


def as_nobody(work: str, path: Path) -> str:
    """What a program prints that runs without privileges."""
    code = (
        "import os, sys, logging\nlogging.basicConfig(stream=sys.stdout, format='%(levelname)s %(message)s')\n"
        "from tests.storage.helpers import *\n"
        "from vllm_http_cache.storage.files import FileStorage\n"
        f"os.setgroups([]); os.setgid(12345); os.setuid(12345)\nstorage = FileStorage({str(path)!r})\n{work}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


@needs_root
def test_a_folder_that_may_only_be_read_serves_hits(make: Make, tmp_path: Path) -> None:
    """Root has filled it; the server runs as somebody else, who may look."""
    first = make()
    assert store(first, KEY, b"served")
    first.close()
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o005 != 0o005 and parent.owner() == "root":
            parent.chmod(parent.stat().st_mode | 0o055)
    said = as_nobody(
        "claimed = lambda: storage.claim(key('f')) is not None\n"
        "print(load(storage, key('ground')), store(storage, key('ground'), b'x'), claimed())\n"
        "print(load(storage, key('ground')))",
        tmp_path / "cache",
    )
    lines = said.splitlines()
    assert [line for line in lines if not line.startswith("WARNING")] == ["b'served' False True", "b'served'"], said
    assert len(lines) == 3, "one warning"


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


def test_a_floor_on_a_small_disk(make: Make, small_disk: Path) -> None:
    storage = make(small_disk, free_space_floor=2 * MIB)
    kept = sum(store(storage, key(number), bytes(200_000)) for number in range(30))
    assert 5 < kept <= 10
    device = os.statvfs(small_disk)
    assert device.f_bavail * device.f_frsize >= 2 * MIB


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


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_shared_folder_that_was_being_made_is_shared_by_the_next(make: Make, tmp_path: Path, nth: int) -> None:
    (tmp_path / "cache").mkdir()
    with intercepted(Nth(nth, fail(errno.EIO), only="chmod")):
        store(make(group=True), KEY, b"x")
    assert store(make(group=True), KEY, b"x")
    folders = [own_folder(tmp_path / "cache"), *own_folder(tmp_path / "cache").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folders if path.is_dir()}
    modes.pop(KEY[:2])
    assert set(modes.values()) == {0o2770}, modes


def test_a_umask_that_takes_write_permission_makes_nothing_look_whole(storage: FileStorage) -> None:
    before = os.umask(0o222)
    try:
        writer = storage.create_body(KEY, None)
        assert writer
        writer.publish(KEY, response())
        growing = storage.growing(KEY)
    finally:
        os.umask(before)
    assert growing
    assert growing.ended() is None
    assert writer.commit()
    assert growing.ended() is True
    growing.close()


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


def test_everything_stays_inside(make: Make, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "cache").mkdir()
    storage = make()
    assert store(storage, KEY, b"x")
    sweep(storage)
    storage.close()
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".vllm-http-cache"}
    assert all(path.stat().st_mtime_ns == before[path] for path in before)
    assert occupied(tmp_path / "cache") > 0
    assert actors.KEY
