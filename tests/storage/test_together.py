"""Threads, forks and other processes on one folder."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import MIB, eventually, key, ledger_is_exact, load, patched, response, store, v1, write_body
from vllm_http_cache.storage import claims as claiming
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import sweep, usage

KEY, FLIGHT = key("together"), key("together's flight")


def in_threads(*targets: Callable[[], None]) -> None:
    """Run all at once; the first exception comes out."""
    errors: list[BaseException] = []

    def run(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]


# Threads.


def test_threads_share_a_storage(storage: FileStorage) -> None:
    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            for turn in range(15):
                name = key((number * turn) % 7)
                ref = write_body(storage, name, bytes([number]) * 50_000)
                assert ref
                while not storage.swap(name, storage.read(name), Record((response(ref),))):
                    pass
                data = load(storage, name)
                assert data is None or (len(data) == 50_000 and len(set(data)) == 1)

        return run

    in_threads(*(work(number) for number in range(6)))
    assert usage(storage).reserved == 0
    assert ledger_is_exact(storage)


def test_of_all_who_swap_at_once_one_wins(make: Make) -> None:
    storages = [make(), make(), make()]
    assert storages[0].swap(KEY, None, Record((response(tag="0"),)))
    barrier = threading.Barrier(6)
    won: list[int] = []

    def swap(number: int, seen: Record | None) -> None:
        barrier.wait()
        if storages[number // 2].swap(KEY, seen, Record((response(tag=str(number)),))):
            won.append(number)

    for _ in range(10):
        won.clear()
        in_threads(*(partial(swap, number, storages[number // 2].read(KEY)) for number in range(6)))
        assert len(won) == 1
        record = storages[0].read(KEY)
        assert record
        assert record.responses[0].fields.get("etag") == f'"{won[0]}"'


# Forks.


def in_child(work: Callable[[], None]) -> bool:
    """Whether the work succeeds in a forked child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def test_a_child_works_on_its_own(make: Make, tmp_path: Path) -> None:
    storage = actors.quiet(make())
    assert store(storage, KEY, b"parent's")
    place = storage._access.place
    assert place
    slot = place.ledger.slot
    assert slot

    def work() -> None:
        assert load(storage, KEY) == b"parent's"
        assert store(storage, key(2), b"child's")
        mine = storage._access.place
        assert mine and mine.ledger.slot
        assert mine.ledger.slot.number != slot.number, "two writers, two slots"

    assert in_child(work)
    assert load(storage, key(2)) == b"child's"
    assert store(storage, key(3), b"x")
    assert place.alive
    assert place.ledger.slot is slot


def test_a_child_leaves_the_parents_bodies_alone(make: Make) -> None:
    storage = actors.quiet(make())
    assert store(storage, KEY, b"x")
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"parent's ")

    def work() -> None:
        assert not writer.write(b"child's")
        assert writer.commit() is None
        writer.abort()
        assert store(storage, key(2), b"y")

    assert in_child(work)
    assert writer.write(b"only")
    ref = writer.commit()
    assert ref
    assert storage.swap(KEY, storage.read(KEY), Record((response(ref),)))
    assert load(storage, KEY) == b"parent's only"
    assert usage(storage).reserved == 0


def test_a_child_lets_go_of_a_claim_while_its_parent_makes_another(make: Make) -> None:
    storage = actors.quiet(make())
    claim = storage.claim(FLIGHT)
    place = storage._access.place
    assert claim and place

    def work() -> None:
        signal.alarm(10)
        claim.release()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(place.claims._lock.acquire).result()
        ended = in_child(work)
        place.claims._lock.release()
    assert ended
    assert make().claim(FLIGHT) is None, "the parent's"


def test_a_child_does_not_keep_its_dead_parents_locks(make: Make, tmp_path: Path) -> None:
    """A forked process keeps what is locked locked, unless it closes it."""
    path = tmp_path / "cache"
    assert store(make(path), key(1), b"x")
    parent = actors.start(actors.write_fork_and_wait, path)
    assert eventually((tmp_path / "ready").exists)
    child = int((tmp_path / "ready").read_text())
    try:
        storage = make(path)
        assert storage.claim(actors.FLIGHT) is None
        parent.kill()
        parent.join()
        assert storage.claim(actors.FLIGHT) is not None
        sweep(storage)
        assert usage(storage).reserved == 0
        assert list(v1(path).glob("writers/*.d/*")) == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_fork_in_the_middle_of_everything(make: Make) -> None:
    """While other threads hold every lock there is."""
    storage = make()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            store(storage, KEY, bytes(1000))
            claim = storage.claim(FLIGHT)
            if claim is not None:
                claim.release()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(15):
            assert in_child(lambda number=number: exit_unless(store(storage, key(number), b"child")))  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert store(storage, KEY, b"x")


def exit_unless(done: bool) -> None:
    assert done


# Claims.


def test_one_process_has_a_flight(make: Make) -> None:
    one, two = make(), make()
    claim = one.claim(FLIGHT)
    assert claim
    assert two.claim(FLIGHT) is None
    other = two.claim(key("another flight"))
    assert other
    claim.release()
    again = two.claim(FLIGHT)
    assert again
    claim.release()
    assert one.claim(FLIGHT) is None, "a second release releases nobody else's"
    assert two.claim(FLIGHT) is None, "nor does a process have it twice"
    again.release()
    other.release()


def test_a_claim_that_nobody_has_any_more_is_free(make: Make) -> None:
    """A signal's handler may have raised in whoever was about to take it."""
    one, other = make(), make()
    assert one.claim(KEY)
    held = one.claim(KEY)
    assert held
    assert other.claim(KEY) is None
    held.release()
    assert other.claim(KEY)


def test_a_claim_that_could_not_be_made_frees_nobodys(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = make(), make()
    one.open()
    place = one._access.place
    assert place
    failure: OSError | None = None
    with monkeypatch.context() as patch:
        patch.setattr(place.claims, "_set", lambda kind, offset: fail(errno.ENOLCK)())
        try:
            place.claims.take(KEY)
        except OSError as error:
            failure = error  # and with it the frames of the call
    assert failure
    held = one.claim(KEY)
    del failure
    gc.collect()
    assert one.claim(key("another"))
    assert other.claim(KEY) is None
    assert held


def test_a_claim_goes_with_the_storage(make: Make) -> None:
    one, two = make(), make()
    claim = one.claim(FLIGHT)
    assert claim
    one.close()
    assert two.claim(FLIGHT)
    claim.release()
    assert make().claim(FLIGHT) is None


def test_a_thousand_flights_at_once(make: Make) -> None:
    one, two = make(), make()
    claims = [one.claim(key(number)) for number in range(1000)]
    assert None not in claims
    assert not any(two.claim(key(number)) for number in range(1000))
    for claim in claims:
        assert claim
        claim.release()
    assert all(two.claim(key(number)) for number in range(1000))


def test_where_locks_are_of_files_a_flight_is_claimed_all_the_same(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_SINGLE_OCTETS", False)
    one, two = make(), make()
    claim = one.claim(FLIGHT)
    assert claim
    assert two.claim(FLIGHT) is None
    claim.release()
    assert two.claim(FLIGHT)
    assert one.claim(FLIGHT), "nobody has kept the last one"


@pytest.mark.parametrize("code", [None, errno.ESTALE], ids=["replaced", "stale"])
def test_claims_survive_the_file_they_are_made_in(make: Make, tmp_path: Path, code: int | None) -> None:
    one, two = make(), make()
    claim = one.claim(FLIGHT)
    assert claim
    (v1(tmp_path / "cache") / "claims").unlink()
    (v1(tmp_path / "cache") / "claims").touch()
    with intercepted(Nth(1, fail(code), only="fstat") if code else lambda name: None):
        other = one.claim(key("another flight"))
    assert other
    assert two.claim(FLIGHT) is None
    assert two.claim(key("another flight")) is None
    claim.release()
    assert two.claim(FLIGHT)


def test_what_cannot_be_claimed_is_everybodys(make: Make) -> None:
    """Locks save work, nothing else."""

    def refuse(*arguments: object) -> None:
        raise OSError(37, "no locks")

    with patched(fcntl, "fcntl", refuse):
        assert make().claim(FLIGHT) is not None
        assert make().claim(FLIGHT) is not None


def test_a_large_body_is_followed_across_processes(make: Make, tmp_path: Path) -> None:
    storage = make()
    data = os.urandom(3 * MIB)
    (tmp_path / "data").write_bytes(data)
    writer = actors.start(actors.write_slowly, tmp_path / "cache", tmp_path / "data")
    assert eventually(lambda: storage.growing(actors.FLIGHT))
    growing = storage.growing(actors.FLIGHT)
    assert growing
    got = b""

    def finished() -> bool:
        nonlocal got
        ended = growing.ended()
        part = growing.read(len(got), MIB)
        got += part
        return ended is True and not part

    assert eventually(finished)
    assert got == data
    growing.close()
    writer.join()
    assert load(storage, actors.KEY) == data
