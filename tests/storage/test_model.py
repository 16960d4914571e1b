"""The storage against a dictionary: whatever is done to it, crashes and damage included, it holds what the dictionary
holds, or nothing."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.storage.actors import quiet
from tests.storage.helpers import (
    MIB,
    body_files,
    key,
    ledger_is_exact,
    load,
    occupied,
    patched,
    record_file,
    response,
    v1,
)
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.archive import export_tar, import_tar
from vllm_http_cache.storage.bodies import FileBodyWriter
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.records import names
from vllm_http_cache.storage.toolbox import sweep, trim, usage

NAMES = [key(number) for number in range(4)]
TTL = 1000.0
BOUND = 2 * MIB


class Kept:
    """What the model knows of a key: its body, and when it was confirmed. ``sure``: it must be there."""

    def __init__(self, data: bytes, confirmed: float, sure: bool = True) -> None:
        self.data = data
        self.confirmed = confirmed
        self.sure = sure


class Crash(BaseException):
    """The process dies here, as far as its storage can tell."""


class Model(RuleBasedStateMachine):
    writers = Bundle("writers")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.now = time.time()
        self.kept: dict[str, Kept] = {}
        self.storages = [self.open(), self.open()]
        self.dead: list[FileStorage] = []

    def open(self) -> FileStorage:
        return quiet(FileStorage(self.folder, max_size=BOUND, ttl=TTL, free_space_floor=0, clock=lambda: self.now))

    def teardown(self) -> None:
        if v1(self.folder).exists():
            self.leaves_nothing_behind()
        for storage in (*self.storages, *self.dead):
            storage.close()
        shutil.rmtree(self.folder)

    storage = st.integers(0, 1)
    name = st.sampled_from(NAMES)

    @rule(
        target=writers,
        storage=storage,
        name=name,
        length=st.sampled_from([0, 1, 5000, 100_000, 300_000]),
        known=st.booleans(),
    )
    def create(self, storage: int, name: str, length: int, known: bool) -> object:
        writer = self.storages[storage].create_body(name, length if known else None)
        if writer is None:
            taken = usage(self.storages[0])
            assert taken.used + taken.reserved > BOUND / 3, "there was room"
            return multiple()
        data = os.urandom(length)
        assert isinstance(writer, FileBodyWriter)
        return self.storages[storage], name, writer, data

    @rule(writer=consumes(writers))
    def keep(self, writer: tuple[FileStorage, str, FileBodyWriter, bytes]) -> None:
        storage, name, body, data = writer
        written = body.write(data)
        ref = body.commit()
        if storage not in self.storages:
            assert ref is None, "its process has died"
            return
        assert written == (ref is not None)
        if ref is not None:
            assert storage.swap(name, storage.read(name), Record((response(ref, at=self.now),)))
            self.kept[name] = Kept(data, self.now)
            if load(storage, name) is None:  # no room for the record
                assert usage(storage).used > BOUND / 2
                del self.kept[name]

    @rule(writer=consumes(writers))
    def give_up(self, writer: tuple[FileStorage, str, FileBodyWriter, bytes]) -> None:
        writer[2].write(writer[3][:1000])
        writer[2].abort()

    @rule(storage=storage, name=name)
    def validate(self, storage: int, name: str) -> None:
        record = self.storages[storage].read(name)
        if record is not None:
            fresh = Record(tuple(replace(stored, confirmed=self.now) for stored in record.responses))
            assert self.storages[storage].swap(name, record, fresh)
            again = self.storages[storage].read(name)
            if again is not None and again.responses[0].confirmed == self.now and name in self.kept:
                self.kept[name].confirmed = self.now

    @rule(storage=storage, name=name)
    def forget(self, storage: int, name: str) -> None:
        self.storages[storage].forget(name)
        self.kept.pop(name, None)

    @rule(seconds=st.sampled_from([1, 400, 1100]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(storage=storage)
    def sweep(self, storage: int) -> None:
        with patched(sweeping, "GRACE", -1e9):
            sweep(self.storages[storage])

    @rule(storage=storage, size=st.sampled_from([0, BOUND // 4, BOUND // 2]))
    def trim(self, storage: int, size: int) -> None:
        trim(self.storages[storage], size)
        for kept in self.kept.values():
            kept.sure = False

    @rule(storage=storage)
    def crash(self, storage: int) -> None:
        """The process is gone with its locks; its bodies are not finished by anybody."""
        dead = self.storages[storage]
        place = dead._access.place
        if place is not None:
            place.forked()
        self.dead.append(dead)
        self.storages[storage] = self.open()

    @rule(storage=storage)
    def close(self, storage: int) -> None:
        self.storages[storage].close()
        self.dead.append(self.storages[storage])
        self.storages[storage] = self.open()

    @rule(name=name, junk=st.binary(max_size=50))
    def damage_record(self, name: str, junk: bytes) -> None:
        file = record_file(self.folder, name)
        if file.exists():
            file.write_bytes(junk)
            self.kept.pop(name, None)

    @rule(name=name, position=st.integers(0, 10**9))
    def damage_body(self, name: str, position: int) -> None:
        for file in body_files(self.folder, name):
            data = bytearray(file.read_bytes())
            if data:
                data[position % len(data)] ^= 0x10
                file.chmod(0o600)
                file.write_bytes(data)
                if name in self.kept:
                    self.kept[name].sure = False

    @rule(junk=st.sampled_from([b"", b"junk", bytes(4096)]))
    @precondition(lambda self: v1(self.folder).exists())
    def damage_ledger(self, junk: bytes) -> None:
        (v1(self.folder) / "ledger").write_bytes(junk)
        sweep(self.storages[0])

    @rule()
    def take_along(self) -> None:
        """Everything through an archive, into nothing."""
        archive = io.BytesIO()
        export_tar(self.storages[0], archive)
        with tempfile.TemporaryDirectory() as folder:
            other = quiet(FileStorage(folder, ttl=TTL, free_space_floor=0, clock=lambda: self.now))
            import_tar(other, io.BytesIO(archive.getvalue()), self.now)
            self.agree(other)
            other.close()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for storage in self.storages:
            self.agree(storage)

    def agree(self, storage: FileStorage) -> None:
        for name in NAMES:
            kept, data = self.kept.get(name), load(storage, name)
            if kept is None or self.now - kept.confirmed > TTL:
                assert data is None
            elif kept.sure:
                assert data == kept.data
            else:
                assert data in {kept.data, None}

    @invariant()
    def stays_within_its_bound(self) -> None:
        if v1(self.folder).exists():
            now = usage(self.storages[0])
            assert occupied(self.folder) <= now.used + now.reserved

    def leaves_nothing_behind(self) -> None:
        assert ledger_is_exact(self.storages[0])
        named = names(stat.stored for stat in self.storages[0].scan())
        assert named <= {file.name for file in body_files(self.folder)}


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
