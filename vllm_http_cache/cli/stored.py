"""Commands on what is stored. They work beside any number of servers that use the same folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .folder import Folder, opened

__all__ = ["export", "import_", "ls", "purge", "seed", "stat", "trim", "verify"]

Url = Annotated[str, typer.Argument(help="The target URI, as it is fetched.")]
Tar = Annotated[Path, typer.Argument(help="A tar file; - is standard output or input.", allow_dash=True)]


def stat(folder: Folder = None) -> None:
    """What the cache occupies, and how much it holds."""
    from rich.filesize import decimal

    from vllm_http_cache.storage.toolbox import usage

    with opened(folder) as (storage, settings):
        held = usage(storage)
        typer.echo(f"folder    {storage.path}")
        typer.echo(f"keys      {held.keys}")
        typer.echo(f"occupied  {decimal(held.used)}")
        typer.echo(f"reserved  {decimal(held.reserved)}")
        typer.echo(f"at most   {decimal(settings.max_size_mb * 1024**2)}, by this environment")


def ls(
    folder: Folder = None,
    host: Annotated[str | None, typer.Option(help="Only responses of this host.")] = None,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Show URIs with their queries, which may hold signatures.")
    ] = False,
) -> None:
    """List what is stored: octets, seconds since the origin sent or confirmed it, status, URI."""
    from vllm_http_cache.rfc9111.freshness import fresh_until
    from vllm_http_cache.rfc9111.target import redacted
    from vllm_http_cache.storage.toolbox import by_host

    now = time.time()
    with opened(folder) as (storage, settings):
        for each in storage.scan():
            stored = each.stored
            if host is None or by_host(host)(each):
                state = "fresh" if now < fresh_until(stored, settings.options) else "stale"
                uri = stored.uri if full else redacted(stored.uri)
                typer.echo(f"{each.size:>12} {max(0, now - stored.confirmed):>8.0f} {state} {stored.status} {uri}")


def purge(
    url: Annotated[
        str | None, typer.Argument(help="All that is stored for this target URI.", show_default=False)
    ] = None,
    folder: Folder = None,
    host: Annotated[str | None, typer.Option(help="All of this host.")] = None,
    older_than: Annotated[
        float | None, typer.Option(help="All that the origin sent or confirmed longer than so many hours ago.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All there is.")] = False,
) -> None:
    """Remove stored responses: those to which everything applies that is given."""
    from vllm_http_cache.rfc9111.target import InvalidTarget, cache_key
    from vllm_http_cache.storage import toolbox

    with opened(folder) as (storage, settings):
        choices = [toolbox.by_host(host)] if host is not None else []
        if older_than is not None:
            choices.append(toolbox.older_than(older_than * 3600, time.time()))
        if url is not None:
            try:
                key = cache_key(url, settings.options)
            except InvalidTarget as error:
                raise typer.BadParameter(str(error)) from None
            choices.append(lambda each: each.key == key)
        if not choices and not everything:
            raise typer.BadParameter("name a URL, --host, --older-than or --all")
        count = toolbox.purge(storage, lambda each: all(choice(each) for choice in choices))
    typer.echo(f"{count} removed")


def verify(
    folder: Folder = None, *, drop: Annotated[bool, typer.Option("--drop", help="Remove what is damaged.")] = False
) -> None:
    """Read every stored body and compare it with its digests. Exit code 1: some are damaged."""
    from vllm_http_cache.rfc9111.target import redacted
    from vllm_http_cache.storage import toolbox

    count = damaged = 0
    with opened(folder) as (storage, _):
        for each, sound in toolbox.verify(storage, drop=drop):
            count += 1
            if not sound:
                damaged += 1
                typer.echo(f"damaged: {redacted(each.stored.uri)}")
    typer.echo(f"{count} read, {damaged} damaged{', removed' if damaged and drop else ''}")
    raise typer.Exit(1 if damaged else 0)


def trim(
    size: Annotated[int, typer.Argument(help="How many MiB may be left.", min=0)],
    folder: Folder = None,
) -> None:
    """Remove the least recently used until so much is left."""
    from rich.filesize import decimal

    from vllm_http_cache.storage import toolbox

    with opened(folder) as (storage, _):
        freed = toolbox.trim(storage, size * 1024**2)
    typer.echo(f"{decimal(freed)} freed")


def export(file: Tar, folder: Folder = None) -> None:
    """Write all that is stored and sound into a tar file."""
    from vllm_http_cache.storage.archive import export_tar

    with opened(folder) as (storage, _):
        if file == Path("-"):
            count = export_tar(storage, sys.stdout.buffer)
        else:
            with file.open("wb") as target:
                count = export_tar(storage, target)
    typer.echo(f"{count} exported", err=True)


def import_(file: Tar, folder: Folder = None) -> None:
    """Store what an export has written, as far as it is sound, not expired, and newer than what is there.

    The bounds are those of the environment: run it with the server's variables.
    """
    from vllm_http_cache.storage.archive import import_tar

    with opened(folder, storing=True) as (storage, _):
        if file == Path("-"):
            result = import_tar(storage, sys.stdin.buffer, time.time())
        else:
            with file.open("rb") as source:
                result = import_tar(storage, source, time.time())
    typer.echo(f"{result.stored} stored, {result.refused} refused")


def seed(
    url: Url,
    file: Annotated[Path, typer.Argument(help="The body.", exists=True, dir_okay=False)],
    folder: Folder = None,
    max_age: Annotated[int, typer.Option(help="Seconds for which it is fresh.", min=0)] = 86_400,
    content_type: Annotated[str | None, typer.Option(help="Without it: guessed from the file's name.")] = None,
) -> None:
    """Store a local file as the response to a GET of the URL.

    The bounds are those of the environment: run it with the server's variables.
    """
    import mimetypes

    from vllm_http_cache.rfc9111.message import Fields, Request, Response
    from vllm_http_cache.rfc9111.storing import stored_response
    from vllm_http_cache.rfc9111.target import InvalidTarget, cache_key
    from vllm_http_cache.storage.toolbox import put_file

    kind = content_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    fields = Fields(
        (
            ("Content-Type", kind),
            ("Content-Length", str(file.stat().st_size)),
            ("Cache-Control", f"public, max-age={max_age}"),
        )
    )
    now = time.time()
    with opened(folder, storing=True) as (storage, settings):
        stored = stored_response(Request("GET", url), Response(200, fields, "OK"), now, now, settings.options)
        try:
            kept = put_file(storage, cache_key(url, settings.options), stored, file)
        except InvalidTarget as error:
            raise typer.BadParameter(str(error)) from None
    typer.echo("stored" if kept else "not stored: there is no room for it", err=not kept)
    raise typer.Exit(0 if kept else 1)
