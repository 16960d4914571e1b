"""Many processes on one small folder, killed at random, watched from outside: ``python -m tests.stress --seed 1``.

Writers store, validate, remove, sweep and give up half-way; readers check every octet against what its response says
it must be. The observer kills one of them every few milliseconds, and now and then stops all of them to count, as
``du`` would, what the folder occupies. At the end it looks for what should not have been left behind.

Prints what happened; the exit status is 1 if anything did that must not.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import logging
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.folders import standing_still
from tests.storage.helpers import MIB, key, ledger_is_exact, occupied, read_body, response, v1
from vllm_http_cache.rfc9111.message import StoredResponse
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import sweep, usage, verify

SIZES = (0, 0, 100, 5_000, 5_000, 100_000, 100_000, 700_000, 1_500_000)
KEYS = [key(number) for number in range(60)]
FLIGHTS = [key(f"flight {number}") for number in range(8)]


@dataclass(frozen=True)
class Plan:
    path: str
    seed: int
    seconds: float
    bound: int
    writers: int
    readers: int
    lying: bool
    log: str
    kills: int
    losing: bool = False

    def note(self, violation: str) -> None:
        with Path(self.log).open("a", encoding="utf-8") as log:
            log.write(violation + "\n")


class Board:
    """Memory that all processes share: what each worker has done, its lives, and who holds each claim."""

    OPERATIONS, STORED, REFUSED = range(3)

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, 8 * (4 * workers + len(FLIGHTS)))
        self._workers = workers

    def _slot(self, index: int, value: int | None = None) -> int:
        if value is not None:
            struct.pack_into("<q", self._memory, 8 * index, value)
        return int(struct.unpack_from("<q", self._memory, 8 * index)[0])

    def total(self, kind: int) -> int:
        return sum(self._slot(4 * worker + kind) for worker in range(self._workers))

    def count(self, worker: int, kind: int) -> None:
        self._slot(4 * worker + kind, self._slot(4 * worker + kind) + 1)

    def life(self, worker: int, value: int | None = None) -> int:
        return self._slot(4 * worker + 3, value)

    def holder(self, flight: int, value: int | None = None) -> int:
        return self._slot(4 * self._workers + flight, value)


def content(name: str, tag: str) -> bytes:
    """What the body of a response with this entity tag must be."""
    length = int(tag.partition("-")[2])
    seed = hashlib.sha256(f"{name} {tag}".encode()).digest()
    return (seed * (length // 32 + 1))[:length]


def tag_of(stored: StoredResponse) -> str:
    return (stored.fields.get("etag") or "").strip('"')


class Worker:
    """One process's random life."""

    def __init__(self, plan: Plan, board: Board, number: int, life: int) -> None:
        logging.disable()
        if plan.lying:
            fcntl.flock = lambda fd, operation: None
        self.plan = plan
        self.board = board
        self.number = number
        self.life = life
        self.random = random.Random(f"{plan.seed} {number} {life}")
        self.storage = FileStorage(plan.path, max_size=plan.bound, free_space_floor=0)

    def live(self, actions: list[Callable[[], None]]) -> None:
        end = time.monotonic() + self.plan.seconds + 60
        while time.monotonic() < end:
            self.random.choice(actions)()
            self.board.count(self.number, Board.OPERATIONS)

    def violation(self, what: str) -> None:
        self.plan.note(f"worker {self.number}: {what}")

    # What writers do.

    def store(self) -> None:
        name = self.random.choice(KEYS)
        length = self.random.choice(SIZES)
        tag = f"{self.random.getrandbits(32):08x}-{length}"
        writer = self.storage.create_body(name, self.random.choice((length, None)))
        if writer is None:
            self.board.count(self.number, Board.REFUSED)
            return
        data = content(name, tag)
        flight = self.random.choice(FLIGHTS)
        for start in range(0, length, 200_000):
            if not writer.write(data[start : start + 200_000]):
                self.board.count(self.number, Board.REFUSED)
                writer.abort()
                return
            if self.random.random() < 0.2:
                writer.publish(flight, response(tag=f"{name}/{tag}"))
        if self.random.random() < 0.1:
            writer.abort()
            return
        ref = writer.commit()
        if ref is not None:
            seen = self.storage.read(name)
            others = seen.responses[-1:] if seen and self.random.random() < 0.3 else ()
            self.storage.swap(name, seen, Record((*others, response(ref, tag=tag))))
            self.board.count(self.number, Board.STORED)

    def validate(self) -> None:
        name = self.random.choice(KEYS)
        seen = self.storage.read(name)
        if seen is not None:
            fresh = tuple(replace(stored, confirmed=time.time()) for stored in seen.responses)
            self.storage.swap(name, seen, Record(fresh))

    def forget(self) -> None:
        self.storage.forget(self.random.choice(KEYS))

    def sweep(self) -> None:
        with suppress(TimeoutError):
            sweep(self.storage)

    def claim(self) -> None:
        flight = self.random.randrange(len(FLIGHTS))
        claim = self.storage.claim(FLIGHTS[flight])
        if claim is None:
            return
        holder = self.board.holder(flight)
        if holder:
            worker, life = holder >> 32, holder & 0xFFFFFFFF
            if self.board.life(worker) == life and worker != self.number:
                self.violation(f"two claims on one flight, the other is worker {worker}'s")
        self.board.holder(flight, self.number << 32 | self.life)
        time.sleep(self.random.random() * 0.002)
        self.board.holder(flight, 0)
        claim.release()

    # What readers do.

    def check(self) -> None:
        name = self.random.choice(KEYS)
        record = self.storage.read(name)
        for stored in record.responses if record else ():
            tag = tag_of(stored)
            if stored.body is None or stored.body.length != int(tag.partition("-")[2]):
                self.violation(f"a torn record: {stored}")
            elif (data := read_body(self.storage, stored.body)) is not None and data != content(name, tag):
                self.violation(f"wrong octets under {name} {tag}")

    def follow(self) -> None:
        growing = self.storage.growing(self.random.choice(FLIGHTS))
        if growing is None:
            return
        name, _, tag = tag_of(growing.stored).partition("/")
        whole, got = content(name, tag), b""
        for _ in range(200):
            ended = growing.ended()
            data = growing.read(len(got), 65_536)
            got += data
            if not data and ended is not None:
                if ended and got != whole:
                    self.violation(f"a followed body is {len(got)} octets, not {len(whole)}")
                break
            if not data:
                time.sleep(0.0005)
        if not whole.startswith(got):
            self.violation("wrong octets in a growing body")
        growing.close()

    def writing(self) -> list[Callable[[], None]]:
        return [*[self.store] * 12, *[self.validate] * 4, self.forget, self.claim, self.claim, self.sweep, self.check]

    def reading(self) -> list[Callable[[], None]]:
        return [self.check, self.check, self.check, self.follow, self.claim]


class Observer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.workers = plan.writers + plan.readers
        self.board = Board(self.workers)
        self.random = random.Random(plan.seed)
        self.pids = [0] * self.workers
        self.kills = 0
        self.samples = 0
        self.peak = 0
        self.violations: list[str] = []

    def start(self, number: int) -> None:
        life = self.board.life(number) + 1
        self.board.life(number, life)
        pid = os.fork()
        if pid:
            self.pids[number] = pid
            return
        try:
            worker = Worker(self.plan, self.board, number, life)
            worker.live(worker.writing() if number < self.plan.writers else worker.reading())
        except BaseException as error:
            self.plan.note(f"worker {number}: {error!r}")
        finally:
            os._exit(1)

    def kill(self, number: int) -> None:
        self.board.life(number, self.board.life(number) + 1)
        os.kill(self.pids[number], signal.SIGKILL)
        _, status = os.waitpid(self.pids[number], 0)
        if not os.WIFSIGNALED(status):
            self.violations.append(f"worker {number} ended by itself")
        self.kills += 1

    def measure(self) -> None:
        with standing_still(self.pids):
            size = occupied(self.plan.path)
        self.samples += 1
        self.peak = max(self.peak, size)

    def run(self) -> None:
        for number in range(self.workers):
            self.start(number)
        end = time.monotonic() + self.plan.seconds
        while time.monotonic() < end or self.kills < self.plan.kills:
            if self.plan.losing:
                (v1(self.plan.path) / "ledger").unlink(missing_ok=True)
            time.sleep(self.random.random() * 0.03)
            self.measure()
            number = self.random.randrange(self.workers)
            self.kill(number)
            self.start(number)
        for number in range(self.workers):
            self.kill(number)
        self.look_after()

    def look_after(self) -> None:
        """What is left when all are dead, and the next process has tidied up."""
        if self.peak > self.plan.bound and not self.plan.lying:
            self.violations.append(f"the folder occupied {self.peak} octets, the bound is {self.plan.bound}")
        storage = FileStorage(self.plan.path, max_size=self.plan.bound, free_space_floor=0)
        sweep(storage)
        if usage(storage).reserved:
            self.violations.append(f"{usage(storage).reserved} octets stay reserved for the dead")
        if not ledger_is_exact(storage):
            self.violations.append("the ledger has drifted")
        left = [
            str(path) for path in (*v1(self.plan.path).glob("writers/*.d/*"), *v1(self.plan.path).glob("growing/*"))
        ]
        if left:
            self.violations.append(f"left behind: {left}")
        unsound = sum(not each.sound for each in verify(storage))
        if unsound and not self.plan.lying:
            self.violations.append(f"{unsound} records are damaged, or name bodies that are not there or not right")
        storage.close()

    def report(self) -> bool:
        if Path(self.plan.log).exists():
            self.violations += Path(self.plan.log).read_text(encoding="utf-8").splitlines()
        print(
            f"seed {self.plan.seed}: {self.board.total(Board.OPERATIONS)} operations"
            f" ({self.board.total(Board.STORED)} stored, {self.board.total(Board.REFUSED)} found no room),"
            f" {self.kills} kills, peak occupancy {self.peak} of {self.plan.bound} octets"
            f" ({self.peak / self.plan.bound:.1%}) in {self.samples} samples, {len(self.violations)} violations"
        )
        for violation in self.violations[:20]:
            print(" ", violation)
        return not self.violations


def stress(
    path: str,
    *,
    seed: int,
    seconds: float,
    bound: int = 10 * MIB,
    writers: int = 8,
    readers: int = 2,
    lying: bool = False,
    losing: bool = False,
    kills: int = 0,
) -> bool:
    """Whether nothing happened that must not. *path* is a folder of its own; *kills* are the fewest there must be."""
    plan = Plan(f"{path}/cache", seed, seconds, bound, writers, readers, lying, f"{path}/violations", kills, losing)
    observer = Observer(plan)
    try:
        observer.run()
    finally:
        for pid in observer.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return observer.report()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--bound", type=int, default=10 * MIB, help="octets that the folder may occupy")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--path", help="make the folder in this one (default: where temporary files go)")
    parser.add_argument("--lying", action="store_true", help="flock always says yes: what is read must still be right")
    parser.add_argument("--losing", action="store_true", help="somebody removes the ledger again and again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stress-", dir=given.path) as path:
        sound = stress(
            path,
            seed=given.seed,
            seconds=given.seconds,
            bound=given.bound,
            writers=given.writers,
            readers=given.readers,
            lying=given.lying,
            losing=given.losing,
        )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
