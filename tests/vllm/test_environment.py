"""vLLM's connection and the world around it: proxies, credentials, certificates."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("vllm.connections")

import aiohttp
import requests

from tests.origin import Answer, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}


def test_proxies(plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.start()
    monkeypatch.setenv("http_proxy", origin.url(""))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    direct = origin.on("/direct", Answer(fields=FRESH, body=b"direct"))
    origin.on("http://elsewhere.test/a", Answer(fields=FRESH, body=b"by proxy"))
    for _ in range(2):
        assert fetch.octets("http://elsewhere.test/a") == b"by proxy"
        assert fetch.octets(direct) == b"direct"
    assert [seen.target for seen in origin.requests] == ["http://elsewhere.test/a", "/direct"]


def test_netrc(plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it grants to this server is not kept for others, unless the origin says so."""
    plugin.start()
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password word\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    from vllm_http_cache.vllm import hops

    hops._netrc.cache_clear()
    url = origin.on("/a", Answer(fields=FRESH, body=b"mine"))
    public = origin.on("/b", Answer(fields={"Cache-Control": "public, max-age=600"}, body=b"ours"))
    for _ in range(2):
        assert fetch.octets(url) == b"mine"
        assert fetch.octets(public) == b"ours"
    hops._netrc.cache_clear()
    assert {seen.get("authorization") for seen in origin.requests} == {"Basic dXNlcjp3b3Jk"}
    assert (origin.count("/a"), origin.count("/b")) == (2, 1)


def test_what_credentials_in_a_url_grant_is_not_kept_for_others(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"mine")).replace("://", "://user:word@")
    assert [fetch.octets(url) for _ in range(2)] == [b"mine"] * 2
    assert [seen.get("authorization") for seen in origin.requests] == ["Basic dXNlcjp3b3Jk"] * 2


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of an origin with a certificate of its own making, and that."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        *subject,
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(made, check=True, capture_output=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/", certificate
        server.shutdown()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_certificates(plugin: Plugin, secure: tuple[str, Path], fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    url, certificate = secure
    plugin.start()
    with pytest.raises((requests.exceptions.SSLError, aiohttp.ClientConnectorCertificateError)):
        fetch.octets(url)
    if not fetch.asynchronous:  # aiohttp reads its authorities when it is imported
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert fetch.octets(url) == b"x"
