"""What origins send that is not to be stored, or not to be relied upon: heads half read, unknown ends, long parts."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import aiohttp
import httpx
import pytest
import requests

from tests.clients import CLIENTS
from tests.origin import Answer

if TYPE_CHECKING:
    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock, Origin, Part

ERRORS = (aiohttp.ClientError, httpx.HTTPError, requests.RequestException)  # some clients refuse some of this
FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}


def raw(head: str, body: bytes = b"secret octets of the origin") -> Answer:
    lines = ["HTTP/1.1 200 OK", "Connection: close", *head.splitlines(), "", ""]
    return Answer(body="\r\n".join(lines).encode("latin-1") + body, framing="raw")


def with_others(client: Client) -> list[Client]:
    return [kind(client.cache) for kind in CLIENTS.values()]


def test_an_interim_response_never_gives_a_url_the_content_of_another(client: Client, origin: Origin) -> None:
    """RFC 9110 section 15.2. http.client takes a 103 for the final response, and the 200 is still to come."""
    late = b"HTTP/1.1 200 OK\r\nConnection: close\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\na"
    parts: list[Part] = [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0.2, late]
    origin.on("/a", Answer(body=parts, framing="raw"))
    origin.on("/b", Answer(fields=FRESH, body=b"b"))
    client.get(origin.url("/a"))
    for _ in range(2):
        assert client.get(origin.url("/b")).body == b"b"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 27\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\nCache-Control : no-store",
        "Content-Length: 27\nCache-Control: max-age=60\nno field at all\nCache-Control: no-store",
    ],
    ids=["a space before the colon", "a line that is none"],
)
def test_a_head_that_cannot_be_read_to_its_end_is_not_stored(
    world: World, client: Client, origin: Origin, head: str
) -> None:
    """The fields behind what a parser stumbles over may forbid it."""
    url = origin.on("/", raw(head))
    for _ in range(2):
        with suppress(*ERRORS):
            assert not client.get(url).hit
    assert not world.on_disk(b"secret octets of the origin")


def test_a_multipart_content_is_stored_as_any_other(client: Client, origin: Origin) -> None:
    """Parsers of mail miss its parts in the head."""
    url = origin.on("/", Answer(fields={**FRESH, "Content-Type": "multipart/mixed; boundary=x"}, body=b"--x--"))
    assert [client.get(url).hit for _ in range(2)] == [False, True]


@pytest.mark.parametrize("coding", ["identity", "gzip", "gzip, chunked", "chunked, identity", "chunked, chunked"])
def test_a_transfer_coding_that_nobody_undoes_is_not_stored(
    world: World, client: Client, origin: Origin, coding: str
) -> None:
    """RFC 9112 sections 6.1 and 6.3: its end is the connection's, too."""
    body = b"1b\r\nsecret octets of the origin\r\n0\r\n\r\n"
    url = origin.on("/", raw(f"Cache-Control: max-age=60\nTransfer-Encoding: {coding}", body))
    for _ in range(2):
        with suppress(*ERRORS):
            assert not client.get(url).hit
    assert not world.on_disk(b"secret octets of the origin")


def test_a_part_longer_than_it_says_answers_nothing(client: Client, origin: Origin) -> None:
    """RFC 9110 section 14.4."""
    wrong = Answer(206, {**FRESH, "Content-Range": "bytes 0-6/10"}, b"0123456789", framing="chunked")
    url = origin.on("/", wrong, Answer(206, {**FRESH, "Content-Range": "bytes 4-6/10"}, b"456"))
    client.get(url, {"Range": "bytes=0-6"})
    got = client.get(url, {"Range": "bytes=4-6"})
    assert (got.body, got.hit) == (b"456", False)


def test_what_was_asked_for_before_a_write_answers_nobody_after_it(
    world: World, client: Client, origin: Origin
) -> None:
    """RFC 9111 section 4.4: nor is it stored, though its head comes later."""
    arrived, held = threading.Event(), threading.Event()
    content = [b"old"]

    def answer(seen: object) -> Answer:
        body = content[0]
        if body == b"old":
            arrived.set()
        return Answer(fields=FRESH, body=body, before=held if body == b"old" else 0.0)

    url = origin.on("/", answer)
    got: list[bytes] = []
    early = threading.Thread(target=lambda: got.append(world.client(client.cache).get(url).body))
    early.start()
    assert arrived.wait(10)
    content[0] = b"new"
    origin.on("/write", Answer(204, {"Location": "/"}))
    client.get(origin.url("/write"), method="POST", body=b"x")
    late = threading.Thread(target=lambda: got.append(world.client(client.cache).get(url).body))
    late.start()
    held.set()
    for thread in (early, late):
        thread.join(10)
    assert sorted(got) == [b"new", b"old"]
    assert client.get(url).body == b"new"


def test_a_validator_that_no_client_would_send_is_not_sent(client: Client, origin: Origin, clock: Clock) -> None:
    url = origin.on("/", raw('Cache-Control: max-age=60\nContent-Length: 3\nETag: "a\x01b"', b"one"))
    for other in with_others(client):
        with closing(other), suppress(*ERRORS):
            other.get(url)
    clock.advance(61)
    origin.on("/", Answer(body=b"two"))
    got = client.get(url)
    assert (got.body, "fwd=stale" in got.cache_status) == (b"two", True)
    assert not any(seen.get("if-none-match") for seen in origin.seen())


def test_a_reason_phrase_is_octets(client: Client, origin: Origin) -> None:
    head = "HTTP/1.1 200 d\xe9p\xf4t\r\nConnection: close\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\n"
    url = origin.on("/", Answer(body=head.encode("latin-1") + b"x", framing="raw"))
    assert client.get(url).body == b"x"
    for other in with_others(client):
        with closing(other):
            got = other.get(url)
            assert (got.body, got.hit) == (b"x", True)


def test_space_around_a_value_is_no_part_of_it(client: Client, origin: Origin) -> None:
    """RFC 9110 section 5.5."""
    coded = b"x\x9c\xcbH\xcd\xc9\xc9\x07\x00\x06,\x02\x15"  # hello, by zlib
    url = origin.on("/", raw("Cache-Control: max-age=60\nContent-Length: 13 \nContent-Encoding: deflate  ", coded))
    assert client.get(url).body == b"hello"
    for other in with_others(client):
        with closing(other):
            got = other.get(url)
            assert (got.body, got.hit) == (b"hello", True)


@pytest.mark.parametrize("line", [("Cache-Control", 'max-age=60, no-cache="location"'), ("Connection", "location")])
def test_a_stored_redirect_leads_somewhere(client: Client, origin: Origin, line: tuple[str, str]) -> None:
    fields = [("Cache-Control", "max-age=60"), ("Location", "/to"), line]
    url = origin.on("/from", Answer(301, fields, b"gone"))
    origin.on("/to", Answer(body=b"here"))
    for _ in range(2):
        assert client.get(url).body == b"here"


def test_an_empty_coded_content_is_kept(client: Client, origin: Origin) -> None:
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=b""))
    for hit in (False, True):
        got = client.get(url)
        assert (got.body, got.hit) == (b"", hit)
