"""An origin that needs nothing but Python: ``python -m bench.serving ROOT`` prints its port."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

POLICIES = {"fresh": "max-age=86400", "validated": "no-cache", "slow": "max-age=86400"}


class File:
    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.tag = f'"{hashlib.sha256(self.content).hexdigest()[:20]}"'


class Server(asyncio.Protocol):
    """One connection; requests have no content and come one after the other."""

    requests = 0

    def __init__(self, files: dict[str, File]) -> None:
        self._files = files
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            self._answer(head.decode("latin-1"))

    def _answer(self, head: str) -> None:
        Server.requests += 1
        line, *fields = head.split("\r\n")
        target = urlsplit(line.split(" ")[1])
        if target.path == "/requests":
            self._send("200 OK", (), str(Server.requests).encode())
            return
        policy, _, name = target.path.strip("/").partition("/")
        file = self._files.get(name)
        if file is None or policy not in POLICIES:
            self._send("404 Not Found", (), b"")
            return
        shown = (f"ETag: {file.tag}", f"Cache-Control: {POLICIES[policy]}")
        asked = next(
            (field.partition(":")[2].strip() for field in fields if field.lower().startswith("if-none-match:")), ""
        )
        if asked == file.tag:
            self._send("304 Not Modified", shown, None)
        elif policy == "slow":
            seconds = float(parse_qs(target.query)["seconds"][0])
            asyncio.get_running_loop().call_later(seconds, self._send, "200 OK", shown, file.content)
        else:
            self._send("200 OK", shown, file.content)

    def _send(self, status: str, fields: tuple[str, ...], content: bytes | None) -> None:
        if self._transport.is_closing():
            return
        lines = [f"HTTP/1.1 {status}", f"Date: {formatdate(time.time(), usegmt=True)}", *fields]
        if content is not None:
            lines += ["Content-Type: application/octet-stream", f"Content-Length: {len(content)}"]
        self._transport.writelines([("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), content or b""])


async def main(root: Path) -> None:
    files = {path.name: File(path) for path in root.iterdir()}
    server = await asyncio.get_running_loop().create_server(lambda: Server(files), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main(Path(sys.argv[1])))
