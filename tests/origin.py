"""An origin on loopback that does what a script says, byte for byte, and records what it was asked."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import BinaryIO, Literal, Self

__all__ = ["Answer", "Clock", "Fields", "Framing", "Origin", "Part", "Seen", "Stop"]

Fields = Mapping[str, str] | Iterable[tuple[str, str]]
Part = bytes | float | threading.Event
"""Of a body: octets to send, seconds to sleep, or an event to wait for."""
Framing = Literal["length", "chunked", "close", "raw"]
Script = Callable[["Seen"], "Answer"]


class Clock:
    """Seconds since the epoch, moved by hand; shared by an origin and the caches in front of it.

    It begins at the present: a storage also looks at times that the system gives its files.
    """

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def date(self, offset: float = 0.0) -> str:
        """The time *offset* seconds from now as an HTTP date."""
        return formatdate(self.now + offset, usegmt=True)


class Stop(Exception):
    """Raised by a script: the connection ends without an answer."""


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    body: bytes = b""

    def get(self, name: str) -> str | None:
        """The values of *name* joined; None when absent."""
        values = [value for line, value in self.fields if line.lower() == name.lower()]
        return ", ".join(values) if values else None


@dataclass(frozen=True)
class Answer:
    """A response.

    :param body: octets, or parts to send one after the other (a chunk each when chunked).
    :param framing: how the body's end is told: a Content-Length, chunks, the connection's end; ``raw``: ``body`` is
        everything that is sent, head included.
    :param length: the Content-Length to state where it is not the body's.
    :param before: waited for before the head.
    :param date: whether to add a Date, from the origin's clock.
    :param end: ``cut`` closes the connection after the body's parts, without a last chunk; ``reset`` resets it.
    """

    status: int = 200
    fields: Fields = ()
    body: bytes | Iterable[Part] = b""
    framing: Framing = "length"
    length: int | None = None
    before: float | threading.Event = 0.0
    date: bool = True
    end: Literal["keep", "cut", "reset"] = "keep"
    version: str = "HTTP/1.1"


@dataclass
class _Path:
    answers: tuple[Answer | Script, ...]
    given: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, seen: Seen) -> Answer:
        with self.lock:
            answer = self.answers[min(self.given, len(self.answers) - 1)]
            self.given += 1
        return answer if isinstance(answer, Answer) else answer(seen)


class Origin:
    """A server of scripted answers.

    :param clock: where Date comes from.
    :param host: the loopback address to listen at.
    """

    def __init__(self, clock: Clock | None = None, host: str = "127.0.0.1") -> None:
        self.clock = clock or Clock()
        self.requests: list[Seen] = []
        self.accepted = 0
        self.hangups: queue.Queue[str] = queue.Queue()
        """Targets whose client went away before it had the whole answer."""
        self._paths: dict[str, _Path] = {}
        self._closing = threading.Event()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.host = f"[{host}]" if ":" in host else host
        self._thread = threading.Thread(target=self._accept, name="origin", daemon=True)
        self._thread.start()

    def on(self, path: str, *answers: Answer | Script) -> str:
        """Answer requests for *path* (whatever the query) in this order, the last one for ever.

        :returns: the path's URL.
        """
        self._paths[path] = _Path(answers)
        return self.url(path)

    def url(self, path: str) -> str:
        return f"http://{self.host}:{self.port}{path}"

    def seen(self, path: str = "") -> list[Seen]:
        """The requests for *path* so far; for anything, without one."""
        return [seen for seen in tuple(self.requests) if not path or seen.target.partition("?")[0] == path]

    def count(self, path: str = "") -> int:
        return len(self.seen(path))

    def connections(self) -> int:
        """How many are open, as far as the origin can tell."""
        with self._lock:
            return len(self._connections)

    def close(self) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *connections.values()):
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(connection,), name="origin connection", daemon=True)
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines, suppress(OSError, Stop):
                while (seen := _request(lines)) is not None:
                    self.requests.append(seen)
                    path = self._paths.get(seen.target.partition("?")[0])
                    answer = path.next(seen) if path else Answer(404, {"Cache-Control": "no-store"})
                    if not self._answer(connection, seen, answer):
                        return
        finally:
            with self._lock:
                self._connections.pop(connection, None)

    def _answer(self, connection: socket.socket, seen: Seen, answer: Answer) -> bool:
        """Send it. False: the connection is to be closed."""
        self._wait(answer.before)
        parts: Iterable[Part] = (answer.body,) if isinstance(answer.body, bytes) else answer.body
        if answer.framing != "raw" and (seen.method == "HEAD" or answer.status in (204, 304)):
            parts = ()
        try:
            if answer.framing != "raw":
                connection.sendall(self._head(answer))
            for part in parts:
                if not isinstance(part, bytes):
                    self._wait(part)
                elif answer.framing != "chunked":
                    connection.sendall(part)
                elif part:
                    connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            if answer.framing == "chunked" and answer.end == "keep" and seen.method != "HEAD":
                connection.sendall(b"0\r\n\r\n")
        except OSError:
            self.hangups.put(seen.target)
            raise
        return self._end(connection, answer)

    def _head(self, answer: Answer) -> bytes:
        status = answer.status
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
        lines = [f"{answer.version} {status} {reason}"]
        fields = answer.fields.items() if isinstance(answer.fields, Mapping) else answer.fields
        lines += [f"{name}: {value}" for name, value in fields]
        if answer.date:
            lines.append(f"Date: {self.clock.date()}")
        if answer.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif answer.framing == "length" and status not in (204, 304):
            lines.append(f"Content-Length: {_length(answer)}")
        elif answer.framing == "close" and answer.version == "HTTP/1.1":
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _end(self, connection: socket.socket, answer: Answer) -> bool:
        if answer.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return answer.end == "keep" and answer.framing in ("length", "chunked")

    def _wait(self, what: float | threading.Event) -> None:
        if isinstance(what, threading.Event):
            while not what.wait(0.02) and not self._closing.is_set():
                pass
        elif what:
            self._closing.wait(what)
        if self._closing.is_set():
            raise Stop


def _length(answer: Answer) -> int:
    if answer.length is not None:
        return answer.length
    if isinstance(answer.body, bytes):
        return len(answer.body)
    assert isinstance(answer.body, Sequence), "a body of parts made on the way needs its length stated"
    return sum(len(part) for part in answer.body if isinstance(part, bytes))


def _request(lines: BinaryIO) -> Seen | None:
    """The next request on a connection; None when there is none."""
    first = lines.readline()
    if not first.endswith(b"\r\n"):
        return None
    method, target, _ = first.decode("latin-1").rstrip("\r\n").split(" ", 2)
    fields: list[tuple[str, str]] = []
    while (line := lines.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").rstrip("\r\n").partition(":")
        fields.append((name, value.strip(" \t")))
    seen = Seen(method, target, tuple(fields))
    if seen.get("transfer-encoding"):
        body = b""
        while size := int(lines.readline(), 16):
            body += lines.read(size)
            lines.readline()
        lines.readline()
    else:
        body = lines.read(int(seen.get("content-length") or 0))
    return Seen(method, target, tuple(fields), body)
