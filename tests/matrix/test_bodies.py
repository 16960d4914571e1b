"""What the caller reads and what is kept of it: codings, repeated fields."""

from __future__ import annotations

import gzip
import threading
import tracemalloc
import zlib
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import CLIENTS
from tests.origin import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock, Framing, Origin, Part

brotli: Any = pytest.importorskip("brotli")

FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}
TEXT = b"hello world, hello cache. " * 1000
MIB = 1024**2


@cache
def code(coding: str) -> bytes:
    return bytes({"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}[coding](TEXT))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(fields=FRESH, body=[b"x" * 500], length=1000, end="cut"),
        Answer(fields=FRESH, body=[b"x" * 500, b"y" * 500], framing="chunked", end="cut"),
        Answer(
            fields=FRESH,
            body=b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            framing="raw",
        ),
        Answer(fields=FRESH, body=[b"x" * 500], length=1000, end="reset"),
    ],
    ids=["length", "chunk boundary", "inside a chunk", "reset"],
)
def test_a_body_cut_off_is_an_error_and_never_stored(
    world: World, client: Client, origin: Origin, answer: Answer
) -> None:
    """The next call gets it whole."""
    url = origin.on("/", answer, Answer(fields=FRESH, body=b"whole"))
    with pytest.raises(client.broken):
        client.get(url)
    assert not world.on_disk(b"x" * 500)
    got = client.get(url)
    assert (got.body, got.hit) == (b"whole", False)
    assert origin.seen()[1].get("if-none-match") is None
    assert client.get(url).hit


@pytest.mark.parametrize("coding", ["chunked ", "CHUNKED", "identity, chunked", "chunked, chunked", "foo, chunked"])
def test_chunks_are_taken_off_however_they_are_announced(
    world: World, client: Client, origin: Origin, coding: str
) -> None:
    """Or the client takes it for an error, as without a cache."""
    head = f"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    cut = b"a\r\nPNG octets\r\n4\r\nmo"
    whole = origin.on("/whole", Answer(body=head + cut + b"re\r\n0\r\n\r\n", framing="raw"))
    for _ in range(2):
        try:
            assert client.get(whole).body == b"PNG octetsmore"
        except client.broken:
            assert client.name != "requests"
    with pytest.raises(client.broken):
        client.get(origin.on("/cut", Answer(body=head + cut, framing="raw", end="cut")))
    assert not world.on_disk(b"\r\n")


def test_a_body_that_ends_with_its_connection_is_not_stored(client: Client, origin: Origin) -> None:
    """Decision 8: nothing says that it is whole."""
    url = origin.on("/", Answer(fields=FRESH, body=b"whole or not", framing="close"))
    assert client.get(url).body == b"whole or not"
    got = client.get(url)
    assert (got.body, got.hit) == (b"whole or not", False)


@pytest.mark.parametrize("after", ["miss", "hit"])
def test_refused_octets_are_fetched_again(client: Client, origin: Origin, after: str) -> None:
    """The consumer's veto drops the entry, without a condition to bring it back."""
    url = origin.on(
        "/", Answer(fields=FRESH, body=b"<html>busy</html>"), Answer(fields=FRESH, body=b"the real picture")
    )
    got = client.get(url)
    if after == "hit":
        got = client.get(url)
        assert got.hit
    got.refuse()
    assert client.get(url).body == b"the real picture"
    assert origin.seen()[1].get("if-none-match") is None
    assert client.get(url).hit


def test_a_refusal_does_not_drop_what_came_after(client: Client, origin: Origin, clock: Clock) -> None:
    """Who refuses late must not harm the entry that replaced the bad one."""
    url = origin.on("/", Answer(fields=FRESH, body=b"bad"), Answer(fields=FRESH, body=b"good"))
    bad = client.get(url)
    clock.advance(61)
    assert client.get(url).body == b"good"
    bad.refuse()
    got = client.get(url)
    assert (got.body, got.hit) == (b"good", True)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_a_coded_body_is_stored_as_sent(client: Client, origin: Origin, coding: str, framing: Framing) -> None:
    """Right octets, and fields that agree with them, from the origin and from the cache."""
    coded = code(coding)
    fields = {**FRESH, "Content-Encoding": coding}
    url = origin.on("/", Answer(fields=fields, body=coded, framing=framing))
    for hit in (False, True, True):
        got = client.get(url)
        assert (got.body, got.hit, got.get("content-encoding")) == (TEXT, hit, coding)
    got = client.get(url, coded=True)
    assert (got.body, got.hit, got.get("content-encoding")) == (coded, True, coding)
    assert got.get("content-length") in (str(len(coded)), None)


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_every_client_reads_what_one_has_stored(client: Client, origin: Origin, coding: str) -> None:
    """One cache under all of them at once."""
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": coding}, body=code(coding), framing="chunked"))
    assert client.get(url).body == TEXT
    for kind in CLIENTS.values():
        with closing(kind(client.cache)) as other:
            got = other.get(url)
            assert (got.body, got.hit, got.get("content-encoding")) == (TEXT, True, coding)
            assert other.get(url, coded=True).body == code(coding)


def test_a_stored_coding_that_the_request_does_not_accept_is_a_miss(client: Client, origin: Origin) -> None:
    """Stored by a process with a coding, read by one without."""
    url = origin.on(
        "/",
        Answer(fields={**FRESH, "Content-Encoding": "br"}, body=code("br")),
        Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=code("gzip")),
    )
    assert client.get(url, {"Accept-Encoding": "br"}).body == TEXT
    got = client.get(url, {"Accept-Encoding": "gzip"})
    assert (got.body, got.get("content-encoding"), got.hit) == (TEXT, "gzip", False)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("cut", ["short", "damaged"])
def test_a_coded_body_that_does_not_decode_is_not_stored(client: Client, origin: Origin, coding: str, cut: str) -> None:
    """Whole by its framing, and yet not whole."""
    coded = code(coding)
    bad = coded[:-10] if cut == "short" else coded[:20] + bytes(20) + coded[40:]
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": coding}, body=bad), Answer(body=b"next"))
    client.get(url, coded=True)
    assert client.get(url).body == b"next"


def test_repeated_fields_stay_apart(client: Client, origin: Origin) -> None:
    cookies = [("Set-Cookie", "a=1; Expires=Fri, 15 Jan 2100 08:00:00 GMT; Path=/"), ("Set-Cookie", "b=2; Path=/")]
    lines = [*FRESH.items(), *cookies, ("Link", "<a>"), ("Link", "<b>"), ("X-Latin", "caf\xe9")]
    url = origin.on("/", Answer(fields=lines, body=b"one"))
    for hit in (False, True):
        got = client.get(url)
        assert got.hit is hit
        assert got.get_all("set-cookie") == [value for _, value in cookies]
        assert got.get_all("link") == ["<a>", "<b>"]
        assert got.get("x-latin") == "caf\xe9"
        assert got.cookies == {"a": "1", "b": "2"}


def test_another_caches_status_stays_beside_ours(client: Client, origin: Origin) -> None:
    """RFC 9211 section 2."""
    url = origin.on("/", Answer(fields={**FRESH, "Cache-Status": "squid; hit"}), Answer(fields=FRESH))
    for _ in range(2):
        got = client.get(url)
        assert got.get_all("cache-status")[0] == "squid; hit"
        assert len(got.get_all("cache-status")) == 2


def endless(piece: bytes = b"x" * 65536) -> Iterator[Part]:
    while True:
        yield piece


def test_a_caller_may_stop_an_endless_body(world: World, origin: Origin) -> None:
    """Nothing is stored, and the origin sees the connection go."""
    client = world.client(max_size=8 * MIB)
    url = origin.on("/", Answer(fields=FRESH, body=endless(), framing="chunked"), Answer(body=b"next"))
    with client.stream(url) as stream:
        assert stream.take(MIB)
    assert origin.hangups.get(timeout=5) == "/"
    assert world.eventually(lambda: not world.on_disk(b"x" * 65536))
    assert client.get(url).body == b"next"


def test_a_body_over_the_largest_entry_passes_through(world: World, origin: Origin) -> None:
    """It is read to its end, and not stored."""
    client = world.client(max_entry_size=MIB)
    pieces: list[Part] = [bytes([n]) * 65536 for n in range(64)]
    url = origin.on("/", Answer(fields=FRESH, body=pieces, framing="chunked"))
    for _ in range(2):
        got = client.get(url)
        assert (len(got.body), got.hit) == (64 * 65536, False)
        assert got.body[-65536:] == pieces[-1]


def test_a_bomb_is_stopped_by_its_caller(world: World, client: Client, origin: Origin) -> None:
    """A little of it opens to a lot; the caller stops at its cap."""
    bomb = gzip.compress(bytes(64 * MIB))
    more = threading.Event()
    body: list[Part] = [bomb[:-100], more, *[b"x" * 65536] * 1000]
    fields = {**FRESH, "Content-Encoding": "gzip"}
    url = origin.on("/", Answer(fields=fields, body=body, framing="chunked"), Answer(body=b"next"))
    with client.stream(url) as stream:
        assert stream.take(MIB)
    more.set()
    assert origin.hangups.get(timeout=5) == "/"
    assert world.eventually(lambda: not world.on_disk(bomb[:1000]))
    assert client.get(url).body == b"next"


@pytest.mark.slow
@pytest.mark.only("httpx", "aiohttp", "requests")
def test_a_bomb_taken_whole_is_not_stored(world: World, client: Client, origin: Origin) -> None:
    """1 MB that opens to more than 1 GB; its caller has not decoded it."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    zeros = bytes(16 * MIB)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(66)), packer.flush()])
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=bomb), Answer(body=b"next"))
    assert client.get(url, coded=True).body == bomb
    assert not world.on_disk(bomb[:1000])
    assert client.get(url).body == b"next"


def test_a_caller_who_goes_away_leaves_no_half_entry(world: World, client: Client, origin: Origin) -> None:
    """The next full GET stores, the one after hits."""
    more = threading.Event()
    body: list[Part] = [b"first" * 1000, more, *[b"x" * 65536] * 1000]
    url = origin.on("/", Answer(fields=FRESH, body=body), Answer(fields=FRESH, body=b"whole"))
    with client.stream(url) as stream:
        assert stream.read()
    more.set()
    assert origin.hangups.get(timeout=5) == "/"
    assert world.eventually(lambda: not world.on_disk(b"first" * 1000))
    got = client.get(url)
    assert (got.body, got.hit) == (b"whole", False)
    assert client.get(url).hit


def test_a_connection_goes_back_to_its_pool(client: Client, origin: Origin) -> None:
    """A body read to its end, stored or not, frees its connection for the next request."""
    framings: tuple[Framing, ...] = ("length", "chunked")
    for path, fields in (("/kept", FRESH), ("/passed", {"Cache-Control": "no-store"})):
        for framing in framings:
            url = origin.on(path + framing, Answer(fields=fields, body=b"whole" * 1000, framing=framing))
            for _ in range(2):
                assert client.get(url).body == b"whole" * 1000
    assert origin.accepted == 1


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_memory_does_not_grow_with_the_body(client: Client, origin: Origin, framing: Framing) -> None:
    """A few chunks, on a miss and on a hit."""
    size, piece = 48 * MIB, b"x" * 65536
    body: list[Part] = [piece] * (size // len(piece))
    url = origin.on("/", Answer(fields=FRESH, body=body, framing=framing))
    for _ in ("miss", "hit"):
        tracemalloc.start()
        try:
            with client.stream(url) as stream:
                assert sum(len(chunk) for chunk in iter(stream.read, b"")) == size
            assert tracemalloc.get_traced_memory()[1] < 10 * MIB
        finally:
            tracemalloc.stop()
    assert origin.count() == 1
