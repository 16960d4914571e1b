"""HishelStorage where hishel or its database fails, or has been tampered with."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hishel import BaseStorage, Headers, SqliteStorage
from prometheus_client import CollectorRegistry

from tests.core.scripted import Origin, fetch, ok
from tests.storage.helpers import MIB, response, write_body
from tests.storage_hishel.conftest import Make
from tests.storage_hishel.helpers import KEY, found, store
from vllm_http_cache import Cache
from vllm_http_cache.metrics import Metrics
from vllm_http_cache.rfc9111.message import BodyRef
from vllm_http_cache.storage.protocol import BodyDamaged, Record


def damage(database: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(database)
    with connection:
        assert connection.execute(sql, values).rowcount > 0
    connection.close()


@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_a_body_that_hishel_does_not_give_is_no_damage(make: Make, database: Path, size: int) -> None:
    """It does not say why."""
    storage = make()
    stored = store(storage, os.urandom(size))
    damage(database, "DELETE FROM streams")
    assert stored.body
    assert storage.open_body(stored.body) is None


@pytest.mark.parametrize("size", [1000, 3 * MIB])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE streams SET chunk_data = zeroblob(length(chunk_data))",
        "UPDATE streams SET chunk_data = substr(chunk_data, 2)",
    ],
)
def test_a_damaged_body_is_damage(make: Make, database: Path, size: int, sql: str) -> None:
    storage = make()
    stored = store(storage, os.urandom(size))
    damage(database, sql)
    assert stored.body
    with pytest.raises(BodyDamaged):
        storage.open_body(stored.body)


def test_a_large_body_is_checked_block_by_block(make: Make, database: Path) -> None:
    storage = make()
    data = os.urandom(20 * MIB)
    stored = store(storage, data)
    damage(database, "UPDATE streams SET chunk_data = zeroblob(131072) WHERE chunk_number = 100")
    assert stored.body
    reader = storage.open_body(stored.body)
    assert reader
    assert reader.read(11 * MIB, MIB) == data[11 * MIB : 12 * MIB]
    for _ in range(2):
        with pytest.raises(BodyDamaged):
            reader.read(12 * MIB, 1)
    reader.close()


@pytest.mark.parametrize("record", ["", "AAAA", "not base64", "\u00e9"])
def test_a_damaged_record_is_a_miss_and_goes(make: Make, database: Path, record: str) -> None:
    storage, hishel = make(), SqliteStorage(database_path=database)
    store(storage, b"body")
    (entry,) = hishel.get_entries(f"vllm-http-cache:1:{KEY}")
    hishel.update_headers(entry.id, Headers({"record": record}))
    assert storage.read(KEY) is None
    stored = store(storage, b"new")
    assert found(storage) == {stored}
    assert len(hishel.get_entries(f"vllm-http-cache:1:{KEY}")) == 1
    hishel.close()


def test_a_record_in_anothers_place_is_a_miss(make: Make, database: Path) -> None:
    storage = make()
    stored = store(storage, b"one"), store(storage, b"two", tag="b")
    damage(database, "UPDATE entries SET data = (SELECT data FROM entries LIMIT 1)")
    assert len(found(storage)) == 1
    assert found(storage) < set(stored)


class Failing(BaseStorage):
    """Raises, as hishel's own never should."""

    def create_entry(self, *_: Any, **__: Any) -> Any:
        raise sqlite3.OperationalError("locked")

    get_entries = update_headers = remove_entry = close = create_entry


def test_a_failing_storage_finds_and_stores_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    storage = make(hishel=Failing())
    assert storage.read(KEY) is None
    assert storage.swap(KEY, None, Record((response(),)))
    assert write_body(storage, KEY, b"body") is None
    assert storage.open_body(BodyRef(f"{KEY}.{'0' * 16}", 1, bytes(8))) is None
    storage.forget(KEY)
    storage.close()
    assert len(caplog.records) == 1
    assert "locked" in caplog.text


def test_failures_are_told_to_the_metrics_of_a_cache(make: Make) -> None:
    registry = CollectorRegistry()
    fetch(Cache(make(hishel=Failing()), metrics=Metrics(registry)), Origin(ok()))
    labels = {"operation": "reading a record"}
    assert registry.get_sample_value("vllm_http_cache_storage_errors_total", labels)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_database_that_cannot_be_used_finds_and_stores_nothing(make: Make, database: Path) -> None:
    database.mkdir(parents=True)
    storage = make()
    assert storage.read(KEY) is None
    assert write_body(storage, KEY, b"body") is None


def test_no_place_for_temporary_files(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert make().create_body(KEY, 1) is None


@pytest.mark.parametrize("fails", [False, True], ids=["slow", "slow to fail"])
def test_one_that_takes_long_is_left_alone_for_a_while(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    storage, now, calls = make(), [0.0], 0
    store(storage, b"body")
    monkeypatch.setattr(storage, "_timer", lambda: now[0])
    get_entries = storage._hishel.get_entries

    def slow(place: str) -> Any:
        nonlocal calls
        calls += 1
        now[0] += 1.0
        if fails:
            raise ConnectionError("nobody answers")
        return get_entries(place)

    with monkeypatch.context() as patch:
        patch.setattr(storage._hishel, "get_entries", slow)
        assert (storage.read(KEY) is None) is fails
        for _ in range(3):
            storage.forget(KEY)
            assert storage.read(KEY) is None and storage.swap(KEY, None, Record(()))
            assert storage.create_body(KEY, 1) is None
        assert calls == 1
        assert "it took 1.0 s" in caplog.text or "nobody answers" in caplog.text
    now[0] += 10.0
    assert not found(storage), "what was to be removed goes before it is read again"
    assert storage.create_body(KEY, 1) is not None


def test_what_a_locked_database_did_not_remove_goes_before_it_is_read_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hishel waits for the lock, and says nothing of having waited in vain."""
    storage, now = make(), [0.0]
    store(storage, b"body")
    monkeypatch.setattr(storage, "_timer", lambda: now[0])

    def locked(_: str) -> list[Any]:
        now[0] += 5.0
        return []

    with monkeypatch.context() as patch:
        patch.setattr(storage._hishel, "get_entries", locked)
        storage.forget(KEY)
    now[0] += 10.0
    assert storage.read(KEY) is None
    store(storage, b"new")
    assert found(storage)


def test_what_is_stored_and_forgotten_while_more_is_removed_goes_too(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = make()
    store(storage, b"old")
    get_entries = storage._hishel.get_entries

    def found_and_then_forgotten(place: str) -> Any:
        entries = get_entries(place)
        patch.undo()
        storage._doomed[KEY] = object()  # as by another thread, which has to wait for the key's lock
        return entries

    with monkeypatch.context() as patch:
        patch.setattr(storage._hishel, "get_entries", found_and_then_forgotten)
        storage.forget(KEY)
    assert KEY in storage._doomed
    assert storage.read(KEY) is None and not storage._doomed


def test_without_hishel_the_message_names_the_extra() -> None:
    code = "import sys; sys.modules['hishel'] = None; import vllm_http_cache.storage.hishel"
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith("pip install vllm-http-cache[hishel]")
