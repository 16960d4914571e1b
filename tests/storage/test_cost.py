"""What a hit, a store and a stream may cost. Figures are compared within one run, the best of many."""

from __future__ import annotations

import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import intercepted
from tests.storage.helpers import MIB, body_files, key, load, response, store, write_body
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record

KEY = key("cost")


def seconds(work: Callable[[], object], times: int = 400) -> float:
    """The median of the better half."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(sorted(taken)[: times // 2])


@pytest.mark.parametrize("wait", [True, False])
def test_a_hit_costs_at_most_twice_what_reading_the_file_costs(make: Make, tmp_path: Path, wait: bool) -> None:
    storage = actors.quiet(make(clock=time.time))
    assert store(storage, KEY, os.urandom(100_000))
    (file,) = body_files(tmp_path / "cache")

    def hit() -> bytes:
        record = storage.read(KEY, wait=wait)
        assert record and record.responses[0].body
        reader = storage.open_body(record.responses[0].body, wait=wait)
        assert reader
        return reader.read(0, MIB, wait=wait)

    assert hit() == file.read_bytes()
    assert seconds(hit) <= 2 * seconds(file.read_bytes)


def test_memory_does_not_grow_with_the_body(storage: FileStorage) -> None:
    chunk = os.urandom(65_536)
    tracemalloc.start()
    try:
        writer = storage.create_body(KEY, None)
        assert writer
        follower = writer.follow()
        for number in range(48 * 16):
            assert writer.write(chunk)
            assert follower.read(number * 65_536, 65_536) == chunk
        ref = writer.commit()
        assert ref
        reader = storage.open_body(ref)
        assert reader
        offset = 0
        while part := reader.read(offset, 65_536):
            offset += len(part)
        assert offset == 48 * MIB
        assert tracemalloc.get_traced_memory()[1] < 5 * MIB
        reader.close()
        follower.close()
    finally:
        tracemalloc.stop()


def test_opening_looks_at_nothing_that_is_stored(make: Make) -> None:
    storage = make()
    for number in range(20):
        assert store(storage, key(number), b"x")
    calls: list[str] = []
    with intercepted(calls.append):
        fresh = make()
        assert calls == []
        assert load(fresh, key(3)) == b"x"
    assert "listdir" not in calls
    assert len(calls) < 30


@pytest.mark.slow
def test_hits_and_stores_do_not_slow_down_with_the_number_of_entries(make: Make) -> None:
    storage = actors.quiet(make(clock=time.time, free_space_floor=0))
    number = 0

    def costs(entries: int) -> tuple[float, float]:
        nonlocal number
        while number < entries:
            storage.swap(key(number), None, Record((response(),)))
            number += 1
        fresh = actors.quiet(make(clock=time.time))
        names = (key(7 * turn % number) for turn in range(1000))
        return seconds(lambda: write_body(storage, KEY, bytes(1000)), 200), seconds(
            lambda: fresh.read(next(names)), 100
        )

    few, many = costs(100), costs(10_000)
    assert many[0] <= 1.5 * few[0]
    assert many[1] <= 1.5 * few[1]
