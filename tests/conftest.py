"""Fixtures for all tests, and the option that picks the matrix' clients."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.clients import CLIENTS, Client, stop_portals
from tests.folders import holds
from tests.origin import Clock, Origin
from vllm_http_cache import Cache, CacheOptions, FileStorage

T = TypeVar("T")
LIBRARIES = ("httpx", "aiohttp", "requests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--client",
        choices=LIBRARIES,
        default=os.environ.get("CLIENT") or None,
        help="run the matrix over this library only (default: all, or the environment variable CLIENT)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only(*names): run with these clients of the matrix")
    config.addinivalue_line("markers", "errors_are_logged: as they should be here")
    # httpx leaves its own generators unclosed when a caller stops half-way; trio tells.
    config.addinivalue_line("filterwarnings", "ignore:Async generator 'http(x|core):ResourceWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client_class" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--client")
        only = metafunc.definition.get_closest_marker("only")
        names = [name for name in (only.args if only else CLIENTS) if chosen is None or name.startswith(chosen)]
        classes = [CLIENTS[name] for name in names]
        metafunc.parametrize("client_class", classes, ids=lambda kind: kind.name)


class World:
    """One origin, one clock, one folder, and any number of caches and clients between them."""

    def __init__(
        self, clock: Clock, origin: Origin, folder: Path, client_class: type[Client], stack: ExitStack
    ) -> None:
        self.clock = clock
        self.origin = origin
        self.folder = folder
        self.client_class = client_class
        self._stack = stack

    def cache(self, *, max_size: int = 128 * 1024**2, max_entry_size: int | None = None, **options: Any) -> Cache:
        """A new cache on the folder, as another process would open it. *options* are those of CacheOptions."""
        storage = FileStorage(self.folder, max_size=max_size, max_entry_size=max_entry_size, clock=self.clock)
        return self._stack.enter_context(Cache(storage, CacheOptions(**options), clock=self.clock))

    def client(
        self, cache: Cache | None = None, *, url_policy: Callable[[str], None] | None = None, **options: Any
    ) -> Client:
        """A new client, on a new cache unless one is given."""
        cache = self.cache(**options) if cache is None else cache
        return self._stack.enter_context(closing(self.client_class(cache, url_policy=url_policy)))

    def bare_client(self) -> Client:
        """A new client without a cache."""
        return self._stack.enter_context(closing(self.client_class(None)))

    @staticmethod
    def together(calls: Iterable[Callable[[], T]]) -> list[T | Exception]:
        """Make the calls at once, a thread each; in their order, what each returned or raised."""
        calls = list(calls)
        start = threading.Barrier(len(calls))

        def made(call: Callable[[], T]) -> T | Exception:
            start.wait()
            try:
                return call()
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(made, calls))

    @staticmethod
    def eventually(true: Callable[[], bool], seconds: float = 5.0) -> bool:
        """Whether it became *true* in time."""
        deadline = time.monotonic() + seconds
        while not (came := true()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return came

    def on_disk(self, octets: bytes) -> bool:
        """Whether any file in the folder holds *octets*."""
        return holds(self.folder, octets)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def origin(clock: Clock) -> Iterator[Origin]:
    with Origin(clock) as origin:
        yield origin


@pytest.fixture
def world(clock: Clock, origin: Origin, tmp_path: Path, client_class: type[Client]) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(clock, origin, tmp_path / "cache", client_class, stack)


@pytest.fixture
def cache(world: World) -> Cache:
    return world.cache()


@pytest.fixture
def client(world: World, cache: Cache) -> Client:
    return world.client(cache)


@pytest.fixture(scope="session", autouse=True)
def _event_loops() -> Iterator[None]:
    yield
    stop_portals()


@pytest.fixture(autouse=True)
def _no_error_is_hidden(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What we or an event loop log as an error is a defect, though no caller has noticed; but where a test wants it."""
    yield
    hidden = [
        f"{record.name}: {record.getMessage()}"
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.partition(".")[0] in ("vllm_http_cache", "asyncio")
    ]
    assert not hidden or request.node.get_closest_marker("errors_are_logged")
