"""Where vLLM alone would have its media, it has them with the cache too; and what vLLM alone refuses stays refused."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import zlib
from contextvars import copy_context
from typing import Any

import aiohttp
import pytest

pytest.importorskip("vllm.connections")

from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaConnector

from tests.origin import Answer, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch, Octets, picture
from vllm_http_cache.vllm.attempt import Attempt
from vllm_http_cache.vllm.connector import _Loading, _Metered

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}


def reachable() -> int:
    """The octets that something still refers to: an exception that left a loop is in a cycle with the loop's task."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("allowed", [True, False], ids=["asked for", "refused"])
def test_long_urls_do_not_stay_in_memory(plugin: Plugin, origin: Origin, fetch: Fetch, allowed: bool) -> None:
    plugin.start()
    assert fetch.grey(origin.on("/", Answer(fields=FRESH, body=picture(3)))) == 3  # the cache is open
    url = origin.on("/long", Answer(404, {"Cache-Control": "no-store"}))
    domains = [origin.host if allowed else "a.test"]
    before = 0
    tracemalloc.start()
    try:
        for number in range(300):
            with pytest.raises(Exception, match="404" if allowed else "allowed domains"):
                fetch("image", f"{url}?{number}{'x' * 20_000}", allowed_media_domains=domains)
            origin.requests.clear()
            if number == 150:  # urllib and yarl remember 128, whatever their length
                before = reachable()
        assert reachable() - before < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(fields={"Cache-Control": "no-store"}, body=b"for each"),
        Answer(503, {"Retry-After": "0"}, b"down"),
        Answer(fields={"Cache-Control": "max-age=60"}, body=b"for each", framing="close"),
    ],
    ids=["no-store", "failing", "unframed"],
)
def test_who_waited_in_vain_has_all_its_time_for_a_request_of_its_own(
    plugin: Plugin, origin: Origin, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    plugin.start()
    late = Answer(answer.status, answer.fields, answer.body, answer.framing, before=0.6)
    url = origin.on("/", late)
    connector: Any = MediaConnector()

    async def main() -> list[Any]:
        loads = [connector.load_from_url_async(url, Octets(), fetch_timeout=1) for _ in range(5)]
        return await asyncio.gather(*loads, return_exceptions=True)

    assert not [one for one in asyncio.run(main()) if isinstance(one, TimeoutError)]
    assert origin.count() == 5


@pytest.mark.parametrize("end", ["cut", "reset"])
@pytest.mark.parametrize("control", ["no-store", "max-age=600"])
def test_the_content_of_a_redirect_does_not_matter(
    plugin: Plugin, origin: Origin, fetch: Fetch, control: str, end: Any
) -> None:
    plugin.start()
    to = origin.on("/to", Answer(fields=FRESH, body=picture(3)))
    fields = {"Location": to, "Cache-Control": control}
    url = origin.on("/from", Answer(302, fields, [b"mov"], length=100, end=end))
    assert fetch.grey(url) == 3


def test_the_content_of_a_redirect_may_never_come(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    to = origin.on("/to", Answer(fields=FRESH, body=picture(3)))
    never = threading.Event()
    fields = {"Location": to, "Cache-Control": "no-store"}
    url = origin.on("/from", Answer(302, fields, [b"mov", never], length=100))
    assert fetch.grey(url) == 3


def test_a_connector_with_a_rule_of_its_own_is_obeyed(plugin: Plugin, origin: Origin) -> None:
    class Own(MediaConnector):  # type: ignore[misc]
        def _assert_url_in_allowed_media_domains(self, url_spec: Any) -> None:
            if url_spec.path == "/blocked" or not url_spec.host.endswith(".0.0.1"):
                raise ValueError("one of my own")

    plugin.start()
    connector: Any = Own(allowed_media_domains=["*.0.0.1"])
    good = origin.on("/good", Answer(fields=FRESH, body=b"good"))
    blocked = origin.on("/blocked", Answer(fields=FRESH, body=b"blocked"))
    leading = origin.on("/leading", Answer(302, {"Location": blocked}))
    anybody: Any = MediaConnector()
    for _ in range(2):
        assert connector.load_from_url(good, Octets()) == b"good"
        assert anybody.load_from_url(blocked, Octets()) == b"blocked"
        with pytest.raises(ValueError, match="one of my own"):
            connector.load_from_url(blocked, Octets())
        with pytest.raises(VLLMUnprocessableEntityError, match=r"leads to 127\.0\.0\.1\. one of my own"):
            connector.load_from_url(leading, Octets())
    assert origin.count("/blocked") == 1


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate, br"])
def test_a_coding_that_was_not_asked_for_is_undone_all_the_same(
    plugin: Plugin, origin: Origin, fetch: Fetch, coding: str
) -> None:
    libraries = {name: pytest.importorskip(library) for name, library in (("br", "brotli"), ("zstd", "zstandard"))}
    coders = {
        "br": libraries["br"].compress,
        "zstd": lambda data: libraries["zstd"].ZstdCompressor().compress(data),
        "deflate, br": lambda data: libraries["br"].compress(zlib.compress(data)),
    }
    plugin.start()
    url = origin.on("/", Answer(fields={**FRESH, "Content-Encoding": coding}, body=coders[coding](picture(5))))
    assert [fetch.grey(url) for _ in range(2)] == [5, 5]


def test_a_failure_with_a_lifetime_does_not_answer_the_retry(
    plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "2")
    plugin.start()
    url = origin.on("/", Answer(503, {"Cache-Control": "max-age=60"}), Answer(fields=FRESH, body=picture(4)))
    assert fetch.grey(url) == 4


def test_an_error_shows_no_password(plugin: Plugin, origin: Origin) -> None:
    """As aiohttp has it."""
    plugin.start()
    url = origin.on("/", Answer(404)).replace("http://", "http://user:word@")
    with pytest.raises(aiohttp.ClientResponseError) as raised:
        Fetch(asynchronous=True).octets(url)
    assert "127.0.0.1" in str(raised.value) and "word" not in str(raised.value)


def test_an_error_that_dribbles_holds_nobody(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    never = threading.Event()
    url = origin.on("/", Answer(404, {"Cache-Control": "max-age=60"}, [b"x", 0.6, b"y", 0.6, b"z", never], length=12))
    with pytest.raises(Exception, match="404"):
        fetch.octets(url, timeout=30)


def test_loads_at_once_share_a_media_io(plugin: Plugin, origin: Origin) -> None:
    class Budget:
        used = 0

    class Shared(Octets):
        decoded_budget: Any = Budget()

    plugin.start()
    shared, budget = Shared(), Shared.decoded_budget
    connector: Any = MediaConnector()

    def overlap() -> None:
        with _Loading(connector, "http://a.test/", shared):
            second = _Loading(connector, "http://a.test/", shared)
            second.__enter__()
            assert isinstance(shared.decoded_budget, _Metered)
            assert shared.decoded_budget.budget is budget
        second.__exit__(None, None, None)

    for _ in range(3):
        copy_context().run(overlap)
        assert shared.decoded_budget is budget


def test_where_media_may_come_from_is_asked_of_each_hop() -> None:
    def allowed(url: Any) -> None:
        if url.host != "good.test":
            raise ValueError("bad")

    attempt = Attempt("http://good.test/", allowed)
    attempt.check("http://good.test/a")
    with pytest.raises(VLLMUnprocessableEntityError, match=r"bad"):
        attempt.check("http://evil.test/a")
