"""HTTP/1.1 messages as they lie on the wire: what the gateway takes and gives, what a caller sends and sees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Got", "Lines", "Sent", "ask", "end_to_end", "head", "read_body", "read_request", "values"]

Lines = list[tuple[bytes, bytes]]
HOP_BY_HOP = frozenset(  # RFC 9110 section 7.6.1
    b"connection keep-alive proxy-connection te transfer-encoding upgrade".split()
)


@dataclass(frozen=True)
class Sent:
    """A request as it came."""

    method: bytes
    target: bytes
    fields: Lines
    body: bytes


@dataclass(frozen=True)
class Got:
    """A response as it came, after any interim ones."""

    status: int
    reason: str
    fields: Lines
    body: bytes
    interim: tuple[tuple[int, Lines], ...] = ()

    def get_all(self, name: str) -> list[str]:
        return [value.decode("latin-1") for value in values(self.fields, name.lower().encode())]

    def get(self, name: str) -> str | None:
        lines = self.get_all(name)
        return ", ".join(lines) if lines else None


def values(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """The values of the lines called *name* (lower case)."""
    return [value for line, value in fields if line.lower() == name]


def end_to_end(fields: Lines) -> Lines:
    """The lines that are not for this connection only."""
    listed = b",".join(values(fields, b"connection")).lower().split(b",")
    dropped = HOP_BY_HOP.union(name.strip() for name in listed)
    return [line for line in fields if line[0].lower() not in dropped]


def head(start: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([start, *(b"%b: %b" % line for line in fields), b"", b""])


async def read_request(reader: asyncio.StreamReader) -> Sent | None:
    """The next request of a connection; None at its end."""
    try:
        start, fields = await _read_head(reader)
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = start.split(b" ", 2)
    framed = values(fields, b"content-length") or values(fields, b"transfer-encoding")
    return Sent(method, target, fields, await read_body(reader, fields) if framed else b"")


async def read_body(reader: asyncio.StreamReader, fields: Lines) -> bytes:
    """A body, by what the fields say of its end.

    :raises asyncio.IncompleteReadError: it was cut short.
    """
    if values(fields, b"transfer-encoding"):
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return body
    if lengths := values(fields, b"content-length"):
        return await reader.readexactly(int(lengths[0]))
    return await reader.read()


async def ask(port: int, method: str, target: str, fields: Lines, body: bytes = b"") -> Got:
    """One request on a connection of its own, with these fields, Host, and nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        framing = [(b"Content-Length", b"%d" % len(body))] if body else []
        start = f"{method} {target} HTTP/1.1".encode("latin-1")
        writer.write(head(start, [(b"Host", b"127.0.0.1"), *fields, *framing, (b"Connection", b"close")]) + body)
        interim: list[tuple[int, Lines]] = []
        while True:
            start, received = await _read_head(reader)
            _, status, *reason = start.split(b" ", 2)
            if not 100 <= int(status) < 200:
                break
            interim.append((int(status), received))
        bodiless = method == "HEAD" or int(status) in (204, 304)
        content = b"" if bodiless else await read_body(reader, received)
        return Got(int(status), b" ".join(reason).decode("latin-1"), received, content, tuple(interim))
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, Lines]:
    start = (await reader.readuntil(b"\r\n"))[:-2]
    fields: Lines = []
    while line := (await reader.readuntil(b"\r\n"))[:-2]:
        name, _, value = line.partition(b":")
        fields.append((name, value.strip(b" \t")))
    return start, fields
