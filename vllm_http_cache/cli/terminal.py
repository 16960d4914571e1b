"""What commands say to an operator.

Stored responses, names of files and errors hold what strangers wrote: nothing of it may act on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EROFS
from typing import NoReturn

import typer

__all__ = ["fail", "mebibytes", "printable", "reason", "say", "tell", "writing"]


def printable(text: str) -> str:
    """*text* with its control characters, and whatever else is not seen or turns its order, as Python escapes them."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def say(line: str) -> None:
    """Write a line to standard output.

    :raises typer.Exit: it cannot be written; it has been said.
    """
    with writing():
        typer.echo(printable(line))


def tell(line: str) -> None:
    """Write a line to standard error, if that can be written."""
    with suppress(OSError):
        typer.echo(printable(line), err=True)


def fail(what: str, code: int = 1) -> NoReturn:
    """Tell what is wrong, and end the command."""
    tell(f"vllm-http-cache: {what}")
    raise typer.Exit(code) from None


@contextmanager
def writing() -> Iterator[None]:
    """What the system says of standard output ends the command; a reader that has gone does so in silence.

    :raises typer.Exit: it has been said.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"standard output: {reason(error)}")


def reason(error: OSError) -> str:
    """Why, in words to go on with after a colon."""
    if error.errno == EROFS:
        return "read-only file system"
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def mebibytes(octets: int) -> str:
    """A number of octets in the unit of the settings."""
    return f"{octets / 1024**2:,.1f} MiB"
