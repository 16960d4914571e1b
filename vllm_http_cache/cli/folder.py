"""The folder that a command works on: given, or the environment's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .terminal import fail, reason, tell

if TYPE_CHECKING:
    from vllm_http_cache.settings import Settings
    from vllm_http_cache.storage.files import FileStorage

__all__ = ["Folder", "Opened", "Overheard", "named_path", "opened"]

LOGGER = logging.getLogger("vllm_http_cache.storage")


def named_path(text: str) -> Path:
    """A path as typed.

    :raises typer.BadParameter: it is empty, as that of a variable that is not set: it would be the current folder.
    """
    if not text:
        raise typer.BadParameter("an empty path names nothing")
    return Path(text)


Folder = Annotated[
    Path | None,
    typer.Option(
        help="The folder that the cache lives in. Without it: $VLLM_MEDIA_CACHE.",
        show_default=False,
        parser=named_path,
        metavar="PATH",
    ),
]


class Overheard(logging.Handler):
    """Hears what a storage would log and go on without: an operator wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self.first: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        errors = [part for part in record.args or () if isinstance(part, OSError)]
        self.first = self.first or next(iter(errors), None)

    @contextmanager
    def listening(self) -> Iterator[None]:
        propagate, LOGGER.propagate = LOGGER.propagate, False
        LOGGER.addHandler(self)
        try:
            yield
        finally:
            LOGGER.removeHandler(self)
            LOGGER.propagate = propagate


class Opened(NamedTuple):
    storage: FileStorage
    settings: Settings
    troubles: Overheard


@contextmanager
def opened(folder: Path | None, *, storing: bool = False, absent: int = 0) -> Iterator[Opened]:
    """The storage, the environment's settings, and what goes wrong meanwhile, which at the latest ends the command.

    A command that stores keeps to the bounds that the server would. Any other knows only those that the environment
    states: what a server was told to keep must not go because somebody looked at it from a shell without its variables.

    :param absent: the exit code, unless *storing*, where there is no cache.
    :raises typer.Exit: the folder cannot be used, or a setting is wrong; it has been said.
    """
    from vllm_http_cache.settings import LARGEST_MB, Settings, SettingsError, open_storage

    try:
        settings = Settings() if folder is None else Settings(path=folder)
        if settings.path is None:
            fail("no folder is named: give --folder, or set VLLM_MEDIA_CACHE", 2)
        stated = settings.model_dump(include=settings.model_fields_set)
        unbounded = {"max_size_mb": LARGEST_MB, "ttl_hours": inf} | stated
        storage = open_storage(settings if storing else settings.model_copy(update=unbounded))
    except SettingsError as error:
        fail(str(error), 2)
    troubles = Overheard()
    try:
        with troubles.listening():
            if not _is_there(storage.path, group=settings.group) and not storing:
                if not Path(storage.path).exists():
                    fail(f"{storage.path} does not exist")
                tell(f"no cache here yet: {storage.path}")
                raise typer.Exit(absent)
            yield Opened(storage, settings, troubles)
            if troubles.first is not None:
                raise troubles.first
    except BrokenPipeError:
        raise
    except TimeoutError as error:
        fail(f"{storage.path}: {reason(error)}; a server is tidying up, or has stopped: try again")
    except OSError as error:
        fail(f"{storage.path}: {reason(error)}")
    finally:
        storage.close()


def _is_there(path: str, *, group: bool) -> bool:
    """Whether there is a cache in the folder at *path*.

    :raises typer.Exit: it cannot be told, or not be used; it has been said.
    """
    from vllm_http_cache.storage.layout import arrive

    try:
        home = arrive(path, group=group, create=False)
    except NotADirectoryError as error:
        what = f"{path} is not a folder" if Path(path).is_file() else f"{path}: {reason(error)}"
        fail(f"{what}: remove it, or name another folder")
    except PermissionError as error:
        fail(
            f"cannot open the cache in {path}: {reason(error)}. Run this as the user that the server runs as, or with "
            "MEDIA_CACHE_GROUP=true where it has that; nobody else may be able to write there."
        )
    except OSError as error:
        fail(f"cannot open the cache in {path}: {reason(error)}. Name a folder that can be read.")
    if home is None:
        return False
    home.close()
    return True
