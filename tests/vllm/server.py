"""vLLM's real API server on the tiny model, as a subprocess. For tests that run in its environment."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

# What the shell around the tests has set must not decide what they see.
FOREIGN = ("VLLM_", "MEDIA_CACHE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Server:
    """Runs while its `with` block does: started and answering on entry, gone with all its children on exit.

    `environ` is added to the subprocess's environment, `arguments` to its command line. What it says
    goes to the file `log`. `start_timeout` is in seconds.

    Entering raises `RuntimeError`, with the end of the log, where the server ends or isn't ready in time.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        environ: Mapping[str, str] | None = None,
        *,
        arguments: Sequence[str] = (),
        start_timeout: float = 120.0,
    ) -> None:
        self.model = model
        self.log = log
        self.url = ""
        self._environ = environ or {}
        self._arguments = arguments
        self._start_timeout = start_timeout

    def __enter__(self) -> Self:
        self._port = _reserve_port()
        port = self._port.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        vllm = Path(sys.executable).with_name("vllm")
        place = ["--host", "127.0.0.1", "--port", str(port)]
        options = ["--max-model-len", "512", "--dtype", "float32", *self._arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(vllm), "launch", "render", str(self.model), *place, *options],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # After a 500 the server closes the connection, maybe under the next request: use each only once.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=self.url, timeout=60.0, trust_env=False, limits=limits)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def render(self, *image_urls: str) -> httpx.Response:
        """Have one chat message with these images prepared for the model. May be called from threads.

        The answer's `json()["features"]["mm_hashes"]["image"]` lists a hash of each image's content.
        The tiny model takes one image a message; more are answered with 400.
        """
        images = [{"type": "image_url", "image_url": {"url": url}} for url in image_urls]
        content = [*images, {"type": "text", "text": "Question"}]
        body = {"model": str(self.model), "messages": [{"role": "user", "content": content}]}
        return self._client.post("/v1/chat/completions/render", json=body)

    def metrics(self) -> str:
        """What `/metrics` says, in Prometheus's text format."""
        return self._client.get("/metrics").raise_for_status().text

    def close(self) -> None:
        """Ask the server to end, then end it and all it started. A second call does nothing."""
        if self._client.is_closed:
            return
        self._client.close()
        self._signal_group(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self._signal_group(signal.SIGKILL)
        self.process.wait()
        self._port.close()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(FOREIGN)}
        ours = {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        return {**inherited, **ours, **self._environ}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self._log_end()}")
            with suppress(httpx.TransportError):
                if self._client.get("/health", timeout=5).is_success:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the server was not ready after {self._start_timeout} s:\n{self._log_end()}")

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _reserve_port() -> socket.socket:
    """A socket bound to a free port. While it's open nobody is given that port, and the server,
    which sets SO_REUSEADDR too, can still listen on it.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
