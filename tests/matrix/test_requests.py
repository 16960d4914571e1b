"""What is requests' own: the raw response, time-outs in their shapes, cookies, authentication, adapters below ours."""

from __future__ import annotations

import copy
import gzip
import io
import pickle
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.auth import HTTPDigestAuth
from urllib3 import HTTPResponse
from urllib3.util import Timeout

from tests.origin import Answer
from vllm_http_cache.requests import CacheAdapter, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.origin import Clock, Origin, Part
    from vllm_http_cache import Cache

pytestmark = pytest.mark.only("requests")
FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}
TEXT = b"hello world\n" * 10_000


@pytest.fixture
def session(cache: Cache) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", CacheAdapter(cache))
        yield session


def twice(session: requests.Session, url: str, **how: Any) -> Iterator[requests.Response]:
    """The response of a miss, then that of a hit, each streamed."""
    for hit in (False, True):
        with session.get(url, stream=True, **how) as response:
            assert ("; hit" in response.headers["cache-status"]) is hit
            yield response


def test_the_raw_response_reads_as_urllib3s(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=gzip.compress(TEXT)))
    for response in twice(session, url):
        raw = response.raw
        assert isinstance(raw, HTTPResponse)
        assert (raw.status, raw.reason, raw.version) == (200, "OK", 11)
        first = raw.read(7, decode_content=True)
        assert first == TEXT[:7]
        assert first + b"".join(iter(partial(raw.read, 50_000, decode_content=True), b"")) == TEXT
        assert raw.closed


def test_a_sized_read_fills_up(session: requests.Session, origin: Origin) -> None:
    """As a file's does, whatever came in one piece."""
    body: list[Part] = [b"ab", 0.02, b"cd", 0.02, b"ef"]
    url = origin.on("/", Answer(fields=FRESH, body=body))
    for response in twice(session, url):
        assert [response.raw.read(4), response.raw.read(4), response.raw.read(4)] == [b"abcd", b"ef", b""]


def test_who_reads_the_stated_length_has_read_it_all(session: requests.Session, origin: Origin) -> None:
    """And need not close: the body is stored, and the connection free."""
    url = origin.on("/", Answer(fields=FRESH, body=TEXT))
    assert session.get(url, stream=True).raw.read(len(TEXT)) == TEXT
    origin.on("/other", Answer(body=b"other"))
    assert session.get(origin.url("/other")).content == b"other"
    assert session.get(url).content == TEXT
    assert (origin.accepted, origin.count("/")) == (1, 1)


@pytest.mark.parametrize("size", [1, 10, 4096, None])
def test_iter_content_in_any_size(session: requests.Session, origin: Origin, size: int | None) -> None:
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=gzip.compress(TEXT[:6000])))
    for response in twice(session, url):
        chunks = list(response.iter_content(size))
        assert b"".join(chunks) == TEXT[:6000]
        assert size is None or max(map(len, chunks)) <= size


def test_lines_and_files(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT))
    for response in twice(session, url):
        assert list(response.iter_lines()) == TEXT.splitlines()
    for _ in range(2):
        with session.get(url, stream=True) as response:
            raw: Any = response.raw
            raw.auto_close = False  # as urllib3's own documentation says
            assert len(io.TextIOWrapper(raw).readlines()) == 10_000


def test_the_raw_response_counts_what_is_read(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT))
    for response in twice(session, url):
        chunks = response.iter_content(1000)
        for n in range(1, 4):
            next(chunks)
            assert (response.raw.tell(), response.raw.length_remaining) == (n * 1000, len(TEXT) - n * 1000)
        assert len(response.raw.read(500)) == 500
        assert (response.raw.tell(), response.raw.length_remaining) == (3500, len(TEXT) - 3500)
        list(chunks)
        assert (response.raw.tell(), response.raw.length_remaining) == (len(TEXT), 0)


def test_the_raw_response_knows_its_request(session: requests.Session, origin: Origin) -> None:
    origin.on("/", Answer(fields=FRESH, body=TEXT))
    for response in twice(session, origin.url("/?a=b#c")):
        assert response.content == TEXT
        raw: Any = response.raw
        assert (raw.url, raw.geturl(), raw.retries.total, raw.retries.read) == ("/?a=b", "/?a=b", 0, False)


def test_an_empty_body_is_an_open_file_until_it_is_read(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH))
    for response in twice(session, url):
        assert not response.raw.closed
        assert io.BufferedReader(response.raw).read() == b""
        assert response.raw.closed
    with session.get(url, stream=True) as response:
        raw: Any = response.raw
        assert io.TextIOWrapper(raw).read(1) == ""


@pytest.mark.parametrize("fields", [{}, {"Content-Encoding": "gzip"}])
def test_what_is_closed_unread_has_no_content(
    session: requests.Session, origin: Origin, fields: dict[str, str]
) -> None:
    url = origin.on("/", Answer(fields={**FRESH, **fields}, body=gzip.compress(TEXT)))
    session.get(url)
    response = session.get(url, stream=True)
    response.close()
    assert response.content == b""


def test_a_copied_session_is_on_the_same_cache(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT))
    with copy.deepcopy(session) as other:
        assert other.get(url).content == TEXT
        assert other.get_adapter(url) is not session.get_adapter(url)
    assert "; hit" in session.get(url).headers["cache-status"]
    assert session.get(origin.url("/other")).status_code == 404
    with pytest.raises(TypeError, match="CacheAdapter cannot be pickled"):
        pickle.dumps(session)


def test_a_response_may_be_pickled(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT))
    for response in twice(session, url):
        assert pickle.loads(pickle.dumps(response)).content == TEXT


@pytest.mark.parametrize(
    "timeout",
    [0.2, (5, 0.2), Timeout(connect=5, read=0.2), Timeout(total=0.2)],
    ids=["number", "tuple", "read", "total"],
)
def test_every_shape_of_a_timeout_holds_while_following(
    session: requests.Session, origin: Origin, timeout: Any
) -> None:
    release = threading.Event()
    url = origin.on("/", Answer(fields=FRESH, body=b"whole", before=release))
    leader = threading.Thread(target=session.get, args=(url,), kwargs={"timeout": None})
    leader.start()
    try:
        while not origin.count():
            time.sleep(0.005)
        began = time.monotonic()
        with pytest.raises(requests.ReadTimeout) as caught:
            session.get(url, timeout=timeout)
        assert time.monotonic() - began < 3
        assert caught.value.request is not None
    finally:
        release.set()
        leader.join(5)
    assert session.get(url, timeout=timeout).content == b"whole"
    assert origin.count() == 1


def test_cookies_reach_the_session(session: requests.Session, origin: Origin) -> None:
    cookies = [("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Path=/; Expires=Fri, 15 Jan 2100 08:00:00 GMT")]
    url = origin.on("/", Answer(fields=[*FRESH.items(), *cookies]))
    for response in twice(session, url):
        assert response.cookies.get_dict() == {"a": "1", "b": "2"}
        assert session.cookies.get_dict() == {"a": "1", "b": "2"}
        session.cookies.clear()


def test_digest_authentication(session: requests.Session, origin: Origin) -> None:
    """The handler sends its second request over the response's connection, which is through the cache."""
    challenge = Answer(401, {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth"'}, b"who are you?")
    url = origin.on("/", challenge, Answer(fields={"Cache-Control": "public, max-age=60"}, body=b"hello"))
    response = session.get(url, auth=HTTPDigestAuth("user", "password"))
    assert response.content == b"hello"
    assert response.headers["cache-status"]
    assert (origin.seen()[1].get("authorization") or "").startswith("Digest")
    assert [hop.status_code for hop in response.history] == [401]


def test_the_callers_request_shows_nothing_of_the_caches(
    session: requests.Session, origin: Origin, clock: Clock
) -> None:
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=1", "ETag": '"1"'}), Answer(500, body=b"no"))
    session.get(url)
    clock.advance(2)
    response = session.get(url)
    assert (response.status_code, origin.seen()[1].get("if-none-match")) == (500, '"1"')
    assert "If-None-Match" not in response.request.headers


def test_what_http_client_adds_is_seen(session: requests.Session, origin: Origin) -> None:
    """Without a field of the caller's, ``Accept-Encoding: identity`` goes out: a stored coding is no answer to that."""
    coded = Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=gzip.compress(TEXT))
    url = origin.on("/", coded, Answer(body=TEXT))
    assert session.get(url).content == TEXT
    response = session.get(url, headers={"Accept-Encoding": None})
    assert (response.content, response.headers.get("content-encoding")) == (TEXT, None)
    assert origin.seen()[1].get("accept-encoding") == "identity"


def test_the_user_agent_that_urllib3_adds_is_seen(session: requests.Session, origin: Origin, cache: Cache) -> None:
    url = origin.on(
        "/", Answer(fields={**FRESH, "Vary": "User-Agent"}, body=b"for urllib3"), Answer(body=b"for nobody")
    )
    for _ in range(2):
        assert session.get(url, headers={"User-Agent": None}).content == b"for urllib3"
    (seen,) = origin.seen()
    (stored,) = (stat.stored for stat in cache.storage.scan())
    assert dict(stored.selecting) == {"user-agent": seen.get("user-agent")}


def test_an_ambiguous_url_is_requests_error(session: requests.Session) -> None:
    request = session.prepare_request(requests.Request("GET", "http://127.0.0.1/"))
    request.url = "http://127.0.0.1\\.good.test/"
    with pytest.raises(requests.exceptions.InvalidURL):
        session.send(request)


def test_chunks_of_the_wire_are_not_those_of_the_raw_response(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT, framing="chunked"))
    for response in twice(session, url):
        assert not response.raw.chunked
        assert b"".join(response.raw.stream(1000)) == TEXT


def test_settings_of_a_call_reach_the_inner_adapter(cache: Cache) -> None:
    told: list[dict[str, Any]] = []
    closed: list[bool] = []

    class Inner(BaseAdapter):
        def send(self, request: requests.PreparedRequest, **how: Any) -> requests.Response:  # type: ignore[override]
            told.append(how)
            body = io.BytesIO(b"whole")
            raw = HTTPResponse(body, {"Cache-Control": "max-age=60", "Content-Length": "5"}, 200, preload_content=False)
            return HTTPAdapter().build_response(request, raw)

        def close(self) -> None:
            closed.append(True)

    with requests.Session() as session:
        session.trust_env = False
        session.mount("https://", CacheAdapter(cache, Inner()))
        for _ in range(2):
            response = session.get(
                "https://mock.test/",
                verify="ca.pem",
                cert=("c", "k"),
                timeout=(1, 2),
                proxies={"https": "http://p.test"},
            )
            assert response.content == b"whole"
    assert closed == [True]
    assert len(told) == 1
    assert told[0]["verify"] == "ca.pem"
    assert (told[0]["cert"], told[0]["timeout"], told[0]["stream"]) == (("c", "k"), (1, 2), True)
    assert told[0]["proxies"]["https"] == "http://p.test"


def test_a_veto_on_an_answer_without_a_cache_is_nothing(origin: Origin) -> None:
    refuse(requests.get(origin.on("/", Answer(body=b"one")), timeout=5))


def test_an_unread_response_lets_go_when_collected(session: requests.Session, origin: Origin) -> None:
    more = threading.Event()
    body: list[Part] = [b"first", more, *[b"x" * 65536] * 1000]
    url = origin.on("/", Answer(fields=FRESH, body=body), Answer(fields=FRESH, body=b"whole"))
    response = session.get(url, stream=True)
    assert next(response.iter_content(5)) == b"first"
    del response
    assert session.get(url + "?x").content == b"whole"
    more.set()
    assert origin.hangups.get(timeout=5) == "/"


def test_what_the_cache_has_not_changed_is_sent_as_it_is(cache: Cache, origin: Origin) -> None:
    sent: list[requests.PreparedRequest] = []

    class Noting(HTTPAdapter):
        def send(self, request: requests.PreparedRequest, *rest: Any, **more: Any) -> requests.Response:
            sent.append(request)
            return super().send(request, *rest, **more)

    url = origin.on("/", Answer(fields={"Cache-Control": "no-cache", "ETag": '"1"'}, body=b"body"))
    with requests.Session() as session:
        session.mount("http://", CacheAdapter(cache, Noting()))
        for _ in range(2):
            prepared = session.prepare_request(requests.Request("GET", url))
            assert session.send(prepared).content == b"body"
            assert (sent.pop() is prepared) is (origin.requests[-1].get("if-none-match") is None)
    assert origin.count() == 2


def test_who_reads_no_further_than_the_last_octet_has_read_it_all(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT))
    with session.get(url, stream=True) as response:
        octets = bytearray()
        while len(octets) < len(TEXT):
            octets += response.raw.read1(len(TEXT) - len(octets))
        assert "; hit" in session.get(url).headers["cache-status"]
    assert octets == TEXT


@pytest.mark.parametrize("body", [b"", TEXT])
def test_who_counts_what_it_iterates_over_has_read_it_all(
    session: requests.Session, origin: Origin, body: bytes
) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=body))
    with session.get(url, stream=True) as response:
        left = int(response.headers["content-length"])
        pieces = response.iter_content(1000)
        while left:
            left -= len(next(pieces))
        assert "; hit" in session.get(url).headers["cache-status"]


def test_a_content_of_unknown_length_is_closed_at_its_end(session: requests.Session, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=TEXT, framing="chunked"))
    for response in twice(session, url):
        assert b"".join(response.iter_content(1000)) == TEXT
        assert response.raw.closed
