"""What vLLM gets instead of its clients' responses: as much of them as it uses, over a body of the cache."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing, suppress
from datetime import timedelta
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, Self, cast

import aiohttp
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from requests.cookies import RequestsCookieJar
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers
from yarl import URL

from ..coding import decoded, decoders_of
from ..rfc9111.framing import announced_length
from .attempt import is_being_stored

if TYPE_CHECKING:
    from ..rfc9111.message import Fields
    from ..wire import AsyncBody, Body, Fetched
    from .attempt import Attempt
    from .hops import Hop

__all__ = ["Answer", "AsyncAnswer", "adrain", "drain", "request_info"]

CHARSET = re.compile(r"""charset=["']?([\w.:-]+)""", re.IGNORECASE)
DRAINED = 256 * 1024  # octets of an unwanted content that are read for it to be stored
PATIENCE = 0.5  # seconds that this may take


class Answer(requests.Response):
    """A :class:`requests.Response` that reads a cache's answer."""

    elapsed = timedelta()
    request: Any = None

    def __init__(self, hop: Hop, fetched: Fetched, attempt: Attempt) -> None:  # the base's would make a cookie jar
        head = fetched.response
        self._content: Any = False
        self._content_consumed = False
        self._next = None
        self.status_code = head.status
        self.headers = CaseInsensitiveDict(head.fields)
        if len(self.headers) < len(head.fields):  # of some there are several lines
            self.headers.update({name: head.fields.get(name.lower()) or "" for name, _ in head.fields})
        self.raw = _Raw(fetched, attempt)
        self.url = hop.url
        self.encoding = get_encoding_from_headers(self.headers)
        self.history = []
        self.reason = head.reason

    @cached_property
    def cookies(self) -> RequestsCookieJar:  # type: ignore[override]
        return RequestsCookieJar()


class _Raw:
    """As much of an urllib3 response as :class:`requests.Response` asks for."""

    def __init__(self, fetched: Fetched, attempt: Attempt) -> None:
        self._reading = _Reading(fetched, attempt)
        self._body: Body = fetched.body

    def stream(self, size: int | None, decode_content: bool) -> Generator[bytes, None, None]:
        """The content in pieces of at most *size* octets, as they come; in one where they would be joined."""
        if self._reading.joins:
            whole = BytesIO()
            try:
                for piece in self._pieces():
                    whole.write(piece)
            except Exception:  # vLLM counts what came of a content that breaks, too
                yield whole.getvalue()
                raise
            if whole.tell():
                yield whole.getvalue()
            return
        for piece in self._pieces():
            yield from _slices(piece, size)

    def _pieces(self) -> Iterator[bytes]:
        while data := self._body.read():
            try:
                yield from self._reading.decoded(data)
            except Undecodable as error:
                raise requests.exceptions.ContentDecodingError(str(error)) from error
        self._reading.end()
        self.close()

    def close(self) -> None:
        if self._reading.is_unread_error:
            drain(self._reading.fetched)
        self._body.close()

    release_conn = close


class AsyncAnswer:
    """As much of an :class:`aiohttp.ClientResponse` as vLLM uses.

    :param deadline: the loop's time at which a wait for octets ends in :class:`TimeoutError`; None: never.
    """

    method = "GET"

    def __init__(self, hop: Hop, fetched: Fetched, attempt: Attempt, deadline: float | None) -> None:
        self._head = fetched.response
        self.status = self._head.status
        self.reason = self._head.reason
        self._hop = hop
        self._body: AsyncBody = fetched.body
        self._reading = _Reading(fetched, attempt)
        self._deadline = deadline
        self._content: bytes | None = None

    @property
    def url(self) -> URL:
        return _shown(self._hop)

    @cached_property
    def headers(self) -> CIMultiDictProxy[str]:
        return _multidict(self._head.fields)

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def content(self) -> Self:
        """Itself, in the part of an :class:`aiohttp.StreamReader`."""
        return self

    @property
    def content_length(self) -> int | None:
        return announced_length(self._head)

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()

    def raise_for_status(self) -> None:
        """:raises aiohttp.ClientResponseError: the status is 400 or above."""
        if not self.ok:
            raise self._error(aiohttp.ClientResponseError, self.reason)

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The content in pieces, as they come.

        :raises TimeoutError: the deadline is past.
        """
        loop = asyncio.get_running_loop()
        while True:
            if self._deadline is not None and loop.time() > self._deadline:
                raise TimeoutError
            data = self._body.ready()
            if data is None:
                async with asyncio.timeout_at(self._deadline):
                    data = await self._body.read()
            if not data:
                break
            try:
                for piece in self._reading.decoded(data):
                    yield piece
            except Undecodable as error:
                raise aiohttp.ClientPayloadError(str(error)) from error
        self._reading.end()
        await self.aclose()

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        """The content in pieces of at most *n* octets, as they come; in one where they would be joined."""
        if self._reading.joins:
            whole = BytesIO()
            try:
                async for piece in self.iter_any():
                    whole.write(piece)
            except Exception:
                yield whole.getvalue()
                raise
            if whole.tell():
                yield whole.getvalue()
            return
        async for piece in self.iter_any():
            for part in _slices(piece, n):
                yield part

    async def read(self) -> bytes:
        if self._content is None:
            self._content = b"".join([piece async for piece in self.iter_any()])
        return self._content

    async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
        charset = CHARSET.search(self.headers.get("Content-Type", ""))
        if encoding is None and charset is not None:
            with suppress(LookupError):
                encoding = codecs.lookup(charset[1]).name
        return (await self.read()).decode(encoding or "utf-8", errors)

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[str], Any] = json.loads,
        content_type: str | None = "json",
    ) -> Any:
        """:raises aiohttp.ContentTypeError: the content is of another type than *content_type* (None: any will do)."""
        if content_type is not None and content_type not in self.content_type:
            raise self._error(aiohttp.ContentTypeError, f"unexpected mimetype: {self.content_type}")
        text = (await self.text(encoding)).strip()
        return loads(text) if text else None

    async def aclose(self) -> None:
        if self._reading.is_unread_error:
            await adrain(self._reading.fetched, self._deadline)
        await self._body.aclose()

    def _error(self, kind: type[aiohttp.ClientResponseError], message: str) -> aiohttp.ClientResponseError:
        return kind(request_info(self._hop), (), status=self.status, message=message, headers=self.headers)


def _shown(hop: Hop) -> URL:
    """As aiohttp shows it in its errors: without user information."""
    return URL(hop.url, encoded=True).with_user(None)


def request_info(hop: Hop) -> aiohttp.RequestInfo:
    url = _shown(hop)
    return aiohttp.RequestInfo(url, "GET", _multidict(hop.request.fields), url)


def drain(fetched: Fetched) -> None:
    """Read what nobody wants, a redirect's content or an error's, so that it is stored; if it can soon be had."""
    end = time.monotonic() + PATIENCE

    def read() -> None:
        drained = 0
        with closing(fetched.body) as body, suppress(Exception):
            while drained < DRAINED and time.monotonic() < end and (data := body.read()):
                drained += len(data)

    if is_being_stored(fetched):
        reading = threading.Thread(target=read, name="vllm-http-cache drain", daemon=True)
        with suppress(RuntimeError):  # there are no more threads
            reading.start()
            reading.join(PATIENCE)  # a read may wait for as long as the caller would
            return
    fetched.body.close()


async def adrain(fetched: Fetched, deadline: float | None) -> None:
    """The same for a task; *deadline* on the loop's clock."""
    drained, end = 0, asyncio.get_running_loop().time() + PATIENCE
    async with aclosing(fetched.body) as body:
        with suppress(Exception):
            async with asyncio.timeout_at(end if deadline is None else min(end, deadline)):
                while is_being_stored(fetched) and drained < DRAINED and (data := await body.read()):
                    drained += len(data)


class Undecodable(Exception):
    """Octets that are not in their content coding."""


class _Reading:
    """The way of an answer's octets to vLLM: decodes and counts them."""

    def __init__(self, fetched: Fetched, attempt: Attempt) -> None:
        attempt.begin(fetched)
        self._attempt = attempt
        self.fetched = fetched
        self._begun = False
        self._decoders = [decoder for decoder in decoders_of(fetched.response.fields) if decoder is not None]

    @property
    def joins(self) -> bool:
        """Whether to give all in one piece: joining pieces would take the memory twice.

        What announces no length, or is coded, vLLM has to count as it comes, for the sake of its limits.
        """
        length = announced_length(self.fetched.response)
        return length is not None and length <= self._attempt.joined and not self._decoders

    @property
    def is_unread_error(self) -> bool:
        """Whether this is an error, which vLLM closes without a look at its content."""
        return self.fetched.response.status >= 400 and not self._begun

    def decoded(self, data: bytes) -> Iterator[bytes]:
        """:raises Undecodable: it is not in its content coding."""
        self._begun = True
        pieces = decoded(data, self._decoders)
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:  # each decoder has errors of its own
                raise Undecodable(f"the content does not decode: {error}") from error
            if piece is None:
                return
            self._attempt.delivered += len(piece)
            yield piece

    def end(self) -> None:
        """That was all. An answer without content is of no use to anybody: it is not kept."""
        if self._attempt.fetched is self.fetched:
            self._attempt.whole = True
        if not self._attempt.delivered and self.fetched.response.status == 200:
            self.fetched.refuse()


def _slices(data: bytes, size: int | None) -> Iterable[bytes]:
    if size is None or len(data) <= size:
        return (data,)
    return (data[start : start + size] for start in range(0, len(data), size))


def _multidict(fields: Fields) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(cast("Iterable[tuple[str, str]]", fields)))
