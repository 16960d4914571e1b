"""URLs as operators write them, and what may be stored for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import printable

if TYPE_CHECKING:
    from vllm_http_cache.rfc9111.options import CacheOptions
    from vllm_http_cache.storage.toolbox import Choice

__all__ = ["Url", "keys", "named", "of_url"]

Url = Annotated[str, typer.Argument(help="The target URI, as it is fetched.")]


def named(url: str) -> str:
    """*url* as it is dialled.

    :raises typer.BadParameter: it is no HTTP URL, or an ambiguous one.
    """
    from vllm_http_cache.rfc9111.target import parse_target
    from vllm_http_cache.vllm.hops import dialled

    try:
        url = dialled(url)
        scheme = parse_target(url).scheme
    except ValueError as error:
        raise typer.BadParameter(printable(str(error))) from None
    if scheme not in ("http", "https"):
        raise typer.BadParameter(f"{url!r} is not an HTTP URL")
    return url


def keys(url: str, options: CacheOptions) -> dict[str, CacheOptions]:
    """The keys under which a server may have stored *url*, those of *options* first.

    They depend on two of the server's variables, which this shell need not have.

    :raises typer.BadParameter: as :func:`named`.
    """
    from vllm_http_cache.rfc9111.target import lookup_key

    url = named(url)
    found: dict[str, CacheOptions] = {}
    for shared, signed in product((options.shared, not options.shared), (options.signed_urls, not options.signed_urls)):
        varied = replace(options, shared=shared, signed_urls=signed)
        found.setdefault(lookup_key(url, varied), varied)
    return found


def of_url(url: str, options: CacheOptions) -> Choice:
    """Chooses what is stored for *url*: under its keys, or with its URI, whatever the key.

    :raises typer.BadParameter: as :func:`named`.
    """
    from vllm_http_cache.rfc9111.target import same_uri

    ours, uri = keys(url, options), named(url)
    return lambda each: each.key in ours or same_uri(each.stored.uri, uri)
