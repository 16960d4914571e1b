"""``vllm-http-cache explain``: what is stored for a URL, and what the rules make of it."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from .folder import Folder, opened

__all__ = ["explain"]

FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")  # RFC 9110 sections 5.1 and 5.5


def _field(line: str) -> tuple[str, str]:
    found = FIELD.fullmatch(line)
    if found is None:
        raise typer.BadParameter(f"--header {line!r} is not 'Name: value'")
    return found[1], found[2]


def explain(
    url: Annotated[str, typer.Argument(help="The target URI, as it is fetched.")],
    folder: Folder = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="A field of the request, 'Name: value'; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Tell what is stored for a URL, whether it is fresh and why, and what a GET would do. Exit code 1: nothing is stored."""
    from vllm_http_cache.rfc9111.explain import explain as explained
    from vllm_http_cache.rfc9111.message import Fields, Request
    from vllm_http_cache.rfc9111.target import InvalidTarget, cache_key

    request = Request("GET", url, Fields(map(_field, header or ())))
    now = time.time()
    with opened(folder, absent=1) as (storage, settings, _):
        try:
            stats = storage.stat(cache_key(url, settings.options))
        except InvalidTarget as error:
            raise typer.BadParameter(str(error)) from None
    if not stats:
        typer.echo("nothing is stored")
        raise typer.Exit(1)
    for stored in (stat.stored for stat in stats):
        said = explained(request, stored, now, settings.options)
        length = f", {stored.body.length} octets" if stored.body else ""
        typer.echo(f"{stored.status} {stored.reason}{length}")
        for name, value in stored.fields:
            typer.echo(f"    {name}: {value}")
        typer.echo(f"  {'fresh' if said.fresh else 'stale'}: {said.age:.0f} s old, fresh for {said.lifetime:.0f} s")
        typer.echo(f"  by {said.rule}")
        when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(said.stale_at))
        typer.echo(f"  {'goes' if said.fresh else 'went'} stale {when}")
        typer.echo(f"  a GET is {'forwarded: the mode is off' if settings.mode == 'off' else said.outcome}")
        for name, value in said.validation:
            typer.echo(f"  to validate it: {name}: {value}")
        for note in said.notes:
            typer.echo(f"  {note}")
