from collections.abc import Iterator

import pytest

from tests.core.memory import MemoryStorage
from tests.core.receiving import Kept
from tests.core.scripted import Clock
from vllm_http_cache import Cache


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def cache(storage: MemoryStorage, clock: Clock) -> Cache:
    return Cache(storage, clock=clock)


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.ticker.stop(5)
