"""One loading of a media URL, as the connector and the connection under it both see it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..rfc9111.target import redacted
from .hops import parsed

if TYPE_CHECKING:
    from urllib3.util import Url

    from ..wire import Fetched

__all__ = ["ATTEMPT", "Attempt", "is_being_stored", "not_cached", "was_forbidden", "was_stored"]


@dataclass(slots=True)
class Attempt:
    """What is to be loaded, and what came.

    :param url: as the user wrote it; names files of vLLM's built-in cache.
    :param allowed: vLLM's check of a parsed URL, which raises ValueError where media may not come from there; None
        where it has none.
    :param again: whether this is the second fetch, after what came first did not decode: seeds have had their chance.
    :param seeded: whether a seed answered.
    :param fetched: the answer that vLLM was last given.
    :param delivered: octets of it that vLLM has received, decoded.
    :param whole: whether that is all of it.
    :param joined: of how many octets at most who reads puts the pieces together, having looked at their announced
        number before; 0 where it does not.
    """

    url: str
    allowed: Callable[[Url], object] | None = None
    again: bool = False
    seeded: bool = False
    fetched: Fetched | None = None
    delivered: int = 0
    whole: bool = False
    joined: float = 0

    def check(self, url: str) -> None:
        """Hold one hop to the policy, before the cache or the network is asked.

        :raises VLLMUnprocessableEntityError: media may not come from there. vLLM answers 422 and does not retry.
        """
        found = parsed(url)
        try:
            if self.allowed is not None:
                self.allowed(found)
        except ValueError as error:
            raise _refused(f"The URL leads to {found.host}. {error}", self.url) from error

    def begin(self, fetched: Fetched) -> None:
        """An answer goes to vLLM: count from here."""
        self.fetched, self.delivered, self.whole = fetched, 0, False

    @property
    def repeatable(self) -> bool:
        """Whether another fetch may give other octets: these did not come from the origin just now."""
        return self.seeded or (self.fetched is not None and was_stored(self.fetched))


ATTEMPT: ContextVar[Attempt | None] = ContextVar("vllm_http_cache_attempt", default=None)


def was_stored(fetched: Fetched) -> bool:
    """Whether the octets of an answer were stored before."""
    return fetched.status.hit or fetched.status.forward_status == HTTPStatus.NOT_MODIFIED


def is_being_stored(fetched: Fetched) -> bool:
    """Whether an answer's octets are, if they come to their end."""
    return fetched.status.stored


def was_forbidden(fetched: Fetched) -> bool:
    """Whether the cache has nothing and may not ask (RFC 9111 section 5.2.1.7)."""
    return fetched.status.detail == "only-if-cached"


def not_cached(uri: str) -> Exception:
    """Nothing is stored and the network may not be asked. vLLM answers 504 and does not retry."""
    message = f"{redacted(uri)} is not in the media cache, and it may not be fetched (only-if-cached)"
    try:
        from vllm.exceptions import GracefulHTTPError
    except ImportError:  # an older vLLM
        return ValueError(message)
    error: Exception = GracefulHTTPError(message, HTTPStatus.GATEWAY_TIMEOUT)
    return error


def _refused(message: str, url: str) -> Exception:
    try:
        from vllm.exceptions import VLLMUnprocessableEntityError
    except ImportError:
        return ValueError(message)
    error: Exception = VLLMUnprocessableEntityError(message, parameter="image_url", value=url)
    return error
