"""What a caller reads, wherever it comes from: a stored body, a download in this process, or another process's.

A supply says what it has (`take`) and how to wait for more. A body gives a caller what the supply has, and when the
supply breaks, goes on with a request of its own for the same representation, skipping what it has given.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from xxhash import xxh3_128

from .abandoned import abandon
from .downloads import Broken, Download, Reader
from .loops import in_thread
from .patience import patience
from .rfc9111.framing import announced_length
from .rfc9111.message import BodyRef, Response, StoredResponse
from .rfc9111.validators import described_alike
from .storage.protocol import BodyDamaged, BodyReader, BodyUnreadable, Growing
from .tail import CHUNK
from .wire import Caller, Fetched

__all__ = [
    "AsyncCachedBody",
    "CachedBody",
    "DownloadSupply",
    "EmptySupply",
    "ForeignSupply",
    "StoredSupply",
    "Supply",
]

TURN = 1024**2  # octets given without waiting before other tasks have their turn
POLL = 0.01  # seconds between looks at a body that another process is writing
POLLS_PER_WRITER = 20  # looks after which we try whether its writer is still alive


class Supply(Protocol):
    length: int | None

    def take(self, *, wait: bool = True) -> bytes | None:
        """The next octets; None: not yet; empty: the end.

        :raises Broken: there will be no more. :raises BlockingIOError: with ``wait=False``, not without the disk.
        """

    def wait(self, caller: Caller) -> None: ...

    async def await_more(self, caller: Caller) -> None: ...

    def close(self) -> None: ...


class EmptySupply:
    """No octets: the answer has no body."""

    length: int | None = 0

    def take(self, *, wait: bool = True) -> bytes:
        return b""

    def wait(self, caller: Caller) -> None:
        """There is nothing to wait for."""

    async def await_more(self, caller: Caller) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """There is nothing to close."""


class StoredSupply(EmptySupply):
    """A stored body, or a span of it.

    :param drop: drops it if it is damaged.
    :param unread: it is put among these if it cannot be read on.
    """

    def __init__(self, reader: BodyReader, ref: BodyRef, drop: Callable[[], None], unread: set[BodyRef]) -> None:
        self.length = reader.length
        self._reader = reader
        self._offset, self._stop = 0, reader.length
        self._ref = ref
        self._drop = drop
        self._unread = unread

    def cut(self, start: int, stop: int) -> None:
        """Give only the octets from *start* to before *stop*."""
        self._offset, self._stop = start, stop
        self.length = stop - start

    def take(self, *, wait: bool = True) -> bytes:
        size = min(CHUNK, self._stop - self._offset)
        if size <= 0:
            return b""
        try:
            data = self._reader.read(self._offset, size, wait=wait)
        except BodyUnreadable as trouble:
            if not wait:
                raise BlockingIOError from trouble
            self._unread.add(self._ref)
            if isinstance(trouble, BodyDamaged):
                self._drop()
            raise Broken(str(trouble)) from trouble
        self._offset += len(data)
        return data

    def close(self) -> None:
        self._reader.close()


class DownloadSupply:
    """A reader's view of a download in this process."""

    def __init__(self, download: Download, reader: Reader) -> None:
        self.length = download.length
        self.download = download
        self._reader = reader

    def take(self, *, wait: bool = True) -> bytes | None:
        try:
            return self.download.take(self._reader, wait=wait)
        except BodyUnreadable as trouble:
            raise Broken(str(trouble)) from trouble

    def wait(self, caller: Caller) -> None:
        self.download.wait(self._reader, caller)

    async def await_more(self, caller: Caller) -> None:
        await self.download.await_more(self._reader, caller)

    def close(self) -> None:
        self.download.detach(self._reader)


class ForeignSupply:
    """A body that another process is writing, followed by looking at it again and again."""

    def __init__(self, growing: Growing, *, remote: bool) -> None:
        self.length = announced_length(Response(growing.stored.status, growing.stored.fields))
        self._remote = remote
        self._growing = growing
        self._offset = 0
        self._looks = 0
        self._waited = 0.0
        self._patience = inf

    def take(self, *, wait: bool = True) -> bytes | None:
        if self._remote and not wait:
            raise BlockingIOError
        ended = self._growing.ended()  # before the read: what is read after it is all there is
        data = self._growing.read(self._offset, CHUNK)
        if data:
            self._offset += len(data)
            self._waited = 0.0
            return data
        if ended is None and self._looks >= POLLS_PER_WRITER:
            self._looks = 0
            if self._growing.orphaned() and not self._growing.ended():  # once more: it may have ended it, and left
                ended = False
            elif self._waited >= self._patience and self._growing.silent() >= self._patience:
                raise Broken("the process that was receiving this body does not get on")
        if ended is False:
            raise Broken("the process that was receiving this body gave it up")
        return b"" if ended else None

    def _pause(self, caller: Caller) -> float:
        self._looks += 1
        self._waited += POLL
        self._patience = patience(caller.timeout, remote=self._remote)
        if caller.timeout is not None and self._waited > caller.timeout:
            raise caller.timed_out()
        return POLL

    def wait(self, caller: Caller) -> None:
        time.sleep(self._pause(caller))

    async def await_more(self, caller: Caller) -> None:
        await anyio.sleep(self._pause(caller))

    def close(self) -> None:
        self._growing.close()


class _Given:
    """How many octets were given out and, if *digested*, which."""

    __slots__ = ("_digest", "octets")

    def __init__(self, *, digested: bool = True) -> None:
        self.octets = 0
        self._digest = xxh3_128() if digested else None

    def add(self, data: bytes) -> None:
        self.octets += len(data)
        if self._digest is not None:
            self._digest.update(data)

    def same_as(self, other: _Given) -> bool:
        mine, its = self._digest, other._digest
        return mine is not None and its is not None and mine.digest() == its.digest()


class _Body:
    """What the synchronous and the asynchronous body have in common."""

    def __init__(
        self,
        supply: Supply,
        caller: Caller,
        stored: StoredResponse | None,
        resume: Callable[[], Any] | None,
        *,
        own: bool = False,
    ) -> None:
        self.length = supply.length
        self._supply: Supply | None = supply
        self._caller = caller
        self._stored = stored
        self._resume = resume
        self._own = own  # the supply is this caller's own request: its failure is the client's own error
        self.storing = isinstance(supply, DownloadSupply)
        self.continued: Fetched | None = None  # the answer to the request that goes on
        self._given = _Given(digested=resume is not None)
        self._rest: Any = None  # the body of the request that goes on
        self._failed: Exception | None = None

    def _end(self) -> None:
        if self._supply is not None:
            self._supply.close()
            self._supply = None

    def _check_end(self, data: bytes) -> None:
        """:raises Broken: the supply ends before as many octets as it has announced."""
        if not data and self.length not in (None, self._given.octets):
            raise Broken(f"{self._given.octets} octets came where {self.length} were announced")

    def _error(self, broken: Broken) -> Exception:
        """The error of this caller's client: from now on, whatever is asked of this body."""
        caller = self._caller
        own = broken.error if self._own else None
        self._failed = own or (caller.timed_out() if broken.timed_out else caller.broken(str(broken)))
        return self._failed

    def _may_continue(self, fetched: Fetched) -> bool:
        """Whether another answer, as far as it tells, has the octets that were given, and the others."""
        return self._stored is not None and described_alike(self._stored, fetched.response)

    def _went_on(self, fetched: Fetched, skipped: _Given, data: bytes, error: Exception) -> bytes:
        """The octets after those given, when the other answer turned out to begin with these."""
        left = self._given.octets - skipped.octets
        skipped.add(data[:left])
        if not skipped.same_as(self._given):
            raise error
        self._rest, self._failed = fetched.body, None
        return data[left:]

    def __del__(self) -> None:
        if self._supply is not None:
            abandon(self._supply)


class CachedBody(_Body):
    """A :class:`~.wire.Body`."""

    _resume: Callable[[], Fetched] | None

    def read(self) -> bytes:
        """The next chunk; empty at the end."""
        while self._supply is not None:
            try:
                data = self._supply.take()
                if data is None:
                    self._supply.wait(self._caller)
                    continue
                self._check_end(data)
            except Broken as broken:
                self._end()
                return self._go_on(broken)
            self._given.add(data)
            if not data:
                self._end()
            return data
        if self._failed is not None:
            raise self._failed
        return bytes(self._rest.read()) if self._rest is not None else b""

    def _go_on(self, broken: Broken) -> bytes:
        error = self._error(broken)  # also when what follows is interrupted
        resume, self._resume = self._resume, None
        if resume is None:
            raise error
        self.continued = fetched = resume()
        if not self._may_continue(fetched):
            raise error
        skipped = _Given()
        while (data := fetched.body.read()) and skipped.octets + len(data) <= self._given.octets:
            skipped.add(data)
        return self._went_on(fetched, skipped, data, error)

    def close(self) -> None:
        self._end()
        if self.continued is not None:
            self.continued.body.close()


class AsyncCachedBody(_Body):
    """An :class:`~.wire.AsyncBody`."""

    _resume: Callable[[], Awaitable[Fetched]] | None
    _unwaited = 0  # octets given without waiting

    async def read(self) -> bytes:
        """The next chunk; empty at the end."""
        if self._unwaited >= TURN:
            self._unwaited = 0
            await anyio.lowlevel.checkpoint()
        while self._supply is not None:
            try:
                try:
                    data = self._supply.take(wait=False)
                except BlockingIOError:
                    self._unwaited = 0
                    data = await self._take_in_thread(self._supply)
                if data is None:
                    self._unwaited = 0
                    await self._supply.await_more(self._caller)
                    continue
                self._check_end(data)
            except Broken as broken:
                self._end()
                return await self._go_on(broken)
            return self._given_out(data)
        if self._failed is not None:
            raise self._failed
        return bytes(await self._rest.read()) if self._rest is not None else b""

    async def _take_in_thread(self, supply: Supply) -> bytes | None:
        try:
            return await in_thread(supply.take)
        except Broken:
            raise
        except BaseException:  # the thread goes on, and takes octets that nobody will have
            self._error(Broken("a read of this body was interrupted"))
            self._end()
            raise

    def ready(self) -> bytes | None:
        """The next chunk if it is there without waiting (empty at the end), otherwise None.

        None also when much has been given without waiting: then others have their turn first.
        """
        if self._supply is None:
            return b"" if self._rest is self._failed is None else None
        if self._unwaited >= TURN:
            return None
        try:
            data = self._supply.take(wait=False)
            if data is not None:
                self._check_end(data)
        except (Broken, BlockingIOError):
            return None
        return None if data is None else self._given_out(data)

    def _given_out(self, data: bytes) -> bytes:
        self._given.add(data)
        self._unwaited += len(data)
        if not data:
            self._end()
        return data

    async def _go_on(self, broken: Broken) -> bytes:
        error = self._error(broken)
        resume, self._resume = self._resume, None
        if resume is None:
            raise error
        self.continued = fetched = await resume()
        if not self._may_continue(fetched):
            raise error
        skipped = _Given()
        while (data := await fetched.body.read()) and skipped.octets + len(data) <= self._given.octets:
            skipped.add(data)
        return self._went_on(fetched, skipped, data, error)

    async def aclose(self) -> None:
        self._end()
        if self.continued is not None:
            await self.continued.body.aclose()
