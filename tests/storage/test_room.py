"""Who is given room, and for whom it is made."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import pytest

from tests.storage.actors import quiet
from tests.storage.conftest import Make
from tests.storage.helpers import (
    MIB,
    a_sweep,
    is_quiet,
    key,
    patched,
    store,
    stored_keys,
)
from vllm_http_cache.storage import room
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import Home
from vllm_http_cache.storage.toolbox import usage

KEY = key("room")


def filled(make: Make) -> FileStorage:
    """With entries of 7.9 MiB, of ten."""
    storage = make(max_size=10 * MIB)
    number = 0
    while usage(storage).used < 7.9 * MIB:
        assert store(storage, key(number), bytes(100_000))
        number += 1
    assert is_quiet(storage)
    return storage


def test_while_much_is_reserved_entries_are_not_looked_at_for_each_store(make: Make) -> None:
    storage = filled(make)
    looks: list[str] = []
    by_use = sweeping._by_use

    def look(home: Home, folder: str, *arguments: Any) -> object:
        looks.append(folder)
        return by_use(home, folder, *arguments)

    writer = storage.create_body(KEY, int(1.5 * MIB))
    assert writer
    with patched(sweeping, "_by_use", look):
        for number in range(50):
            assert store(storage, key(("more", number)), b"x")
    assert looks.count("00") <= 1


def test_room_is_made_for_those_only_who_can_have_it_together(make: Make) -> None:
    storage = filled(make)
    storage._room._waiting.update({object(): 6 * MIB for _ in range(8)})
    storage._room._janitor.ask()
    assert 2.5 * MIB < usage(storage).used < 4 * MIB, "room for one of them, and some to spare"


def test_room_is_made_for_one_of_those_who_had_no_time_to_wait(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = filled(make)
    monkeypatch.setattr(room, "PATIENCE", 0.0)
    with patched(storage._room._janitor, "ask", lambda: None):
        assert [storage.create_body(key(("large", number)), 6 * MIB) for number in range(3)] == [None] * 3
    storage._room._janitor.ask()
    assert 2.5 * MIB < usage(storage).used < 4 * MIB
    with patched(storage._room._janitor, "ask", lambda: None):
        writer = storage.create_body(KEY, 6 * MIB)
        assert writer
        writer.abort()
        for number in range(40):
            assert store(storage, key(("more", number)), bytes(100_000))
    storage._room._janitor.ask()
    assert usage(storage).used > 6 * MIB, "and not once more"


def test_nobody_waits_for_what_is_reserved_by_the_living(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 60.0)
    storage = make(max_size=10 * MIB)
    writer = storage.create_body(key(1), 8 * MIB)
    assert writer
    start = time.monotonic()
    assert storage.create_body(KEY, 5 * MIB) is None
    assert time.monotonic() - start < 30
    writer.abort()


def test_eviction_ends_when_nobody_wants_the_room_any_more(storage: FileStorage) -> None:
    names = [f"{number:02x}{key(number)[2:]}" for number in range(20)]
    assert all(store(storage, name, b"x") for name in names)
    assert is_quiet(storage)
    goals = [0]
    turns = a_sweep(storage).evict(lambda page: goals[0])
    assert next(turns) > 0
    goals[0] = MIB
    assert list(turns) == []
    assert len(stored_keys(storage)) == 19


def test_eviction_goes_on_while_everything_is_looked_through(make: Make) -> None:
    storage = quiet(filled(make))
    place = storage._access.place
    assert place
    with place.ledger.locked() as page:
        page.sweep = 0
        place.ledger.save(page)
    tidying = storage._room._tidy_alone(place)
    assert len(list(islice(tidying, 100))) == 100
    number = 0
    while usage(storage).used < 9.5 * MIB:
        assert store(storage, key(("more", number)), bytes(100_000))
        number += 1
    assert len(list(islice(tidying, 50))) == 50
    assert usage(storage).used < 8.5 * MIB
