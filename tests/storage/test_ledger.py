"""The ledger: what makes it untrue, and how it becomes true again without the bound being passed."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

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
    occupied,
    patched,
    reserved,
    store,
    v1,
)
from vllm_http_cache.storage import ledger, slots
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.sweep import count as counted
from vllm_http_cache.storage.toolbox import sweep, usage

KEY = key("ledger")


@pytest.mark.parametrize("junk", [None, b"", b"\0" * 4096, b"x" * 100, os.urandom(4096), b"\0" * 100_000], ids=range(6))
def test_the_ledger_is_made_anew_from_the_folder(make: Make, tmp_path: Path, junk: bytes | None) -> None:
    storage = make(max_size=20 * MIB)
    for number in range(30):
        assert store(storage, key(number), bytes(10_000 * number))
    used = usage(storage).used
    file = v1(tmp_path / "cache") / "ledger"
    if junk is None:
        file.unlink()
    else:
        file.write_bytes(junk)
    assert eventually(lambda: store(storage, KEY, b"x"))
    assert ledger_is_exact(storage)
    assert usage(storage).used >= used
    assert load(storage, key(3)) == bytes(30_000), "and nothing else was lost"
    assert file.stat().st_size == 4096 or junk is not None


def test_a_flipped_bit_in_the_ledger_is_noticed(make: Make, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    file = v1(tmp_path / "cache") / "ledger"
    for position in range(0, 4096, 97):
        data = bytearray(file.read_bytes())
        data[position] ^= 0x40
        assert not ledger.Page(bytes(data)).valid()


@pytest.mark.parametrize("value", [0, 2**40, 2**62, 2**64 - 1])
@pytest.mark.parametrize("field", ["used", "reserved"])
def test_a_sum_that_is_not_that_of_its_parts_is_damage(make: Make, tmp_path: Path, field: str, value: int) -> None:
    storage = make(max_size=20 * MIB)
    writer = storage.create_body(KEY, 1)
    assert writer
    file = v1(tmp_path / "cache") / "ledger"
    page = ledger.Page(file.read_bytes())
    setattr(page, field, value)
    file.write_bytes(page.sealed())
    writer.abort()
    assert store(make(max_size=20 * MIB), key(1), bytes(100))
    assert ledger_is_exact(storage)
    assert reserved(storage) == 0


@pytest.mark.parametrize("offset, field", [(ledger._ACCOUNTS, "used"), (ledger._RESERVED, "reserved")])
def test_a_sum_that_nothing_could_be_added_to_is_damage(offset: int, field: str) -> None:
    page = ledger.Page()
    page.raw[offset : offset + 8] = bytes([255] * 8)
    setattr(page, field, 2**64 - 1)
    assert not ledger.Page(bytes(page.sealed())).valid()


def test_more_folders_counted_than_there_are_is_damage() -> None:
    page = ledger.Page()
    page.counted = ledger.ALL
    assert ledger.Page(bytes(page.sealed())).valid()
    page.counted += 1
    assert not ledger.Page(bytes(page.sealed())).valid()


def test_no_amount_is_more_than_a_page_can_say() -> None:
    """A file may say that it has any number of octets."""
    page = ledger.Page()
    for number in range(ledger.HOME + 1):
        page.set_account(number, 2**70)
    for number in range(ledger.SLOTS):
        page.set_reservation(number, 2**70)
    assert ledger.Page(bytes(page.sealed())).valid()
    page.set_account(0, -1)
    page.set_reservation(0, -1)
    assert ledger.Page(bytes(page.sealed())).valid()


def test_while_it_has_not_been_counted_nothing_is_stored(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=MIB)
    for number in range(5):
        assert store(storage, key(number), bytes(100_000))
    assert is_quiet(storage)
    (v1(tmp_path / "cache") / "ledger").unlink()
    with patched(storage._room._janitor, "ask", lambda: None):
        assert storage.create_body(KEY, 1) is None
    assert eventually(lambda: store(storage, KEY, b"x"))


def test_counting_begins_anew_when_it_has_to_meanwhile(make: Make, tmp_path: Path) -> None:
    """Another process has lost the ledger, say, or has changed a folder while there was none."""
    storage = make()
    for number in range(100):
        assert store(storage, key(number), bytes(10_000))
    used = usage(storage).used
    place = storage._access.place
    assert place
    (v1(tmp_path / "cache") / "ledger").unlink()
    folders: list[int] = []
    count = place.ledger.count

    def remove_in_the_middle(page: ledger.Page, folder: int) -> None:
        count(page, folder)
        folders.append(folder)
        if len(folders) == 200:
            (v1(tmp_path / "cache") / "ledger").unlink()

    with patched(place.ledger, "count", remove_in_the_middle):
        counted(place.ledger)
    assert len(folders) > 400
    assert usage(storage).used >= used
    assert ledger_is_exact(storage)


def test_a_boot_of_the_machine_has_everything_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A page from before a power failure may not fit the files that came through it."""
    storage = make()
    for number in range(20):
        assert store(storage, key(number), bytes(50_000))
    old = (v1(tmp_path / "cache") / "ledger").read_bytes()
    for number in range(20, 40):
        assert store(storage, key(number), bytes(50_000))
    used = usage(storage).used
    storage.close()
    (v1(tmp_path / "cache") / "ledger").write_bytes(old)
    monkeypatch.setattr(ledger, "boot", lambda: 42)
    rebooted = make()
    assert eventually(lambda: store(rebooted, KEY, b"x"))
    assert usage(rebooted).used >= used
    assert ledger_is_exact(rebooted)


def test_another_view_of_the_same_boot_is_no_boot(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Containers of one machine may each have a number of their own for it."""
    monkeypatch.setattr(ledger, "boot", lambda: 1)
    monkeypatch.setattr(slots, "boot", lambda: 1)
    one = make()
    assert store(one, KEY, b"x")
    monkeypatch.setattr(ledger, "boot", lambda: 2)
    monkeypatch.setattr(slots, "boot", lambda: 2)
    two = make()
    with patched(two._room._janitor, "ask", lambda: None), patched(one._room._janitor, "ask", lambda: None):
        assert store(two, key(2), b"y"), "nothing need be counted"
        assert store(one, key(3), b"z")
    one.close()
    monkeypatch.setattr(ledger, "boot", lambda: 3)
    with patched(two._room._janitor, "ask", lambda: None):
        assert store(two, key(4), b"y"), "it need not be asked again"
    rebooted = make()
    with patched(rebooted._room._janitor, "ask", lambda: None):
        assert not store(rebooted, key(5), b"y"), "the one that knew it by this number lives no more"
    assert eventually(lambda: store(rebooted, key(5), b"y"))


def test_a_process_that_died_while_it_changed_a_folder_leaves_a_mark(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, bytes(50_000))
    place = storage._access.place
    assert place
    (body,) = body_files(tmp_path / "cache")
    with place.ledger.locked() as page:
        page.changing = int(KEY[:2], 16)
        place.ledger.save(page)
        body.unlink()
    assert store(storage, key(2), b"x")
    assert ledger_is_exact(storage)


def test_what_others_remove_is_counted_at_the_next_look(storage: FileStorage, tmp_path: Path) -> None:
    for number in range(20):
        assert store(storage, key(number), bytes(50_000))
    for file in body_files(tmp_path / "cache")[:10]:
        file.unlink()
    sweep(storage)
    assert ledger_is_exact(storage)


def test_the_reservation_of_a_living_writer_survives_the_ledger(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=20 * MIB)
    writer = storage.create_body(KEY, 10 * MIB)
    assert writer
    assert writer.write(bytes(MIB))
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert eventually(lambda: store(storage, key(1), b"x"))
    assert reserved(storage) >= 10 * MIB
    assert make(max_size=20 * MIB).create_body(key(2), 11 * MIB) is None
    assert writer.write(bytes(9 * MIB))
    assert writer.commit()
    assert reserved(storage) == 0


@pytest.mark.parametrize("junk", [None, b"", b"x" * 4096], ids=["gone", "empty", "damaged"])
@pytest.mark.parametrize("who", ["a running process", "a new one"])
def test_room_that_a_living_writer_has_yet_to_fill_is_not_given_away_with_the_ledger(
    make: Make, tmp_path: Path, who: str, junk: bytes | None
) -> None:
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    writer = one.create_body(KEY, 10 * MIB)
    assert writer
    assert store(two, key(1), b"x")
    file = v1(tmp_path / "cache") / "ledger"
    file.unlink() if junk is None else file.write_bytes(junk)
    other = two if who == "a running process" else make(max_size=20 * MIB)
    assert eventually(lambda: store(other, key(2), b"x"))
    assert other.create_body(key(3), 10 * MIB) is None
    assert writer.write(bytes(10 * MIB))
    assert writer.commit()
    assert reserved(other) == 0


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_where_nobody_knows_what_a_writer_has_reserved_nothing_is_granted_until_it_says(
    make: Make, tmp_path: Path, how: str
) -> None:
    """Its file has gone together with the ledger."""
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    writer = one.create_body(KEY, 10 * MIB)
    assert writer
    (file,) = (path for path in v1(tmp_path / "cache").glob("writers/*") if path.is_file())
    file.unlink() if how == "removed" else os.truncate(file, 0)
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert two.create_body(key(2), 1) is None
    assert writer.write(bytes(10 * MIB))
    assert writer.commit()
    assert store(two, key(2), b"x")


def test_what_is_reserved_in_a_ledger_that_has_just_gone_is_not_granted(make: Make, tmp_path: Path) -> None:
    """Another process may have made one anew, and read what this one had noted, meanwhile."""
    one, two = actors.quiet(make(max_size=20 * MIB)), make(max_size=20 * MIB)
    assert store(one, KEY, b"x")
    place = one._access.place
    assert place
    before = place.ledger.held
    with place.ledger.locked() as page:
        (v1(tmp_path / "cache") / "ledger").unlink()
        assert eventually(lambda: store(two, key(2), b"x"))
        writer = two.create_body(key(2), 12 * MIB)
        assert writer
        assert not place.ledger.reserve(page, 12 * MIB, 20 * MIB)
    assert place.ledger.held == before
    assert usage(two).reserved < 13 * MIB
    writer.abort()


def test_what_is_moved_in_a_ledger_that_has_just_gone_is_counted(make: Make, tmp_path: Path) -> None:
    one, two = actors.quiet(make(max_size=20 * MIB)), make(max_size=20 * MIB)
    assert store(one, KEY, b"x")
    writer = one.create_body(key(1), 12 * MIB)
    assert writer
    assert writer.write(bytes(12 * MIB))
    place = one._access.place
    assert place

    def renew() -> None:
        (v1(tmp_path / "cache") / "ledger").unlink()
        assert eventually(lambda: store(two, key(2), b"x"))

    with intercepted(Nth(1, renew, only="rename")):
        assert writer.commit()
    assert usage(two).reserved > 12 * MIB, "until it says that it is no more, and that all has to be counted"
    with place.ledger.locked() as page:
        assert page.reserved == page.counted == 0
    assert two.create_body(key(3), 12 * MIB) is None


@pytest.mark.parametrize("how", ["moved", "linked"])
def test_a_ledger_that_lies_elsewhere_now_is_not_kept(make: Make, tmp_path: Path, how: str) -> None:
    """A backup of hard links still has it, and so has the process."""
    one, two = make(max_size=4 * MIB), make(max_size=4 * MIB)
    assert store(one, KEY, bytes(MIB))
    file = v1(tmp_path / "cache") / "ledger"
    if how == "linked":
        (tmp_path / "backup").hardlink_to(file)
        file.unlink()
    else:
        file.rename(tmp_path / "backup")
    assert eventually(lambda: store(two, key(2), bytes(MIB)))
    for number in range(6):
        store(one, key(number), bytes(600_000))
        store(two, key(-number), bytes(600_000))
        assert occupied(tmp_path / "cache") <= 4 * MIB
    assert usage(one) == usage(two)
    assert ledger_is_exact(one)


@pytest.mark.parametrize("name", ["flock", "stat"])
def test_a_ledger_that_another_host_has_replaced_is_opened_again(storage: FileStorage, name: str) -> None:
    assert store(storage, KEY, b"x")
    place = storage._access.place
    assert place
    fault = Nth(1, fail(errno.ESTALE), only=name)
    with intercepted(fault), place.ledger.locked() as page:
        assert page.used
    assert fault.happened


def test_what_the_dead_have_announced_is_counted(make: Make, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    storage.forget(KEY)
    sweep(storage)
    (v1(tmp_path / "cache") / "growing" / KEY).write_bytes(bytes(100_000))
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert usage(storage).used >= occupied(tmp_path / "cache") > 100_000
    sweep(storage)
    assert usage(storage).used < 100_000
    assert ledger_is_exact(storage)


def test_a_note_that_is_damaged_costs_nothing_for_long(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=4 * MIB)
    assert store(storage, KEY, b"x")
    for number in range(ledger.SLOTS):
        (v1(tmp_path / "cache") / "writers" / str(number)).write_bytes(b"\xff" * 16)
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert eventually(lambda: store(storage, key(1), b"x"))
    sweep(storage)
    assert ledger_is_exact(storage)
    assert reserved(storage) == 0


@pytest.mark.parametrize("after", ["acquire", "flock", "pread", "release"])
def test_a_signal_between_any_two_steps_leaves_it_open_to_others(storage: FileStorage, after: str) -> None:
    storage.open()
    place = storage._access.place
    assert place

    def interrupt(frame: object, event: str, argument: Any) -> None:
        if event == "c_return" and argument.__name__ == after:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), place.ledger.locked():
            pass
    finally:
        sys.setprofile(None)
    stored: list[bool] = []
    thread = threading.Thread(target=lambda: stored.append(store(storage, KEY, b"x")))
    thread.start()
    thread.join(10)
    assert stored == [True]


def test_a_signals_handler_does_not_enter_it_once_more(storage: FileStorage) -> None:
    assert store(storage, KEY, b"x")
    place = storage._access.place
    assert place
    with place.ledger.locked():
        with pytest.raises(TimeoutError), place.ledger.locked():
            pass
        assert not store(storage, key(1), b"y")
    assert store(storage, key(1), b"y")
