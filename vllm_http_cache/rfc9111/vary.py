"""Vary: which requests a stored response answers (RFC 9111 section 4.1).

Two values of a field match when they mean the same by the field's definition. Values are compared in a normalized
form, and only that form is kept; whatever may be a credential is kept as a digest.
"""

from __future__ import annotations

import re
from hashlib import sha256

from .fields import is_token, members, tightened, trimmed
from .memo import memo
from .message import Fields, Request, StoredResponse

__all__ = ["accepts_coding", "matches", "normalized", "selecting", "vary_names"]

# Their members are unordered, weighted and, but for parameters, case-insensitive (RFC 9110 section 12.5).
_WEIGHTED = frozenset(("accept", "accept-charset", "accept-encoding", "accept-language"))
# What a request says in these is no secret. Any other field is taken for a credential.
_OPEN = _WEIGHTED | {"accept-ch", "dnt", "origin", "save-data", "user-agent", "x-requested-with"}
# Their commas, if any, separate nothing.
_OPAQUE = frozenset(("authorization", "cookie", "proxy-authorization", "referer", "user-agent"))
# The codings a client may be unable to undo. One that nobody registered was not negotiated.
_CODINGS = frozenset(("br", "compress", "dcb", "dcz", "deflate", "gzip", "zstd"))
_WEIGHT = re.compile(r"[01](?:\.[0-9]{0,3})?")
_PARAMETER = re.compile(r'(?:[^;"]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))+', re.DOTALL)  # as members are told apart


def vary_names(fields: Fields) -> tuple[str, ...]:
    """The request fields that Vary names, in lower case, sorted. ``("*",)``: no request can be known to match."""
    value = fields.get("vary")
    return () if value is None else _names(value)


@memo(1024)
def _names(value: str) -> tuple[str, ...]:
    names = {member.lower() for member in members(value)}
    # "*" fails whatever stands beside it; what is not a field name could stand for any.
    return ("*",) if "*" in names or not all(map(is_token, names)) else tuple(sorted(names))


def selecting(request: Request, fields: Fields) -> tuple[tuple[str, str], ...]:
    """What to keep of *request* beside a response with *fields*: for each field that Vary names and the request has,
    its name and its normalized value."""
    values = ((name, normalized(request, name)) for name in vary_names(fields))
    return tuple((name, value) for name, value in values if value is not None)


def matches(request: Request, stored: StoredResponse) -> bool:
    """Do the fields that the stored response's Vary names say the same in *request* as in the one it answered?

    A field absent from one request matches only where it is absent from the other. A response that says it is in the
    one language the request likes best matches too: that is what the origin's own ranking would choose.
    """
    names = vary_names(stored.fields)
    if not names:
        return True
    if "*" in names:
        return False
    kept = dict(stored.selecting)
    return all(
        normalized(request, name) == kept.get(name) or (name == "accept-language" and _is_preferred(request, stored))
        for name in names
    )


def normalized(request: Request, name: str) -> str | None:
    """The value of the request field *name* (lower case) in a form that is equal for equal meanings.

    None when the request does not have it.
    """
    value = request.fields.get(name)
    return None if value is None else _normalized(value, name)


@memo(1024)
def _normalized(value: str, name: str) -> str:
    if name in _WEIGHTED:
        value = ",".join(sorted(map(_weighted, members(value))))
    elif name in _OPAQUE:
        value = trimmed(value)
    else:  # in a field that nobody here knows an empty member may mean something
        value = tightened(value)
    return (
        value if name in _OPEN else "sha256:" + sha256(f"{name}\n{value}".encode("utf-8", "replace")).hexdigest()[:32]
    )


def _weighted(member: str) -> str:
    """A member of a field like Accept, its weight written in one way. Values of parameters keep their case."""
    value, parameters, weight = _taken_apart(member)
    return ";".join((value, *sorted(parameters), f"q={weight:g}"))


def _taken_apart(member: str) -> tuple[str, list[str], float]:
    """Value (lower case), parameters and weight of a member of a field like Accept (RFC 9110 section 12.4.2)."""
    first, _, rest = member.partition(";")
    parameters = []
    weight = 1.0
    for parameter in filter(None, map(trimmed, _PARAMETER.findall(rest))):
        key, _, value = parameter.partition("=")
        if key.lower() == "q" and _WEIGHT.fullmatch(value):
            weight = float(value)
        else:
            parameters.append(f"{key.lower()}={value}")
    return trimmed(first).lower(), parameters, weight


def _weights(value: str) -> dict[str, float]:
    return {name: weight for name, _, weight in map(_taken_apart, members(value))}


def _is_preferred(request: Request, stored: StoredResponse) -> bool:
    """Does the request prefer the stored response's language to all others (section 4.1: ranking by qvalues)?"""
    language = stored.fields.get("content-language")
    weights = _weights(request.fields.get("accept-language") or "")
    best = max(weights.values(), default=0.0)
    favourites = [name for name, weight in weights.items() if weight == best > 0]
    return language is not None and favourites == [trimmed(language).lower()]


def accepts_coding(request: Request, stored: StoredResponse) -> bool:
    """Can the caller undo the content coding of what is stored (RFC 9110 section 12.5.3)?

    Vary is to say so, but origins forget it, and a body that cannot be decoded is no answer.
    """
    coded = stored.fields.get("content-encoding")
    accepted = request.fields.get("accept-encoding")
    if coded is None or accepted is None:
        return True
    weights = _weights(accepted.lower().replace("x-", ""))
    codings = _CODINGS.intersection(coding.lower().removeprefix("x-") for coding in members(coded))
    return all(weights.get(coding, weights.get("*", 0.0)) > 0 for coding in codings)
