"""Servers in processes of their own, for the time of a ``with``."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["gateway", "server"]

ROOT = Path(__file__).parents[2]


@contextmanager
def server(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A program whose first line tells the port it listens at, last in the line."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if (port := re.search(r"(\d+)/?$", line.strip())) is None:
            raise RuntimeError(f"{command[0]} did not start: {line!r}")
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
        yield int(port[1])
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def gateway(client: str, origin: int, cache: str, *, show: bool = False) -> Iterator[int]:
    """:mod:`.proxy` with this client in front of the origin at this port; its own port.

    :param show: the client's errors on standard error; many tests are about an origin that fails.
    """
    arguments = ["--client", client, "--origin", f"http://127.0.0.1:{origin}", "--cache", cache]
    if show:
        arguments.append("--show")
    with TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.conformance.proxy", *arguments, "--folder", folder]
        with server(command, ROOT) as port:
            yield port
