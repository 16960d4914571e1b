"""What operators type: ``vllm-http-cache COMMAND``.

A command's own imports are inside it, so that ``--help`` does not pay for them.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from vllm_http_cache import __version__

from .explain import explain
from .folder import named_path
from .stored import export, import_, ls, purge, seed, stat, trim, verify

__all__ = ["app", "main"]

app = typer.Typer(
    name="vllm-http-cache",
    help="An HTTP-correct cache for the media that vLLM fetches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
) -> None:
    pass


@app.command("demo")
def _demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where the cache lives; kept. Without it: a temporary folder, removed.",
            parser=named_path,
            metavar="PATH",
        ),
    ] = None,
) -> None:
    """Fetch pictures through the cache with each client, and show what went over the wire. Takes a few seconds."""
    from .demo import run

    raise typer.Exit(0 if run(folder) else 1)


for command in (explain, stat, ls, purge, verify, trim, seed, export):
    app.command()(command)
app.command("import")(import_)


def main() -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what its encoding lacks
    app()
