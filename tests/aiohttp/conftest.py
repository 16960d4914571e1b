from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.origin import Clock
from vllm_http_cache import Cache, CacheOptions, FileStorage


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> Iterator[Cache]:
    with Cache(FileStorage(tmp_path / "cache", clock=clock), CacheOptions(), clock=clock) as cache:
        yield cache
