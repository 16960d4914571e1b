"""One hop of a fetch: where it goes, what is asked for, and where its answer leads."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin

from requests.utils import get_netrc_auth
from urllib3.util import Url, parse_url

from ..rfc9111.memo import memo
from ..rfc9111.message import Fields, Request
from ..rfc9111.target import Target, parse_target, recorded_uri, redacted

if TYPE_CHECKING:
    from ..rfc9111.message import Response

__all__ = ["USUAL", "Hop", "dialled", "first_hop", "is_redirect", "parsed"]

REDIRECTS = frozenset({301, 302, 303, 307, 308})
ILLEGAL = re.compile(r"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")  # in a URI (RFC 3986 section 2)
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
USUAL = (("Accept", "*/*"), ("Accept-Encoding", "gzip, deflate"))  # both clients ask for these; answers.py decodes them
LONGEST_HOST = 255  # characters (RFC 1035 section 2.3.4)
NETRC_SECONDS = 5  # after which a changed netrc file is noticed


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a chain of redirects.

    :param url: what is dialled, user information included.
    :param request: what the cache is asked for. Its Authorization is what the client will send, wherever from.
    :param explicit: whether that Authorization is handed to the client; otherwise it finds it itself (in the URL, in
        netrc), and would not have it twice.
    """

    url: str
    target: Target
    request: Request
    explicit: bool

    def outgoing(self, sent: Request) -> dict[str, str]:
        """The fields to hand to the client for *sent*."""
        return {name: value for name, value in sent.fields if self.explicit or name != "Authorization"}

    def following(self, response: Response) -> Hop:
        """The hop that *response*, a redirect, leads to.

        :raises ValueError: that is no HTTP URL, or an ambiguous one.
        """
        location = response.fields.get_all("location")[0]
        location = location.strip().encode("latin-1").decode("utf-8", "replace")
        url, target = _address(location if ABSOLUTE.match(location) else urljoin(self.request.uri, location))
        fields, explicit, implicit = self.request.fields, self.explicit, _implicit(target)
        if not _same_party(self.target, target):
            fields, explicit = fields.without(("authorization", "cookie")), False
        elif implicit is None:  # what the client found for this hop it sends to that one, and so must we
            explicit = "authorization" in fields
        return _hop(url, target, fields, implicit, explicit=explicit)


@memo(4096)
def parsed(url: str) -> Url:
    """*url* as vLLM parses it.

    :raises ValueError: it is no URL.
    """
    return parse_url(url)


def dialled(url: str) -> str:
    """*url* without its fragment, and byte for byte where that is possible.

    :raises ValueError: it is no URL.
    """
    if ILLEGAL.search(url):
        url = parsed(url).url  # as vLLM and both clients escape what has no place in a URL
    return url.partition("#")[0]


def is_redirect(response: Response) -> bool:
    return response.status in REDIRECTS and any(response.fields.get_all("location")[:1])


def first_hop(url: str, headers: Mapping[str, str]) -> Hop:
    """The hop to *url*.

    :param headers: the caller's, by which those that the clients add are replaced.
    :raises ValueError: it is no HTTP URL, or an ambiguous one.
    """
    return _first_hop(url, tuple(headers.items()), _implicit(_address(url)[1]))


@memo(4096)
def _first_hop(url: str, headers: tuple[tuple[str, str], ...], implicit: str | None) -> Hop:
    given = {name.lower() for name, _ in headers}
    fields = Fields([*(line for line in USUAL if line[0].lower() not in given), *headers])
    return _hop(*_address(url), fields, implicit, explicit="authorization" in fields)


def _implicit(target: Target) -> str | None:
    """The Authorization that the clients find themselves, in the URL or in netrc."""
    if len(target.host) > LONGEST_HOST:
        return _authorization(target.userinfo)
    return _authorization(target.userinfo) or _netrc(target.host, int(time.monotonic()) // NETRC_SECONDS)


def _hop(url: str, target: Target, fields: Fields, implicit: str | None, *, explicit: bool) -> Hop:
    if implicit is not None:  # which requests prefers to the caller's, and aiohttp takes for an error beside it
        fields = fields.replaced(("Authorization", implicit))
    return Hop(url, target, Request("GET", recorded_uri(url), fields), explicit)


@memo(1024)
def _address(url: str) -> tuple[str, Target]:
    """*url* as it is dialled, and its parts."""
    url = dialled(url)
    target = parse_target(url)
    if target.scheme not in ("http", "https"):
        raise ValueError(f"neither http nor https: {redacted(url)!r}")
    return url, target


def _same_party(old: Target, new: Target) -> bool:
    """Whether credentials for *old* are for *new* too: the same origin, or it over TLS, as requests has it."""
    upgraded = (old.scheme, old.port, new.scheme, new.port) == ("http", 80, "https", 443)
    return old.origin == new.origin or (upgraded and old.host == new.host)


def _authorization(userinfo: str | None) -> str | None:
    if userinfo is None:
        return None
    user, _, password = userinfo.partition(":")
    return _basic(unquote(user), unquote(password))


def _basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode("latin-1", "replace")).decode("ascii")


@lru_cache(maxsize=64)
def _netrc(host: str, period: int) -> str | None:  # noqa: ARG001 - the cache forgets with it
    found = get_netrc_auth(f"https://{host}/")
    return _basic(*found) if found else None
