"""What the environment says: one model, read once, and the single source of the documentation's tables."""

from __future__ import annotations

import difflib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from .rfc9111.options import MODES, CacheOptions, Mode

if TYPE_CHECKING:
    from .cache import Cache
    from .storage.files import FileStorage

__all__ = ["Settings", "SettingsError", "misspelt", "open_cache", "open_storage"]

log = logging.getLogger("vllm_http_cache")

MIB = 1024**2
LARGEST_MB = 10**12  # near what a file system can count
LOOKS_OURS = ("MEDIA_CACHE_", "VLLM_MEDIA_CACHE_")
CLOSE = 0.8  # difflib's ratio of two names of which one may have been meant for the other


class SettingsError(ValueError):
    """One or more settings have a value that is not allowed. The message names each, its value and what is allowed."""


def _variable(name: str, default: Any, meaning: str, allowed: str, *, shown: str = "", **bounds: Any) -> Any:
    """A field read from the environment variable *name*; *shown* is its default in words."""
    extra: dict[str, Any] = {"allowed": allowed, "shown": shown or f"`{str(default).lower()}`"}
    return Field(default, validation_alias=name, description=meaning, json_schema_extra=extra, **bounds)


class _Environment(EnvSettingsSource):
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        return (value or "").strip() or None, key, is_complex  # None: unset


def _not_empty(path: object) -> object:
    if path == "":
        raise ValueError("an empty path would be the current folder")
    return path


Folder = Annotated[Path, BeforeValidator(_not_empty)]


class Settings(BaseSettings):
    """The settings of a cache, from the environment where they are not given.

    Space around a variable's value does not count; an empty variable counts as unset.

    :raises SettingsError: a value is not allowed.
    """

    model_config = SettingsConfigDict(frozen=True, case_sensitive=True, populate_by_name=True)

    path: Folder | None = _variable(
        "VLLM_MEDIA_CACHE",
        None,
        "The folder the cache lives in, as a subfolder of its own. Unset: no cache.",
        "the path of a folder, which is made if need be",
        shown="unset",
    )
    max_size_mb: int = _variable(
        "VLLM_MEDIA_CACHE_MAX_SIZE_MB",
        5120,
        "The most the cache occupies on disk, in MiB, its own bookkeeping included.",
        "a whole number, 1 to 10^12",
        ge=1,
        le=LARGEST_MB,
    )
    ttl_hours: float = _variable(
        "VLLM_MEDIA_CACHE_TTL_HOURS",
        24,
        "How many hours after the origin last sent or confirmed it a response is kept and used at most.",
        "a number above 0, or `inf`",
        gt=0,
    )
    mode: Mode = _variable(
        "MEDIA_CACHE_MODE",
        "default",
        "How requests use the cache: the Fetch standard's cache modes. `off`: as if this package were not there.",
        "one of " + ", ".join(f"`{mode}`" for mode in MODES),
    )
    shared: bool = _variable(
        "MEDIA_CACHE_SHARED",
        True,
        "Whether the cache serves many users (RFC 9111's shared cache), or only one and may keep `private` responses.",
        "`true` or `false`",
    )
    stale_if_error: float | None = _variable(
        "MEDIA_CACHE_STALE_IF_ERROR",
        None,
        "For how many seconds past its freshness a stored response may answer when the origin fails, where the "
        "response does not forbid it.",
        "a number, 0 or more, or `inf`",
        shown="as the origin says",
        ge=0,
    )
    max_entry_size_mb: int | None = _variable(
        "MEDIA_CACHE_MAX_ENTRY_SIZE_MB",
        None,
        "The largest body that is kept, in MiB. Larger ones pass through.",
        "a whole number, 1 to 10^12",
        shown="all that fits",
        ge=1,
        le=LARGEST_MB,
    )
    free_space_floor_mb: int = _variable(
        "MEDIA_CACHE_FREE_SPACE_FLOOR_MB",
        64,
        "How much of the device, in MiB, the cache leaves free for others, whatever its bound.",
        "a whole number, 0 to 10^12",
        ge=0,
        le=LARGEST_MB,
    )
    fsync: bool = _variable(
        "MEDIA_CACHE_FSYNC",
        False,
        "Whether the disk confirms each file that is stored, so that it survives a power failure. Storing gets slower.",
        "`true` or `false`",
    )
    group: bool = _variable(
        "MEDIA_CACHE_GROUP",
        False,
        "Whether all members of the folder's group may use the cache, and not its owner alone.",
        "`true` or `false`",
    )
    signed_urls: bool = _variable(
        "MEDIA_CACHE_SIGNED_URLS",
        True,
        "Whether URLs that differ only in a known signature (S3, GCS, Azure, CloudFront) share what is stored, always "
        "validated under the new signature.",
        "`true` or `false`",
    )
    seed: Folder | None = _variable(
        "MEDIA_CACHE_SEED",
        None,
        "In vLLM, in the modes default, force-cache and only-if-cached: a folder of files named as its built-in cache "
        "names them. They answer where nothing better is stored, in place of the origin; the folder is only read.",
        "the path of a folder",
        shown="unset",
    )

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise SettingsError(_explain(error)) from None

    else:  # pydantic makes paths of strings; the signature that checkers make of the fields takes none

        def __init__(
            self,
            *,
            path: str | os.PathLike[str] | None = ...,
            max_size_mb: int = ...,
            ttl_hours: float = ...,
            mode: Mode = ...,
            shared: bool = ...,
            stale_if_error: float | None = ...,
            max_entry_size_mb: int | None = ...,
            free_space_floor_mb: int = ...,
            fsync: bool = ...,
            group: bool = ...,
            signed_urls: bool = ...,
            seed: str | os.PathLike[str] | None = ...,
        ) -> None: ...

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls)

    @property
    def enabled(self) -> bool:
        """Whether there is to be a cache at all."""
        return self.path is not None and self.mode != "off"

    @property
    def options(self) -> CacheOptions:
        return CacheOptions(
            shared=self.shared,
            mode=self.mode,
            ttl=self.ttl_hours * 3600,
            stale_if_error=self.stale_if_error,
            signed_urls=self.signed_urls,
        )


def _explain(error: ValidationError) -> str:
    allowed = {}
    for name, field in Settings.model_fields.items():
        extra: Any = field.json_schema_extra
        allowed[name] = allowed[str(field.validation_alias)] = extra["allowed"]
    complaints = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0])
        complaints.append(f"{name}={problem['input']!r}: allowed is {allowed.get(name, 'no setting of this name')}")
    return "; ".join(complaints).replace("`", "")


def misspelt() -> list[str]:
    """A complaint about each environment variable that is named almost like one of these settings and is none."""
    known = {str(field.validation_alias) for field in Settings.model_fields.values()}
    complaints = []
    for name in sorted(os.environ.keys() - known):
        upper = name.upper()
        meant = difflib.get_close_matches(upper, known, 1, CLOSE)
        if meant or upper.startswith(LOOKS_OURS):
            meant = sorted(filter(upper.endswith, known), key=len, reverse=True) or meant
            complaints.append(f"{name} is no setting" + (f": is {meant[0]} meant?" if meant else ""))
    return complaints


def _warn_of_misspelt() -> None:
    for complaint in misspelt():
        log.warning("vllm-http-cache: %s", complaint)


def open_cache(settings: Settings | None = None) -> Cache | None:
    """The cache that the settings (None: the environment) ask for; None when they ask for none.

    :raises SettingsError: a value in the environment is not allowed.
    """
    settings = settings or Settings()
    if not settings.enabled:
        _warn_of_misspelt()
        return None
    from .cache import Cache
    from .metrics import default

    return Cache(open_storage(settings), settings.options, metrics=default())


def open_storage(settings: Settings) -> FileStorage:
    """The storage alone, as the settings describe it, whatever the mode.

    :raises SettingsError: they name no folder.
    """
    if settings.path is None:
        raise SettingsError("VLLM_MEDIA_CACHE is not set: no folder is named")
    _warn_of_misspelt()
    from .storage.files import FileStorage

    return FileStorage(
        settings.path,
        max_size=settings.max_size_mb * MIB,
        max_entry_size=None if settings.max_entry_size_mb is None else settings.max_entry_size_mb * MIB,
        ttl=settings.ttl_hours * 3600,
        free_space_floor=settings.free_space_floor_mb * MIB,
        fsync=settings.fsync,
        group=settings.group,
    )
