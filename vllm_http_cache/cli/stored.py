"""Commands on what is stored. They work beside any number of servers that use the same folder."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from .folder import Folder, named_path, opened
from .naming import Url, named, of_url
from .terminal import fail, mebibytes, reason, say, tell

if TYPE_CHECKING:
    from vllm_http_cache.storage.protocol import Stat

__all__ = ["export", "import_", "ls", "purge", "seed", "stat", "trim", "verify"]

Tar = Annotated[
    Path, typer.Argument(help="A tar file; - is standard output or input.", parser=named_path, metavar="FILE")
]


def _host(host: str | None) -> str | None:
    """A host as a URI's, checked; an IPv6 address with or without its brackets."""
    from ipaddress import IPv6Address

    if host is None:
        return None
    bare = host[1:-1] if host[:1] + host[-1:] == "[]" else host
    try:
        alone = bool(IPv6Address(bare)) if ":" in bare else bool(bare) and set("/?#@[] ").isdisjoint(bare)
    except ValueError:
        alone = False
    if not alone:
        raise typer.BadParameter(f"{host!r} is not a host alone, such as example.org: no scheme, port or path")
    return bare


def stat(folder: Folder = None) -> None:
    """What the cache occupies, and how much it holds."""
    from vllm_http_cache.storage.toolbox import usage

    with opened(folder) as (storage, settings, _):
        try:
            held = usage(storage)
        except TimeoutError:
            raise
        except OSError as error:  # the ledger's lock needs a folder that can be written
            keys, occupied = _counted(Path(storage.path))
            reserved = f"unknown: {reason(error)}"
        else:
            keys, occupied, reserved = held.keys, held.used, mebibytes(held.reserved)
        say(f"folder    {storage.path}")
        say(f"keys      {keys}")
        say(f"occupied  {mebibytes(occupied)}")
        say(f"reserved  {reserved}")
        say(f"at most   {mebibytes(settings.max_size_mb * 1024**2)}, by this environment")


def _counted(folder: Path) -> tuple[int, int]:
    """Keys, and octets occupied, as ``du`` counts them."""
    from vllm_http_cache.storage.layout import OWN, is_key

    keys = occupied = 0
    for path in (folder / OWN, *(folder / OWN).rglob("*")):
        try:
            occupied += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
        keys += is_key(path.name) is not None and path.parent.name == path.name[:2]
    return keys, occupied


def ls(
    folder: Folder = None,
    host: Annotated[str | None, typer.Option(help="Only responses of this host.", callback=_host)] = None,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Show URIs with their queries, which may hold signatures.")
    ] = False,
) -> None:
    """List what is stored: octets it occupies, seconds since the origin sent or confirmed it, state, status, URI.

    The state is fresh, stale, or expired: past the time to live, or from the future; it goes when that is noticed.
    """
    from vllm_http_cache.rfc9111.freshness import fresh_until, within_ttl
    from vllm_http_cache.rfc9111.target import redacted
    from vllm_http_cache.storage.toolbox import by_host

    now = time.time()
    with opened(folder) as (storage, settings, _):
        if _on_terminal():
            say(f"{'occupied':>12} {'age':>8} {'state':<7} status URI")
        for each in storage.scan():
            stored = each.stored
            if host is None or by_host(host)(each):
                state = "fresh" if now < fresh_until(stored, settings.options) else "stale"
                if not within_ttl(stored, now, settings.options):
                    state = "expired"
                uri = stored.uri if full else redacted(stored.uri)
                columns = f"{state:<7} {stored.status:<6}" if _on_terminal() else f"{state} {stored.status}"
                say(f"{each.size:>12} {max(0, now - stored.confirmed):>8.0f} {columns} {uri}")


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def purge(
    url: Annotated[
        str | None, typer.Argument(help="All that is stored for this target URI.", show_default=False)
    ] = None,
    folder: Folder = None,
    host: Annotated[str | None, typer.Option(help="All of this host.", callback=_host)] = None,
    older_than: Annotated[
        float | None, typer.Option(help="All that the origin sent or confirmed longer than so many hours ago.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All there is.")] = False,
) -> None:
    """Remove stored responses: those to which everything applies that is given. Exit code 1: some are still there."""
    from vllm_http_cache.storage import toolbox

    if (url, host, older_than) == (None, None, None) and not everything:
        raise typer.BadParameter("name a URL, --host, --older-than or --all")
    if older_than is not None and not older_than >= 0:
        raise typer.BadParameter("--older-than takes a number of hours, 0 or more")
    with opened(folder) as (storage, settings, troubles):
        choices = [toolbox.by_host(host)] if host is not None else []
        if older_than is not None:
            choices.append(toolbox.older_than(older_than * 3600, time.time()))
        if url is not None:
            choices.append(of_url(url, settings.options))
        chosen: dict[str, set[tuple[str, float]]] = {}

        def choose(each: Stat) -> bool:
            wanted = all(choice(each) for choice in choices)
            if wanted:
                chosen.setdefault(each.key, set()).add(_identity(each))
            return wanted

        toolbox.purge(storage, choose)
        count = sum(map(len, chosen.values()))
        left = sum(_identity(each) in doomed for key, doomed in chosen.items() for each in storage.stat(key))
        if left:
            why = f": {reason(troubles.first)}" if troubles.first else ""
            fail(f"{count - left} of {count} removed{why}")
        say(f"{count} removed")


def _identity(each: Stat) -> tuple[str, float]:
    stored = each.stored
    return stored.body.name if stored.body else "", stored.response_time


def verify(
    folder: Folder = None, *, drop: Annotated[bool, typer.Option("--drop", help="Remove what is damaged.")] = False
) -> None:
    """Read every record and every stored body, and compare their digests. Exit code 1: some are damaged."""
    from vllm_http_cache.rfc9111.target import redacted
    from vllm_http_cache.storage import toolbox

    count = damaged = 0
    with opened(folder) as (storage, _, troubles):
        for key, stored, sound in toolbox.verify(storage, drop=drop):
            count += 1
            if not sound:
                damaged += 1
                say(f"damaged: {redacted(stored.uri) if stored else f'record {key}'}")
        if troubles.first:
            fail(f"{count} read, {damaged} damaged; not all could be done: {reason(troubles.first)}")
    say(f"{count} read, {damaged} damaged{', removed' if damaged and drop else ''}")
    raise typer.Exit(1 if damaged else 0)


def trim(
    size: Annotated[int, typer.Argument(help="How many MiB may be left.", min=0)],
    folder: Folder = None,
) -> None:
    """Remove the least recently used until so much is left."""
    from vllm_http_cache.storage import toolbox

    with opened(folder) as (storage, _, _):
        freed = toolbox.trim(storage, size * 1024**2)
    say(f"{mebibytes(freed)} freed")


@contextmanager
def _file(path: Path, mode: Literal["rb", "wb"]) -> Iterator[BinaryIO]:
    """The file, or a standard stream; what the system says of it ends the command. (A storage raises nothing.)

    A file that is written is its owner's alone, and takes its place when it is whole.
    """
    try:
        if path == Path("-"):
            with _standard(mode) as file:
                yield file
        elif mode == "rb" or (path.exists() and not path.is_file()):  # a device or a pipe has no place to take
            with path.open(mode) as file:
                yield file
        else:
            with _replacing(path.resolve()) as file:
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{path}: {reason(error)}")


@contextmanager
def _standard(mode: Literal["rb", "wb"]) -> Iterator[BinaryIO]:
    name, stream = ("input", sys.stdin) if mode == "rb" else ("output", sys.stdout)
    if stream is None or stream.isatty():
        fail(f"standard {name} is {'a terminal' if stream else 'closed'}: name a file, or use a pipe", 2)
    yield stream.buffer
    if mode == "wb":
        stream.flush()


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    fd, name = tempfile.mkstemp(prefix=".vllm-http-cache-", dir=path.parent)  # 0600
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def export(file: Tar, folder: Folder = None) -> None:
    """Write all that is stored and sound into a tar file, which only its owner can read.

    A file of that name is replaced when the new one is whole, but not by an export of nothing. It holds URIs with their
    queries: treat it as a secret.
    """
    from vllm_http_cache.storage.archive import export_tar

    with opened(folder, absent=1) as (storage, _, troubles), _file(file, "wb") as target:
        count = export_tar(storage, target)
        if troubles.first is not None:  # before the file takes its place
            fail(f"{storage.path}: {reason(troubles.first)}")
        if not count and file != Path("-") and file.is_file():
            fail(f"nothing sound is stored in {storage.path}: {file} stays as it is; for an empty one, remove it first")
    tell(f"{count} exported")


def import_(file: Tar, folder: Folder = None) -> None:
    """Store what an export has written, as far as it is sound, not expired, and newer than what is there.

    The bounds are those of the environment: run it with the server's variables.
    """
    from vllm_http_cache.storage.archive import import_tar

    with opened(folder, storing=True) as (storage, _, troubles):
        with _file(file, "rb") as tar:
            result = import_tar(storage, tar, time.time())
        refused = ", ".join(f"{number} {why}" for why, number in result.refused.items())
        evicted = f", {result.evicted} evicted for lack of room" if result.evicted else ""
        told = f"{result.stored} stored{evicted}, {result.refused.total()} refused" + (refused and f" ({refused})")
        complaints = [result.complaint, reason(troubles.first) if troubles.first else ""]
        in_vain = not result.stored and result.evicted + result.refused.total() > result.refused["already there"]
        if any(complaints) or in_vain:
            fail(f"{file}: " + "; ".join(filter(None, (told, *complaints))))
    say(told)


def _media_type(value: str | None) -> str | None:
    if value is not None and not (value.isascii() and value.isprintable() and value.strip()):
        raise typer.BadParameter(f"{value!r} is not a media type")
    return value


def seed(
    url: Url,
    file: Annotated[Path, typer.Argument(help="The body.", exists=True, dir_okay=False)],
    folder: Folder = None,
    max_age: Annotated[int, typer.Option(help="Seconds for which it is fresh.", min=0)] = 86_400,
    content_type: Annotated[
        str | None, typer.Option(help="Without it: guessed from the file's name.", callback=_media_type)
    ] = None,
) -> None:
    """Store a local file as the response to a GET of the URL.

    The bounds are those of the environment: run it with the server's variables.
    """
    import mimetypes

    from vllm_http_cache.rfc9111.message import Fields, Request, Response
    from vllm_http_cache.rfc9111.storing import stored_response
    from vllm_http_cache.rfc9111.target import lookup_key
    from vllm_http_cache.storage.toolbox import put_file

    url = named(url)
    if not file.is_file():
        fail(f"{file} is not a regular file, which alone tells its size beforehand: not stored")
    size = file.stat().st_size
    if not size:
        fail(f"{file} is empty, and vLLM takes an empty answer for a failure: not stored")
    kind = content_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    fields = Fields(
        (
            ("Content-Type", kind),
            ("Content-Length", str(size)),
            ("Cache-Control", f"public, max-age={max_age}"),
        )
    )
    now = time.time()
    with opened(folder, storing=True) as (storage, settings, troubles):
        if size > storage.limits.largest:
            fail(f"{file} is larger than what is kept, {mebibytes(storage.limits.largest)}: not stored")
        stored = stored_response(Request("GET", url), Response(200, fields, "OK"), now, now, settings.options)
        try:
            kept = put_file(storage, lookup_key(url, settings.options), stored, file)
        except OSError as error:  # the storage raises none
            fail(f"{file}: {reason(error)}")
        if not kept:
            why = reason(troubles.first) if troubles.first else "there is no room for it"
            fail(f"not stored in {storage.path}: {why}")
    say("stored")
