"""An origin on loopback that remembers what it was asked, and the pictures it serves."""

from __future__ import annotations

import hashlib
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

__all__ = ["Exchange", "Origin", "Resource", "picture"]


@dataclass(frozen=True)
class Resource:
    """What the origin serves: a body, its Cache-Control, and the seconds it takes over it."""

    body: bytes
    cache_control: str
    delay: float = 0.0

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'


@dataclass(frozen=True)
class Exchange:
    """One request and its response, as seen on the wire."""

    conditional: bool
    status: int
    octets: int


class Origin:
    """Serves :attr:`resources` by path while its ``with`` block lasts."""

    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self._seen: list[Exchange] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def saw(self, exchange: Exchange) -> None:
        with self._lock:
            self._seen.append(exchange)

    def news(self) -> list[Exchange]:
        """The exchanges since the last call."""
        with self._lock:
            news, self._seen = self._seen, []
        return news

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(origin: Origin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            resource = origin.resources[self.path]
            time.sleep(resource.delay)
            condition = self.headers.get("If-None-Match")
            status, body = (304, b"") if condition == resource.etag else (200, resource.body)
            origin.saw(Exchange(condition is not None, status, len(body)))
            self.send_response(status)
            self.send_header("Content-Type", "image/png")
            self.send_header("ETag", resource.etag)
            self.send_header("Cache-Control", resource.cache_control)
            if status == 200:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def picture(seed: str, width: int = 160, height: int = 120) -> bytes:
    """A PNG of a gradient whose colours depend on *seed*."""
    red, green, blue = hashlib.sha256(seed.encode()).digest()[:3]
    rows = (
        b"\0" + bytes(c for x in range(width) for c in ((red + x) % 256, (green + y) % 256, (blue + x * y) % 256))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
