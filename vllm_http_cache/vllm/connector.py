"""Around vLLM's loading of a URL: what the cache needs to know of it, and the consumer's veto.

Octets that do not decode drop what is stored of them and, where they had been stored before, are fetched once more.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Self

from ..loops import in_pool
from .attempt import ATTEMPT, Attempt
from .connection import MARK, Seam

__all__ = ["wrapped_load", "wrapped_load_async"]

BAD_OCTETS = (  # how vLLM's errors begin for what is not the media it should be
    "Failed to load image",
    "Invalid or corrupted audio data",
    "Invalid or unsupported audio file",
    "Could not open video stream",
    "Could not determine the number of video frames",
)
BAD_OCTETS_TYPES = ("UnidentifiedImageError", "LibsndfileError")  # raised as they are; by name, to import neither


def wrapped_load(load: Callable[..., Any]) -> Callable[..., Any]:
    """``MediaConnector.load_from_url`` through the cache."""

    @functools.wraps(load)
    def load_from_url(self: Any, url: str, media_io: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_http(url):
            return load(self, url, media_io, *args, **kwargs)
        with _Loading(self, url, media_io) as loading:
            try:
                if (content := loading.at_hand(media_io)) is not None:
                    return media_io.load_bytes(content)
                return load(self, url, media_io, *args, **kwargs)
            except Exception as error:
                if not (loading.vetoed(error) and loading.begins_again()):
                    raise
            try:
                return load(self, url, media_io, *args, **kwargs)
            except Exception as error:
                loading.vetoed(error)
                raise

    return load_from_url


def wrapped_load_async(load: Callable[..., Any]) -> Callable[..., Any]:
    """``MediaConnector.load_from_url_async`` through the cache."""
    threads = getattr(sys.modules[load.__module__], "global_thread_pool", None)  # where vLLM decodes

    @functools.wraps(load)
    async def load_from_url_async(self: Any, url: str, media_io: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_http(url):
            return await load(self, url, media_io, *args, **kwargs)
        with _Loading(self, url, media_io) as loading:
            try:
                if threads is not None and (content := loading.at_hand(media_io, wait=False)) is not None:
                    return await in_pool(threads, media_io.load_bytes, content)
                return await load(self, url, media_io, *args, **kwargs)
            except Exception as error:
                if not (loading.vetoed(error) and loading.begins_again()):
                    raise
            try:
                return await load(self, url, media_io, *args, **kwargs)
            except Exception as error:
                loading.vetoed(error)
                raise

    return load_from_url_async


def _is_http(url: str) -> bool:
    return url[:4].lower() == "http"


class _Loading:
    """One call of the connector: the attempt that the connection below is told of, and the budgets it charges."""

    def __init__(self, connector: Any, url: str, media_io: Any) -> None:
        self._downloads = getattr(connector, "download_budget", None)
        allowed = getattr(connector, "_assert_url_in_allowed_media_domains", None)
        self._attempt = Attempt(url, allowed, joined=_left(self._downloads))
        self._seam: Seam | None = getattr(getattr(connector, "connection", None), MARK, None)
        self._holder: Any = media_io if hasattr(media_io, "decoded_budget") else getattr(media_io, "image_io", None)
        budget = getattr(self._holder, "decoded_budget", None)
        if isinstance(budget, _Metered):  # another load, under way, has put it there
            budget = budget.budget
        self._metered = None if budget is None else _Metered(budget)

    def __enter__(self) -> Self:
        self._token = ATTEMPT.set(self._attempt)
        if self._metered is not None:
            self._holder.decoded_budget = self._metered
        return self

    def __exit__(self, *_: object) -> None:
        if self._metered is not None:
            self._holder.decoded_budget = self._metered.budget
        ATTEMPT.reset(self._token)

    def at_hand(self, media_io: Any, *, wait: bool = True) -> bytes | None:
        """:meth:`.connection.Seam.at_hand`, charged to the request's budget as vLLM does."""
        if self._seam is None:
            return None
        largest = getattr(media_io, "get_max_bytes", lambda: None)()
        content = self._seam.at_hand(self._attempt, largest, wait=wait)
        if content is not None and self._downloads is not None:
            try:
                self._downloads.charge(len(content))
            except ValueError:  # in vLLM's own words, then
                return None
        return content

    def vetoed(self, error: Exception) -> bool:
        """Drop what did not decode, if that is what went wrong."""
        fetched = self._attempt.fetched
        if fetched is None or not self._attempt.whole or not is_undecodable(error):
            return False
        fetched.refuse()
        return True

    def begins_again(self) -> bool:
        """Whether another fetch may give other octets. Then nothing has been charged for those that came."""
        attempt = self._attempt
        if not attempt.repeatable:
            return False
        if self._downloads is not None:
            with self._downloads._lock:
                self._downloads.used = max(self._downloads.used - attempt.delivered, 0)
        if self._metered is not None:
            self._metered.refund()
        attempt.again, attempt.seeded, attempt.fetched = True, False, None
        return True


def _left(downloads: Any) -> float:
    """The octets that a request may still receive."""
    if downloads is None:
        return math.inf
    from vllm import envs

    limit: float = getattr(envs, "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", 0)
    return limit * 1024**2 - downloads.used if limit > 0 else math.inf


class _Metered:
    """A budget for decoded media that remembers what one load has charged, while others charge it too."""

    def __init__(self, budget: Any) -> None:
        self.budget = budget
        self._charged = 0

    def charge(self, size: int) -> None:
        self.budget.charge(size)
        self._charged += size

    def settle(self, reserved: int, size: int) -> None:
        self.budget.settle(reserved, size)
        self._charged += size

    def refund(self) -> None:
        with self.budget._condition:
            self.budget.used = max(self.budget.used - self._charged, 0)
            self.budget._condition.notify_all()
        self._charged = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.budget, name)


def is_undecodable(error: BaseException) -> bool:
    """Whether *error* says that octets are not the media they should be. A limit that is exceeded does not."""
    text = str(error)
    if "VLLM_" in text:
        return False
    if type(error).__name__ in BAD_OCTETS_TYPES:
        return True
    return isinstance(error, ValueError) and text.startswith(BAD_OCTETS)
