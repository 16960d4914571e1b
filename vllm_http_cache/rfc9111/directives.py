"""Cache directives: Cache-Control, Pragma on requests, and targeted fields (RFC 9111 section 5.2, RFC 9213).

This file reads what is written; what follows from it is for others to say. One principle for what is written wrongly:
it may restrict a cache, it never permits it anything. An invalid max-age is 0, an invalid stale-if-error is absent,
and a member that is no directive at all still forbids what it mentions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .fields import DECISIVE, INFINITE, TOKEN, delta_seconds, is_token, members, token_or_string
from .memo import memo
from .message import Fields
from .options import CacheOptions

__all__ = ["RequestDirectives", "ResponseDirectives", "request_directives", "response_directives"]

# A directive's arguments, one for each time it is given: None where it has none, "" where it has no valid one.
_Arguments = Mapping[str, tuple[str | None, ...]]

_DIRECTIVE = re.compile(rf"({TOKEN})(?:=(.*))?", re.DOTALL)
_RESTRICTIVE = re.compile(
    r"(?<![a-z-])(?:max-age|s-maxage|min-fresh|no-cache|no-store|private|must-revalidate|proxy-revalidate)(?![a-z-])"
)


@dataclass(frozen=True, slots=True)
class ResponseDirectives:
    """The response directives (RFC 9111 section 5.2.2, RFC 5861, RFC 8246). Numbers are seconds; None is absent.

    ``no_cache`` and ``private`` are the unqualified forms; the fields that the qualified forms name are beside them,
    in lower case. ``shares_authorized``: they allow a shared cache what it got for a request with Authorization
    (section 3.5). ``source`` is the name of the field that the directives stand in.
    """

    max_age: int | None = None
    s_maxage: int | None = None
    no_store: bool = False
    no_cache: bool = False
    no_cache_fields: frozenset[str] = frozenset()
    private: bool = False
    private_fields: frozenset[str] = frozenset()
    public: bool = False
    must_revalidate: bool = False
    proxy_revalidate: bool = False
    must_understand: bool = False
    immutable: bool = False
    stale_while_revalidate: int | None = None
    stale_if_error: int | None = None
    shares_authorized: bool = False
    source: str = "cache-control"


@dataclass(frozen=True, slots=True)
class RequestDirectives:
    """The request directives (RFC 9111 section 5.2.1, RFC 5861 section 4). Numbers are seconds; None is absent."""

    max_age: int | None = None
    min_fresh: int | None = None
    max_stale: int | None = None
    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    stale_if_error: int | None = None


_NO_RESPONSE_DIRECTIVES = ResponseDirectives()
_NO_REQUEST_DIRECTIVES = RequestDirectives()


def response_directives(fields: Fields, options: CacheOptions) -> ResponseDirectives:
    """The directives that this cache obeys: those of the first valid, non-empty targeted field on its list, else
    those of Cache-Control (RFC 9213 section 2.2)."""
    for name in options.targeted:
        value = fields.get(name.lower())
        if value is not None and (directives := _read_targeted(value, name.lower())) is not None:
            return directives
    value = fields.get("cache-control")
    return _NO_RESPONSE_DIRECTIVES if value is None else _read_response(value)


def request_directives(fields: Fields) -> RequestDirectives:
    """What the caller asks of caches. ``Pragma: no-cache`` counts where there is no Cache-Control (section 5.4)."""
    value = fields.get("cache-control")
    if value is not None:
        return _read_request(value)
    pragma = fields.get("pragma")
    if pragma is not None and "no-cache" in (member.lower() for member in members(pragma)):
        return RequestDirectives(no_cache=True)
    return _NO_REQUEST_DIRECTIVES


@memo(1024)
def _read_response(value: str) -> ResponseDirectives:
    return _response(_arguments(value), "cache-control")


@memo(1024)
def _read_targeted(value: str, name: str) -> ResponseDirectives | None:
    arguments = _dictionary(value)
    return _response(arguments, name) if arguments else None


@memo(1024)
def _read_request(value: str) -> RequestDirectives:
    given = _arguments(value)
    # Alone among the directives with a number, max-stale may come without one: any staleness will do.
    any_staleness = given.get("max-stale") == (None,)
    return RequestDirectives(
        max_age=_seconds(given, "max-age", invalid=0),
        min_fresh=_seconds(given, "min-fresh", invalid=INFINITE),
        max_stale=INFINITE if any_staleness else _seconds(given, "max-stale", invalid=None),
        no_cache="no-cache" in given,
        no_store="no-store" in given,
        only_if_cached="only-if-cached" in given,
        stale_if_error=_seconds(given, "stale-if-error", invalid=None),
    )


def _response(given: _Arguments, source: str) -> ResponseDirectives:
    no_cache, no_cache_fields = _qualified(given.get("no-cache", ()))
    private, private_fields = _qualified(given.get("private", ()))
    return ResponseDirectives(
        max_age=_seconds(given, "max-age", invalid=0),
        s_maxage=_seconds(given, "s-maxage", invalid=0),
        no_store="no-store" in given,
        no_cache=no_cache,
        no_cache_fields=no_cache_fields,
        private=private,
        private_fields=private_fields,
        public=_is_well_formed(given, "public"),
        must_revalidate="must-revalidate" in given,
        proxy_revalidate="proxy-revalidate" in given,
        must_understand=_is_well_formed(given, "must-understand"),
        immutable="immutable" in given,  # arguments are ignored (RFC 8246 section 2)
        stale_while_revalidate=_seconds(given, "stale-while-revalidate", invalid=None),
        stale_if_error=_seconds(given, "stale-if-error", invalid=None),
        shares_authorized=_is_well_formed(given, "public")
        or _is_well_formed(given, "must-revalidate")
        or _seconds(given, "s-maxage", invalid=None) is not None,
        source=source,
    )


def _arguments(value: str) -> _Arguments:
    """The directives of a Cache-Control field value (section 5.2), their names in lower case."""
    found: dict[str, list[str | None]] = {}
    for member in members(value):
        directive = _DIRECTIVE.fullmatch(member)
        argument = token_or_string(directive[2]) if directive and directive[2] is not None else None
        given: Iterable[tuple[str, str | None]]
        if directive and (directive[2] is None or argument is not None):
            given = ((directive[1].lower(), argument),)
        else:
            given = ((mentioned, "") for mentioned in _RESTRICTIVE.findall(member.lower()))
        for name, text in given:
            found.setdefault(name, []).append(text)
    return {name: tuple(texts) for name, texts in found.items()}


def _seconds(given: _Arguments, name: str, *, invalid: int | None) -> int | None:
    """The number of a directive. Given twice and not alike, it is invalid (section 4.2.1)."""
    if name not in given:
        return None
    numbers = {delta_seconds(argument) for argument in given[name]}
    number = numbers.pop()
    return invalid if numbers or number is None else number


def _is_well_formed(given: _Arguments, name: str) -> bool:
    """Is the directive given, and without an argument each time? It has none, and what permits is to be right."""
    return set(given.get(name, ())) == {None}


def _qualified(arguments: tuple[str | None, ...]) -> tuple[bool, frozenset[str]]:
    """Is the unqualified form given, and which fields does the qualified one name (sections 5.2.2.4 and 5.2.2.7)?

    A list that is none, or that names a field without which nothing can be decided, counts as the unqualified form.
    """
    lists = [members((argument or "").lower()) for argument in arguments]
    unqualified = any(not names or not all(map(is_token, names)) or DECISIVE.intersection(names) for names in lists)
    return unqualified, frozenset(name for names in lists for name in names)


# RFC 8941 section 3.2, as RFC 9213 section 2.1 wants it: a dictionary that has an error anywhere is no dictionary.
_KEY = r"[a-z*][a-z0-9_.*-]*"
_BARE = (
    r'"(?:[ !#-\[\]-~]|\\["\\])*+"'  # String
    r"|-?\d{1,12}\.\d{1,3}(?!\d)|-?\d{1,15}(?![\d.])"  # Decimal, Integer
    r"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"  # Token
    r"|:[A-Za-z0-9+/=]*:|\?[01]"  # Byte Sequence, Boolean
)
_PARAMETERS = rf"(?:; *{_KEY}(?:=(?:{_BARE}))?)*"
_ITEM = rf"(?:{_BARE}){_PARAMETERS}"
_INNER_LIST = rf"\( *(?:{_ITEM}(?: +{_ITEM})*)? *\)"
_ENTRY = re.compile(rf"({_KEY})(?:=({_INNER_LIST}|{_BARE}))?{_PARAMETERS}", re.ASCII)


def _dictionary(value: str) -> _Arguments | None:
    """The directives of a targeted field value; None when it is not a dictionary."""
    found: dict[str, tuple[str | None, ...]] = {}
    text = value.strip(" ")
    while text:
        entry = _ENTRY.match(text)
        if entry is None:
            return None
        name, item = entry.groups()
        if item == "?0":
            found.pop(name, None)
        else:
            found[name] = (_argument(name, item),)  # of equal keys the last one counts
        text = text[entry.end() :].lstrip(" \t")
        if text:
            comma, text = text[0], text[1:].lstrip(" \t")
            if comma != "," or not text:
                return None
    return found


def _argument(name: str, item: str | None) -> str | None:
    """An item as a directive's argument. Of a type that the directive does not have, it is an invalid one."""
    if item is None or item == "?1":
        return None
    if item.startswith('"'):
        return token_or_string(item) if name in ("no-cache", "private") else ""
    return item if delta_seconds(item) is not None else ""
