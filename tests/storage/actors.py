"""What other processes do in the tests: started from a clean server, so that no thread is there to be forked."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.storage.faults import Nth, die, intercepted
from tests.storage.helpers import key, load, response, store, write_body
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import sweep, trim

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.storage.actors"])

OLD, NEW = b"old" * 1000, b"new" * 50_000
KEY, FLIGHT = key("actors"), key("actors' flight")


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = _processes.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def run(target: Callable[..., None], *arguments: Any) -> int | None:
    """Exit code of the target; negative: the signal that killed it."""
    process = start(target, *arguments)
    process.join(30)
    return process.exitcode


def quiet(storage: FileStorage) -> FileStorage:
    """Without a janitor, so that the system calls are those of the operation."""
    storage._room._janitor.ask = lambda: None  # type: ignore[method-assign]
    return storage


# Operations to be killed in.


def replacing(storage: FileStorage) -> None:
    """An entry takes another's place, in sight of others."""
    writer = storage.create_body(KEY, None)
    assert writer
    writer.write(NEW[:70_000])
    writer.publish(FLIGHT, response(tag="new"))
    writer.write(NEW[70_000:])
    ref = writer.commit()
    assert ref
    storage.swap(KEY, storage.read(KEY), Record((response(ref, tag="new"),)))


def forgetting(storage: FileStorage) -> None:
    storage.forget(KEY)


def giving_up(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, 100_000)
    assert writer
    writer.write(bytes(50_000))
    writer.abort()


def trimming(storage: FileStorage) -> None:
    trim(storage, 0)


def sweeping(storage: FileStorage) -> None:
    write_body(storage, KEY, b"loose")
    storage.forget(key(1))
    sweep(storage)


def closing(storage: FileStorage) -> None:
    writer = storage.create_body(KEY, 100_000)
    assert writer
    storage.close()


def die_in(path: Path, operation: Callable[[FileStorage], None], nth: int) -> None:
    """Be killed at the nth system call of an operation; exit with 0 when it has fewer."""
    storage = quiet(FileStorage(path, max_size=10 * 1024 * 1024, free_space_floor=0))
    with intercepted(Nth(nth, die)):
        operation(storage)
    os._exit(0)


# Others.


def store_as_member(path: Path, user: int, nth: int) -> None:
    """Store as one of a group, and be killed when the nth file or folder is about to be shared with it."""
    os.setgroups([])
    os.setgid(12345)
    os.setuid(user)
    os.umask(0o077)
    storage = quiet(FileStorage(path, group=True))
    with intercepted(Nth(nth, die, only="fchmod")):
        assert storage.claim(FLIGHT)
        assert store(storage, KEY, NEW)
        sweep(storage)
    assert trim(storage, 0)
    os._exit(0)


def write_and_wait(path: Path, size: int) -> None:
    """Be in the middle of a body until killed."""
    storage = FileStorage(path)
    claim = storage.claim(FLIGHT)
    writer = storage.create_body(KEY, None)
    assert writer
    writer.write(bytes(size))
    writer.publish(FLIGHT, response())
    (Path(path).parent / f"ready-{os.getpid()}").touch()
    signal.pause()
    assert claim


def hold(path: Path, name: str) -> None:
    """Hold the lock of a file of the cache until killed."""
    fd = os.open(path / ".vllm-http-cache/v1" / name, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    (path.parent / f"ready-{os.getpid()}").touch()
    signal.pause()


def store_one(path: Path, name: str, data: bytes) -> None:
    storage = FileStorage(path)
    assert store(storage, name, data)
    storage.close()


def expect(path: Path, name: str, data: bytes | None) -> None:
    storage = FileStorage(path)
    assert load(storage, name) == data
    storage.close()


def write_fork_and_wait(path: Path) -> None:
    """Be in the middle of a body, with a child that has been forked since."""
    storage = quiet(FileStorage(path))
    writer = storage.create_body(KEY, 100_000)
    assert writer
    writer.write(bytes(50_000))
    claim = storage.claim(FLIGHT)
    assert claim
    if not os.fork():
        (path.parent / "almost").write_text(str(os.getpid()))
        (path.parent / "almost").rename(path.parent / "ready")
    signal.pause()


def write_slowly(path: Path, source: Path) -> None:
    storage = FileStorage(path)
    writer = storage.create_body(KEY, None)
    assert writer
    data = source.read_bytes()
    for start in range(0, len(data), 100_000):
        assert writer.write(data[start : start + 100_000])
        writer.publish(FLIGHT, response())
        time.sleep(0.002)
    ref = writer.commit()
    assert ref
    storage.swap(KEY, None, Record((response(ref),)))
    storage.close()
