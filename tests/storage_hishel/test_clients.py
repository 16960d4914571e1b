"""as_hishel under hishel's own httpx transports, over real sockets."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import requests
from hishel.requests import CacheAdapter

from tests.origin import Answer, Origin, Seen
from tests.storage.helpers import occupied
from tests.storage_hishel.conftest import Clock, MakeFace
from tests.storage_hishel.faces import Face
from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.httpx import CacheTransport
from vllm_http_cache.storage.hishel import as_hishel

MIB = 1024 * 1024
FRESH = {"Cache-Control": "max-age=600"}
STALE = {"Cache-Control": "max-age=0"}


def by_tag(headers: dict[str, str], body: bytes = b"body") -> Callable[[Seen], Answer]:
    """Answers a request that has the tag with a 304 whose fields are these too."""

    def answer(seen: Seen) -> Answer:
        fields = {"ETag": '"a"', "X-Count": str(len(seen.fields)), **headers}
        return Answer(304, fields) if seen.get("if-none-match") == '"a"' else Answer(200, fields, body)

    return answer


def test_a_miss_then_hits(face: Face, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, [*FRESH.items(), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], b"body"))
    first, second = face.get(url), face.get(url)
    assert (first.hit, second.hit) == (False, True)
    assert first.body == second.body == b"body"
    assert second.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert origin.count("/a") == 1


def test_a_large_chunked_coded_body(face: Face, origin: Origin) -> None:
    body = os.urandom(2 * MIB) + bytes(MIB)
    coded = gzip.compress(body)
    parts = [coded[at : at + 50_000] for at in range(0, len(coded), 50_000)]
    url = origin.on("/a", Answer(200, {**FRESH, "Content-Encoding": "gzip"}, parts, framing="chunked"))
    assert face.get(url).body == face.get(url).body == body
    assert origin.count("/a") == 1


def test_a_304_updates_the_fields(face: Face, origin: Origin) -> None:
    url = origin.on("/a", by_tag({**STALE, "X-Round": "1"}), by_tag({**FRESH, "X-Round": "2"}))
    assert face.get(url).headers["x-round"] == "1"
    validated = face.get(url)
    assert (validated.body, validated.headers["x-round"]) == (b"body", "2")
    assert validated.how["revalidated"]
    hit = face.get(url)
    assert (hit.hit, hit.body, hit.headers["x-round"]) == (True, b"body", "2")
    assert [seen.get("if-none-match") for seen in origin.seen("/a")] == [None, '"a"']


def test_content_that_changed_is_replaced(face: Face, origin: Origin) -> None:
    url = origin.on("/a", by_tag(STALE, b"old"), Answer(200, FRESH, b"new"))
    assert [face.get(url).body for _ in range(3)] == [b"old", b"new", b"new"]
    assert origin.count("/a") == 2


def test_variants(face: Face, origin: Origin) -> None:
    url = origin.on("/a", lambda seen: Answer(200, {**FRESH, "Vary": "Accept"}, (seen.get("accept") or "").encode()))
    for _ in range(2):
        assert face.get(url, {"Accept": "image/png"}).body == b"image/png"
        assert face.get(url, {"Accept": "image/webp"}).body == b"image/webp"
    assert origin.count("/a") == 2


def test_who_varies_by_a_credential_is_validated(face: Face, origin: Origin) -> None:
    url = origin.on("/a", by_tag({"Cache-Control": "public, max-age=600", "Vary": "Authorization"}))
    for token in ("one", "one", "two"):
        assert face.get(url, {"Authorization": token}).body == b"body"
    assert [seen.get("if-none-match") for seen in origin.seen("/a")] == [None, '"a"', '"a"']


def test_an_unsafe_request_removes_the_entry(face: Face, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    face.get(url)
    assert face.get(url).hit
    face.get(url, method="POST")
    assert not face.get(url).hit


def test_head_and_get_do_not_answer_for_one_another(face: Face, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    assert face.get(url, method="HEAD").body == b""
    assert [face.get(url).body for _ in range(2)] == [b"body", b"body"]
    assert face.get(url, method="HEAD").hit
    assert [seen.method for seen in origin.seen("/a")] == ["HEAD", "GET"]


@pytest.mark.parametrize(
    "cut",
    [
        Answer(200, FRESH, b"half", length=8, end="cut"),
        Answer(200, FRESH, [b"half"], framing="chunked", end="cut"),
    ],
    ids=["length", "chunked"],
)
def test_a_truncated_body_is_an_error_and_not_kept(face: Face, origin: Origin, cut: Answer) -> None:
    url = origin.on("/a", cut, Answer(200, FRESH, b"whole"))
    with pytest.raises(httpx.RemoteProtocolError):
        face.get(url)
    assert [face.get(url).body for _ in range(2)] == [b"whole", b"whole"]
    assert origin.count("/a") == 2


# httpx leaves hishel's generator unclosed, and trio says so.
@pytest.mark.filterwarnings("ignore:.*_ResponseStream.__aiter__:pytest.PytestUnraisableExceptionWarning")
def test_a_body_that_the_client_gives_up_is_not_kept(face: Face, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, [bytes(100_000)] * 20, framing="chunked"))
    face.abandon(url)
    assert not face.get(url).hit
    assert face.get(url).hit


def test_without_rfc_an_entry_lives_for_its_ttl(
    make_face: MakeFace, clock: Clock, tmp_path: Path, origin: Origin
) -> None:
    face = make_face(FileStorage(tmp_path, clock=clock), default_ttl=60.0)
    url = origin.on("/a", Answer(200, {"Cache-Control": "no-store"}, b"body"))
    assert [face.get(url, rfc=False).hit for _ in range(3)] == [False, True, True]
    clock.ahead = 61
    assert [face.get(url, rfc=False).hit for _ in range(2)] == [False, True]


def test_the_bound_holds_and_the_least_recently_used_goes(make_face: MakeFace, tmp_path: Path, origin: Origin) -> None:
    face = make_face(FileStorage(tmp_path, max_size=3 * MIB))
    urls = [origin.on(f"/{number}", Answer(200, FRESH, bytes(200_000))) for number in range(30)]
    for url in urls:
        assert len(face.get(url).body) == 200_000
        assert occupied(tmp_path) <= 3 * MIB
    assert face.get(urls[-1]).hit
    assert not face.get(urls[0]).hit
    assert occupied(tmp_path) <= 3 * MIB


def test_it_survives_a_restart(make_face: MakeFace, tmp_path: Path, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    make_face(FileStorage(tmp_path)).get(url)
    assert make_face(FileStorage(tmp_path)).get(url).hit


def test_our_own_cache_shares_the_folder_and_not_the_entries(
    make_face: MakeFace, tmp_path: Path, origin: Origin
) -> None:
    storage = FileStorage(tmp_path)
    face = make_face(storage)
    url = origin.on("/a", Answer(200, FRESH, b"body"))
    face.get(url)
    with httpx.Client(transport=CacheTransport(httpx.HTTPTransport(), Cache(storage, clock=origin.clock))) as client:
        assert [client.get(url).content for _ in range(2)] == [b"body", b"body"]
    assert face.get(url).hit
    assert origin.count("/a") == 2
    assert len(list(storage.scan())) <= 2


def test_requests_too(tmp_path: Path, origin: Origin) -> None:
    url = origin.on("/a", Answer(200, FRESH, bytes(300_000)))
    with requests.Session() as session:
        session.mount("http://", CacheAdapter(storage=as_hishel(FileStorage(tmp_path)), rfc=True))
        assert [session.get(url).content for _ in range(2)] == [bytes(300_000)] * 2
    assert origin.count("/a") == 1
