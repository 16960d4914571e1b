"""The folder that a command works on: given, or the environment's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from vllm_http_cache.settings import Settings
    from vllm_http_cache.storage.files import FileStorage

__all__ = ["Folder", "opened"]

UNBOUNDED = {"max_size_mb": 2**40, "ttl_hours": inf}

Folder = Annotated[
    Path | None,
    typer.Option(help="The folder that the cache lives in. Without it: $VLLM_MEDIA_CACHE.", show_default=False),
]


@contextmanager
def opened(folder: Path | None, *, storing: bool = False) -> Iterator[tuple[FileStorage, Settings]]:
    """The storage, and the settings of the environment.

    A command that stores keeps to the bounds that the server would. Any other knows only those that the environment
    states: what a server was told to keep must not go because somebody looked at it from a shell without its variables.

    :raises typer.Exit: there is no such folder, or a setting is wrong; it has been said.
    """
    from vllm_http_cache.settings import Settings, SettingsError, open_storage

    try:
        settings = Settings() if folder is None else Settings(path=folder)
        stated = settings.model_dump(include=settings.model_fields_set)
        storage = open_storage(settings if storing else settings.model_copy(update=UNBOUNDED | stated))
    except SettingsError as error:
        _fail(error, 2)
    try:
        if not (storing or Path(storage.path).is_dir()):
            raise NotADirectoryError(f"{storage.path} is not a folder")
        yield storage, settings
    except BrokenPipeError:
        raise
    except OSError as error:
        _fail(error, 1)
    finally:
        storage.close()


def _fail(error: Exception, code: int) -> NoReturn:
    typer.echo(f"vllm-http-cache: {error}", err=True)
    raise typer.Exit(code) from None
