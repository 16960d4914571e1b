"""A body as the stream of an aiohttp response that no socket feeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import aiohttp
from aiohttp import ClientResponse, StreamReader
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import DeflateBuffer

if TYPE_CHECKING:
    from .wire import AsyncBody

__all__ = ["Line"]

PIECE = 64 * 1024  # octets decoded at once


class Line:
    """Stands in for the connection, the protocol and the parser of a response: feeds a body into its stream.

    While the stream has enough, nothing runs: an answer that is dropped unread leaves no task behind.
    """

    connected = True
    upgraded = False
    transport = None

    def __init__(self, body: AsyncBody | None, loop: asyncio.AbstractEventLoop) -> None:
        self.message: Any = None
        self._response: Callable[[], ClientResponse | None] = lambda: None
        self._body = body
        self._loop = loop
        self._callbacks: list[Callable[[], object]] = []
        self._content: StreamReader | None = None
        self._decoder: Any = None
        self._feeding: asyncio.Task[None] | None = None
        self._rest = b""  # read from the body, not yet fed
        self._more = False  # whether the decoder holds octets back
        self._reading_paused = False

    def serve(self, response: ClientResponse) -> None:
        """The response that reads the stream."""
        self._response = ref(response)

    # The connection's part.

    @property
    def protocol(self) -> Line:
        return self

    def add_callback(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def release(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        if self._body is None or self._loop.is_closed():
            return
        closing = _kept(_Closing(self.finish(), loop=self._loop))
        response: Any = self._response()
        if response is not None:  # which waits for its writer when it is closed
            response._writer = closing

    close = release

    # The protocol's part.

    async def read(self) -> Any:
        return self.message

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if self._feeding is None and self._body is not None:
                self._feeding = _kept(asyncio.Task(self._feed(True), loop=self._loop))

    # The parser's part.

    async def begin(self, content: StreamReader, coding: str | None) -> None:
        """Feed what is ready; the rest comes when it comes."""
        self._content = content
        try:
            self._decoder = DeflateBuffer(content, coding) if coding else content
        except Exception as error:
            await self._fail(error)
        else:
            await self._feed(False)

    async def settle(self, seconds: float) -> None:
        """Wait until the body is here or the stream has enough, at most for so long."""
        if self._feeding is not None:
            await asyncio.wait([self._feeding], timeout=seconds)

    async def _feed(self, wait: bool) -> None:
        try:
            while self._body is not None:
                self._drain()
                if self._reading_paused:
                    self._feeding = None
                    return
                data = self._body.ready()
                if data is None:
                    if not wait:
                        self._feeding = _kept(asyncio.Task(self._feed(True), loop=self._loop))
                        return
                    data = await self._body.read()
                if not data:
                    await self._end()
                    return
                self._rest = data
        except Exception as error:
            await self._fail(error)
        except BaseException:
            self._feeding = None
            await self.finish()
            raise

    def _drain(self) -> None:
        """Feed what has been read of the body until the stream has enough."""
        size = PIECE if self._decoder is not self._content else len(self._rest)
        while not self._reading_paused:
            if self._more:
                self._more = bool(self._decoder.feed_data(b"", 0))
            elif self._rest:
                piece, self._rest = self._rest[:size], self._rest[size:]
                self._more = bool(self._decoder.feed_data(piece, len(piece)))
            else:
                return

    async def _end(self) -> None:
        body, self._body, self._feeding = self._body, None, None
        try:
            self._decoder.feed_eof()
        finally:
            if body is not None:
                await body.aclose()
        self._content = self._decoder = None

    async def _fail(self, error: Exception) -> None:
        if isinstance(error, HttpProcessingError):  # as aiohttp's parser has it
            error = aiohttp.ClientPayloadError(str(error))
        self._feeding = None
        if self._content is not None:
            self._content.set_exception(error)
        await self.finish()

    async def finish(self) -> None:
        """No more is wanted of the body."""
        body, self._body = self._body, None
        feeding, self._feeding = self._feeding, None
        if feeding is not None:
            feeding.cancel()
            await asyncio.wait([feeding])
        self._content = self._decoder = None  # no cycle, which would keep octets until the collector runs
        if body is not None:
            await body.aclose()


class _Closing(asyncio.Task[None]):
    """A task that nobody cancels: not a response that is closed twice, nor a loop that ends."""

    def cancel(self, msg: object = None) -> bool:
        return False


def _kept(task: asyncio.Task[None]) -> asyncio.Task[None]:
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks
