"""What a stream and an opening may cost, in memory and in calls of the system."""

from __future__ import annotations

import os
import tracemalloc

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import intercepted
from tests.storage.helpers import MIB, key, load, store
from vllm_http_cache.storage.files import FileStorage

KEY = key("cost")


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
    storage = actors.quiet(make())
    for number in range(20):
        assert store(storage, key(number), b"x")
    calls: list[str] = []
    with intercepted(calls.append):
        fresh = make()
        assert calls == []
        assert load(fresh, key(3)) == b"x"
    assert "listdir" not in calls
    assert len(calls) < 30
