"""``vllm-http-cache explain``: what is stored for a URL, and what the rules make of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from .folder import Folder, opened
from .naming import Url, keys, named, of_url
from .terminal import say

if TYPE_CHECKING:
    from vllm_http_cache.rfc9111.message import Request, StoredResponse
    from vllm_http_cache.rfc9111.options import CacheOptions
    from vllm_http_cache.storage.files import FileStorage

__all__ = ["explain"]

FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")  # RFC 9110 sections 5.1 and 5.5


def _field(line: str) -> tuple[str, str]:
    found = FIELD.fullmatch(line)
    if found is None:
        raise typer.BadParameter(f"--header {line!r} is not 'Name: value'")
    return found[1], found[2]


def explain(
    url: Url,
    folder: Folder = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="A field of the request, 'Name: value'; may be repeated. Without any: those that vLLM sends.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tell what is stored for a URL, whether it is fresh and why, and what a GET would do. Exit code 1: nothing is."""
    from vllm_http_cache.rfc9111.explain import outcome
    from vllm_http_cache.rfc9111.message import Fields, Request

    request = Request("GET", named(url), Fields(map(_field, header) if header else _of_vllm()))
    now = time.time()
    with opened(folder, absent=1) as (storage, settings, _):
        found = _found(storage, url, settings.options)
        here = settings.options
    for stored, options in found:
        _tell(request, stored, now, options, here)
    if not found:
        say("nothing is stored")
    if all(options != here for _, options in found):
        say(f"a GET is {outcome(request, (), now, here)}")
    raise typer.Exit(0 if found else 1)


def _found(storage: FileStorage, url: str, options: CacheOptions) -> list[tuple[StoredResponse, CacheOptions | None]]:
    """What is stored for *url*, and the options under which a GET finds it. None: none; it lies under another key."""
    found: list[tuple[StoredResponse, CacheOptions | None]] = [
        (stat.stored, varied) for key, varied in keys(url, options).items() for stat in storage.stat(key)
    ]
    return found or [(stat.stored, None) for stat in filter(of_url(url, options), storage.scan())]


def _tell(
    request: Request, stored: StoredResponse, now: float, options: CacheOptions | None, here: CacheOptions
) -> None:
    """:param options: those under which a GET finds it; None: none."""
    from vllm_http_cache.rfc9111.explain import explain as explained
    from vllm_http_cache.rfc9111.vary import vary_names

    said = explained(request, stored, now, options or here)
    length = f", {stored.body.length} octets" if stored.body else ""
    say(f"{stored.status} {stored.reason}{length}")
    for name, value in stored.fields:
        say(f"    {name}: {value}")
    say(f"  {'fresh' if said.fresh else 'stale'}: {said.age:.0f} s old, fresh for {said.lifetime:.0f} s")
    say(f"  by {said.rule}")
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(said.stale_at))
    say(f"  {'goes' if said.fresh else 'went'} stale {when}")
    if options is None:
        say("  under another key, as hishel or a URL with user information has it: no GET of this URL finds it")
        return
    there = ""
    if options != here:
        shared, signed = str(options.shared).lower(), str(options.signed_urls).lower()
        there = f" with MEDIA_CACHE_SHARED={shared} and MEDIA_CACHE_SIGNED_URLS={signed}, unlike here,"
    say(f"  a GET{there} is {said.outcome}")
    if vary_names(stored.fields):
        say(f"  a GET with {', '.join(f'{name}: {value}' for name, value in request.fields)}")
    for name, value in said.validation:
        say(f"  to validate it: {name}: {value}")
    for note in said.notes:
        say(f"  {note}")


def _of_vllm() -> Iterator[tuple[str, str]]:
    """The fields of vLLM's own requests."""
    from importlib.metadata import PackageNotFoundError, version

    from vllm_http_cache.vllm.hops import USUAL

    yield from USUAL
    with suppress(PackageNotFoundError):
        yield "User-Agent", f"vLLM/{version('vllm')}"
