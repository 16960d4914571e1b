"""The origin that all subjects ask, in its own process: nginx where it is installed, otherwise ours (``serving.py``).

Both serve the same files under the same paths: ``/fresh/FILE`` is good for a day, ``/validated/FILE`` has to be
validated at each use; a query makes another resource of the same content.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from .plan import KB, MB

__all__ = ["BODIES", "Asyncio", "Nginx", "Origin", "begin"]

BODIES = {"100k.bin": 100 * KB, "1m.bin": 1 * MB, "10m.bin": 10 * MB}
PATIENCE = 10.0  # seconds until it answers

NGINX = """\
daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; default_type application/octet-stream; sendfile on; tcp_nopush on;
  keepalive_timeout 600s; keepalive_requests 1000000000;
  client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
  server {{
    listen 127.0.0.1:{port}; root {root};
    location = /requests {{ stub_status; }}
    location /fresh/ {{ alias {root}/; add_header Cache-Control "max-age=86400"; }}
    location /validated/ {{ alias {root}/; add_header Cache-Control "no-cache"; }}
  }}
}}
"""


class Origin:
    """A server's process. Stops at :meth:`close`."""

    name: str
    base: str

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def fresh(self, name: str) -> str:
        return f"{self.base}/fresh/{name}"

    def validated(self, name: str) -> str:
        return f"{self.base}/validated/{name}"

    def requests(self) -> int:
        """How many requests it has answered, this one included."""
        with urlopen(f"{self.base}/requests", timeout=PATIENCE) as answer:
            text = answer.read().decode("ascii")
        return int(re.findall(r"\d+", text)[-4 if "server accepts" in text else 0])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Nginx(Origin):
    """:param executable: of nginx. :param root: the files it serves; beside them it keeps its own."""

    def __init__(self, executable: str, root: Path) -> None:
        version = subprocess.run([executable, "-v"], check=True, capture_output=True, text=True).stderr
        self.name = version.strip().rpartition(" ")[2].replace("/", " ")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        prefix = root.with_name("nginx")
        prefix.mkdir()
        (prefix / "nginx.conf").write_text(NGINX.format(port=port, root=root))
        super().__init__(subprocess.Popen([executable, "-p", str(prefix), "-c", "nginx.conf"], text=True))
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.requests()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return


class Asyncio(Origin):
    """Ours. It can be slow on purpose, too: ``/slow/FILE?seconds=0.5``."""

    name = "asyncio"

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "bench.serving", str(root)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        super().__init__(process)
        assert process.stdout is not None
        self.base = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def slow(self, name: str, seconds: float) -> str:
        return f"{self.base}/slow/{name}?seconds={seconds}"


def begin(root: Path, whole: int) -> Origin:
    """Make the files in *root*, one of them of *whole* octets, and serve them."""
    root.mkdir()
    for name, size in {**BODIES, "whole.bin": whole}.items():
        with (root / name).open("wb") as file:
            for start in range(0, size, MB):
                file.write(os.urandom(min(MB, size - start)))
    executable = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if executable is not None:
        try:
            return Nginx(executable, root)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"nginx does not start ({error}): asyncio instead", file=sys.stderr)
    return Asyncio(root)
