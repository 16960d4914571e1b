"""What a cache asks of the place where responses lie.

A storage keeps, for each key, one :class:`Record` of stored responses, and bodies that are written once. It knows
nothing of freshness: of a response's times it looks at ``confirmed`` alone, to keep nothing longer than its ``ttl``.

Everything here is synchronous and safe to call from any thread; asynchronous callers go through threads. What the
disk or the network does (full, read-only, gone, failing) is never an exception here: a read finds nothing, a write
stores nothing, and the storage logs one warning for each cause and interval. Of bodies it is told apart whether they
are damaged or cannot be read now (no descriptor is left, a server does not answer): the former are to be removed, the
latter are not.

``wait=False`` asks for an answer at once: a call that would have to wait for the medium raises
:class:`BlockingIOError` instead, and the caller repeats it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..rfc9111.message import BodyRef, StoredResponse

__all__ = [
    "BodyDamaged",
    "BodyReader",
    "BodyUnreadable",
    "BodyWriter",
    "Claim",
    "Growing",
    "Observer",
    "Record",
    "Stat",
    "Storage",
]


class BodyUnreadable(Exception):
    """A body cannot be read on. Unless it is :class:`BodyDamaged`, it may be whole, and another time it may be read."""


class BodyDamaged(BodyUnreadable):
    """A stored body is not what was stored, or is gone. Raised before a wrong octet is given out."""


@dataclass(frozen=True, slots=True)
class Record:
    """All stored responses of one key, as one generation.

    ``generation`` is the storage's mark of this generation; a caller only hands it back in :meth:`Storage.swap`.
    """

    responses: tuple[StoredResponse, ...]
    generation: object = None


@dataclass(frozen=True, slots=True)
class Stat:
    """One stored response in a listing: its key, what is stored, and the octets of storage it takes up."""

    key: str
    stored: StoredResponse
    size: int
    used: float  # seconds since the epoch when it last answered, approximately


class BodyReader(Protocol):
    """Reads one body. Outlives the body's eviction. Safe to share between threads."""

    @property
    def length(self) -> int:
        """Octets that there are."""

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        """Up to *size* checked octets at *offset*; empty only at or past the end.

        :raises BodyDamaged: the octets there are not those that were stored.
        :raises BodyUnreadable: the medium does not give them now.
        :raises ValueError: the reader has been closed.
        """

    def close(self) -> None:
        """No more is wanted. A read that another thread has begun may still end."""


class BodyWriter(Protocol):
    """Writes one body, from one thread at a time."""

    def write(self, *pieces: bytes) -> bool:
        """Append. False: there is no room (or no disk) for it; the body can no longer be committed."""

    def follow(self) -> BodyReader:
        """A reader of what has been written so far; ``length`` is what has been written so far and grows."""

    def publish(self, flight: str, stored: StoredResponse) -> None:
        """Let other processes find this growing body by :meth:`Storage.growing` until it is committed or aborted."""

    def beat(self) -> None:
        """A sign of life for those who follow, while there is nothing to write."""

    def commit(self) -> BodyRef | None:
        """The body is whole. None: it could not be kept. A body no record names is reclaimed soon after."""

    def abort(self) -> None:
        """Forget the body and give its room back. Does nothing after a commit."""


class Growing(Protocol):
    """A body that some process is still writing."""

    stored: StoredResponse

    def read(self, offset: int, size: int) -> bytes:
        """What is there at *offset*; empty when nothing is there yet."""

    def ended(self) -> bool | None:
        """True: whole. False: abandoned. None: neither, as far as can be seen from here (its writer may be dead)."""

    def orphaned(self) -> bool:
        """Whether its writer has died; takes longer to find out than the rest."""

    def silent(self) -> float:
        """Seconds since its writer last wrote or gave a sign of life."""

    def close(self) -> None: ...


class Claim(Protocol):
    """One process's claim on a flight. The system gives it up when the process dies."""

    def release(self) -> None: ...


class Observer(Protocol):
    """Is told what a storage does, from any thread, at once: it must not wait, nor raise."""

    def evicted(self, reason: str, number: int = 1) -> None:
        """Keys were removed: ``size``, ``age``, ``damaged``."""

    def storage_failed(self, operation: str) -> None:
        """The medium failed while the storage was doing this, in the log's words."""

    def holds(self, *, octets: int | None = None, keys: int | None = None) -> None:
        """What is occupied, or stored, as just counted."""


@runtime_checkable
class Storage(Protocol):
    """Where responses lie. Keys and flights are lower-case hexadecimal strings of 64 digits."""

    @property
    def ttl(self) -> float:
        """Seconds after ``confirmed`` beyond which nothing is returned or kept; ``inf`` keeps."""

    @property
    def remote(self) -> bool:
        """Whether also :meth:`claim`, :meth:`growing` and what they give may have to wait for a network."""

    def observe(self, observer: Observer | None) -> None:
        """Tell *observer*, and nobody else, from now on what happens here, as far as that is known. None: nobody."""

    def read(self, key: str, *, wait: bool = True) -> Record | None:
        """The key's record, one generation, never one past the ttl. Opens no body. Counts as a use (recency)."""

    def swap(self, key: str, seen: Record | None, record: Record) -> bool:
        """Replace the record of *key* atomically if it still is *seen*. False: somebody was faster.

        Bodies that *seen* names and *record* does not are released. An empty record is a removal. A storage that
        cannot store answers True: repeating the call would not help.
        """

    def forget(self, key: str) -> None:
        """Remove the record of *key* and its bodies."""

    def create_body(self, key: str, length: int | None) -> BodyWriter | None:
        """Begin a body of *length* octets (None: unknown) for *key* and reserve room for it. None: no room."""

    def open_body(self, ref: BodyRef, *, wait: bool = True) -> BodyReader | None:
        """Open a body. None: it cannot be had now. Small bodies are checked whole before this returns.

        :raises BodyDamaged: it is gone, or not what was stored.
        """

    def claim(self, flight: str) -> Claim | None:
        """Claim a flight among processes. None: another process has it. A storage of one process always gives it."""

    def growing(self, flight: str) -> Growing | None:
        """The growing body that the claim's holder has published, if it has."""

    def scan(self) -> Iterator[Stat]:
        """What lies there, past the ttl or not, while others go on storing: in no order, but those of one key together.

        Not a use.

        :raises NotImplementedError: the storage cannot list what it holds.
        """

    def close(self) -> None:
        """Release what this process holds. Idempotent. Calls after it find and store nothing."""
