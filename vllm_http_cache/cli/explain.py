"""``vllm-http-cache explain``: what is stored for a URL, and what the rules make of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from .folder import Folder, opened
from .naming import Url, keys, named

if TYPE_CHECKING:
    from vllm_http_cache.rfc9111.message import Request, StoredResponse
    from vllm_http_cache.rfc9111.options import CacheOptions

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
    from vllm_http_cache.rfc9111.message import Fields, Request

    request = Request("GET", named(url), Fields(map(_field, header) if header else _of_vllm()))
    now = time.time()
    with opened(folder, absent=1) as (storage, settings, _):
        found = [
            (stat.stored, options) for key, options in keys(url, settings.options).items() for stat in storage.stat(key)
        ]
    if not found:
        typer.echo("nothing is stored")
        raise typer.Exit(1)
    for stored, options in found:
        _tell(request, stored, now, options)
        if options != settings.options:
            shared, signed = str(options.shared).lower(), str(options.signed_urls).lower()
            typer.echo(f"  stored with MEDIA_CACHE_SHARED={shared} and MEDIA_CACHE_SIGNED_URLS={signed}, unlike here")


def _tell(request: Request, stored: StoredResponse, now: float, options: CacheOptions) -> None:
    from vllm_http_cache.rfc9111.explain import explain as explained
    from vllm_http_cache.rfc9111.vary import vary_names

    said = explained(request, stored, now, options)
    length = f", {stored.body.length} octets" if stored.body else ""
    typer.echo(f"{stored.status} {stored.reason}{length}")
    for name, value in stored.fields:
        typer.echo(f"    {name}: {value}")
    typer.echo(f"  {'fresh' if said.fresh else 'stale'}: {said.age:.0f} s old, fresh for {said.lifetime:.0f} s")
    typer.echo(f"  by {said.rule}")
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(said.stale_at))
    typer.echo(f"  {'goes' if said.fresh else 'went'} stale {when}")
    typer.echo(f"  a GET is {said.outcome}")
    if vary_names(stored.fields):
        typer.echo(f"  a GET with {', '.join(f'{name}: {value}' for name, value in request.fields)}")
    for name, value in said.validation:
        typer.echo(f"  to validate it: {name}: {value}")
    for note in said.notes:
        typer.echo(f"  {note}")


def _of_vllm() -> Iterator[tuple[str, str]]:
    """The fields of vLLM's own requests."""
    from importlib.metadata import PackageNotFoundError, version

    from vllm_http_cache.vllm.hops import USUAL

    yield from USUAL
    with suppress(PackageNotFoundError):
        yield "User-Agent", f"vLLM/{version('vllm')}"
