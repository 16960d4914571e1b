"""Fixtures: our storages under hishel's faces, hishel's storages under ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hishel import BaseStorage, SqliteStorage

from tests import origin
from tests.core.memory import MemoryStorage
from tests.storage_hishel.faces import FACES, Face
from vllm_http_cache import FileStorage
from vllm_http_cache.storage.hishel import HishelStorage
from vllm_http_cache.storage.protocol import Storage

MakeFace = Callable[..., Face]
Make = Callable[..., HishelStorage]


class Clock(origin.Clock):
    """The time of day, which hishel goes by, moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def date(self, offset: float = 0.0) -> str:
        return formatdate(self() + offset, usegmt=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "files"])
def ours(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Storage:
    """A storage of ours."""
    return MemoryStorage() if request.param == "memory" else FileStorage(tmp_path / "cache", clock=clock)


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def make_face(request: pytest.FixtureRequest, clock: Clock) -> Iterator[MakeFace]:
    """Puts a storage under hishel; closed at the end."""
    made: list[Face] = []

    def make(storage: Storage, **limits: Any) -> Face:
        made.append(request.param(storage, clock=clock, **limits))
        return made[-1]

    yield make
    for face in made:
        face.stop()


@pytest.fixture
def face(make_face: MakeFace, ours: Storage) -> Face:
    return make_face(ours)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "hishel" / "cache.db"


@pytest.fixture
def make(database: Path, clock: Clock) -> Iterator[Make]:
    """Makes storages on one SQLite database, each as another process would, and closes them."""
    made: list[HishelStorage] = []

    def make(*, ttl: float = 1000.0, hishel: BaseStorage | None = None, **options: Any) -> HishelStorage:
        made.append(HishelStorage(hishel or SqliteStorage(database_path=database, **options), ttl=ttl, clock=clock))
        return made[-1]

    yield make
    for storage in made:
        storage.close()
