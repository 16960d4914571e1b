"""Whatever has become of the files: nothing raises, nothing wrong goes out, nothing outside is touched, and memory is
bounded. ``nox -s fuzz`` plays many more folders than the default session does."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from tests.storage.helpers import key, read_body, response, store, write_body
from vllm_http_cache.storage.archive import export_tar, import_tar
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import BodyDamaged
from vllm_http_cache.storage.readers import BLOCK
from vllm_http_cache.storage.toolbox import by_host, purge, sweep, trim, usage, verify

BODIES = {key("small"): b"small" * 20, key("blocks"): bytes(range(256)) * (BLOCK // 256 + 3), key("empty"): b""}
GROWING, FLIGHT = b"growing" * 100, key("flight")
SECRET = b"what lies outside"
MEMORY = 24 * 1024**2  # octets
FOLDERS = settings(max_examples=settings().max_examples // 4, deadline=None)  # each takes a while
HEAD = 16  # octets of a record before its payload: magic and checksum


@pytest.fixture(scope="module")
def sound() -> Iterator[Path]:
    """A folder with records, bodies, a ledger, and a body that grows."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "cache"
        storage = FileStorage(folder)
        for name, body in BODIES.items():
            assert store(storage, name, body)
        writer = storage.create_body(FLIGHT, None)
        assert writer is not None
        writer.write(GROWING)
        writer.publish(FLIGHT, response())
        for path in folder.rglob("writers/*.d/*"):
            path.chmod(0o400)  # as if it were whole
        yield folder
        writer.abort()
        storage.close()


class Harm(NamedTuple):
    """What becomes of one file: the *which*-th of those there are, somewhere in it."""

    kind: str
    which: int
    where: float
    octets: bytes

    def do(self, files: list[Path], outside: Path) -> None:
        files = [path for path in files if path.is_file() and not path.is_symlink()]
        if not files:
            return
        path = files[self.which % len(files)]
        data = bytearray(path.read_bytes())
        at = int(self.where * len(data))
        match self.kind:
            case "overwrite":
                data[at : at + len(self.octets)] = self.octets
            case "insert":
                data[at:at] = self.octets
            case "truncate":
                del data[at:]
            case "zero":
                data[at : at + 4096] = bytes(len(data[at : at + 4096]))
            case "extend":
                data += self.octets * 1000
            case "another's":
                data = bytearray(files[-self.which % len(files)].read_bytes())
            case "reseal":  # as somebody would who means it
                data[HEAD + at :] = self.octets + data[HEAD + at + len(self.octets) :]
                data[8:HEAD] = xxh3_64_digest(bytes(data[HEAD:]))
            case "link":
                path.unlink()
                path.symlink_to(outside)
                return
            case "folder":
                path.unlink()
                path.mkdir()
                return
            case "gone":
                path.unlink()
                return
        mode = path.stat().st_mode
        path.unlink()
        path.write_bytes(data)
        path.chmod(mode)


KINDS = ["overwrite", "insert", "truncate", "zero", "extend", "another's", "reseal", "link", "folder", "gone"]
HARMS = st.builds(Harm, st.sampled_from(KINDS), st.integers(0, 30), st.floats(0, 1), st.binary(min_size=1, max_size=40))


@contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def read_all(storage: FileStorage, honest: bool) -> None:
    for name, body in BODIES.items():
        for stored in getattr(storage.read(name), "responses", ()):
            found = read_body(storage, stored.body) if stored.body is not None else None
            assert not honest or found in {body, None}


def follow(storage: FileStorage, honest: bool) -> None:
    growing = storage.growing(FLIGHT)
    if growing is not None:
        try:
            growing.read(0, 10 * len(GROWING))
            growing.ended()
        except BodyDamaged:
            pass
        growing.close()
    claim = storage.claim(key("another flight"))
    if claim is not None:
        claim.release()


def use_all_tools(storage: FileStorage, honest: bool) -> None:
    list(storage.scan())
    list(verify(storage))
    usage(storage)
    archive = io.BytesIO()
    export_tar(storage, archive)
    archive.seek(0)
    import_tar(storage, archive, 0.0)
    sweep(storage)


def write(storage: FileStorage, honest: bool) -> None:
    for name in (*BODIES, key("new")):
        ref = write_body(storage, name, b"new")
        assert ref is None or read_body(storage, ref) in {b"new", None}


def remove(storage: FileStorage, honest: bool) -> None:
    list(verify(storage, drop=True))
    trim(storage, 100_000)
    purge(storage, by_host("example.test"))
    for name in BODIES:
        storage.forget(name)


USES: list[Callable[[FileStorage, bool], None]] = [read_all, follow, use_all_tools, write, remove]


@FOLDERS
@given(st.lists(HARMS, min_size=1, max_size=4), st.permutations(USES))
def test_any_harm_to_the_files(sound: Path, harms: list[Harm], uses: list[Callable[[FileStorage, bool], None]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder, outside = Path(root) / "cache", Path(root) / "outside"
        outside.write_bytes(SECRET)
        shutil.copytree(sound, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for harm in harms:
            harm.do(files, outside)
        honest = all(harm.kind != "reseal" for harm in harms)
        with bounded_memory():
            storage = FileStorage(folder)
            try:
                for use in uses:
                    use(storage, honest)
            finally:
                storage.close()
        assert outside.read_bytes() == SECRET
        assert sorted(os.listdir(root)) == ["cache", "outside"]


@FOLDERS
@given(st.lists(HARMS, min_size=1, max_size=4))
def test_any_harm_to_an_archive(sound: Path, harms: list[Harm]) -> None:
    with tempfile.TemporaryDirectory() as root:
        source = FileStorage(sound)
        archive, outside, other = (Path(root) / name for name in ("archive", "outside", "other"))
        with archive.open("wb") as file:
            export_tar(source, file)
        outside.write_bytes(SECRET)
        for harm in harms:
            if harm.kind not in {"link", "folder", "gone"}:
                harm.do([archive], outside)
        target = FileStorage(other)
        try:
            with bounded_memory(), archive.open("rb") as file:
                import_tar(target, file, 0.0)
                read_all(target, honest=True)
        finally:
            target.close()
            source.close()
        assert outside.read_bytes() == SECRET
