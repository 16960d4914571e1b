"""Fixtures for the tests of the storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from vllm_http_cache.storage import access
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.janitor import Janitor

Make = Callable[..., FileStorage]

settings.register_profile("fuzz", max_examples=3000, deadline=None)


class Clock:
    """The time of day, moved by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture(autouse=True)
def _prompt_janitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks the janitor goes on when it is done, so that no test depends on which of the two is faster."""
    ask = Janitor.ask

    def ask_and_wait(janitor: Janitor) -> None:
        ask(janitor)
        thread = janitor._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)

    monkeypatch.setattr(Janitor, "ask", ask_and_wait)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Iterator[Make]:
    """Makes storages on one folder, each as another process would, and closes them."""
    made: list[FileStorage] = []

    def make(path: Path | None = None, **options: Any) -> FileStorage:
        options.setdefault("clock", clock)
        storage = FileStorage(path or tmp_path / "cache", **options)
        made.append(storage)
        return storage

    yield make
    for storage in made:
        storage.close()


@pytest.fixture
def storage(make: Make) -> FileStorage:
    return make()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be opened is tried again at once."""
    monkeypatch.setattr(access, "RETRY_SECONDS", 0.0)
