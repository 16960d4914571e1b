"""The request that goes to the origin (RFC 9111 section 4.3.1).

What may be asked about was chosen before; here it is put into fields.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .message import Request, StoredResponse
from .ranges import content_range, has_what_is_wanted, holds_whole, wanted
from .target import same_uri
from .validators import entity_tag, entity_tags, has_strong_tag, is_single
from .vary import vary_names

__all__ = ["completes", "conditional", "may_be_validated", "unconditional", "validates"]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PRECONDITIONS = ("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since")


def conditional(request: Request, candidates: tuple[StoredResponse, ...]) -> Request:
    """*request* with the candidates' validators as its preconditions.

    The caller's own entity tags stay beside them: the origin's 304 tells which one it means. A HEAD is forwarded as
    it is, for its answer is as short as a 304 (RFC 9110 section 13.2.1) and updates what is stored just as well.
    """
    if request.method != "GET" or not candidates:
        return request
    if (part := completes(request, candidates)) is not None:
        return _for_the_rest(request, part)
    validated = [stored for stored in candidates if may_be_validated(request, stored)]
    own = entity_tags(request.fields, "if-none-match")
    known = filter(None, (entity_tag(stored.fields) for stored in validated if "*" not in own))
    tags = [tag for tag in known if _may_be_sent(tag) and is_single(tag)]
    conditions = []
    fields = request.fields
    if tags:
        # The caller's own date is for us to evaluate, against what the origin selects.
        fields = fields.without(("if-modified-since",))
        conditions.append(("If-None-Match", ", ".join(dict.fromkeys((*own, *tags)))))
    modified = validated[0].fields.get("last-modified") if len(validated) == 1 else None
    if modified and _may_be_sent(modified) and _is_validated_by_date(request, validated[0]) and (tags or not own):
        conditions.append(("If-Modified-Since", modified))
    return Request(request.method, request.uri, fields.replaced(*conditions))


def may_be_validated(request: Request, stored: StoredResponse) -> bool:
    """Can a 304 to *request* be about *stored*?

    Preconditions are evaluated where the answer would be a success (RFC 9110 section 13.2.1): a 304 says that a success
    has not changed, and never that an error or a redirect still stands. A part is validated only by a request for
    what lies in it (section 4.3.2).
    """
    return 200 <= stored.status <= 299 and has_what_is_wanted(request, stored)


def validates(sent: Request, candidates: tuple[StoredResponse, ...]) -> bool:
    """Has *sent* a validator of one of the candidates as its precondition?"""
    tags, since = entity_tags(sent.fields, "if-none-match"), sent.fields.get("if-modified-since")

    def is_named(stored: StoredResponse) -> bool:
        dated = since is not None and stored.fields.get("last-modified") == since
        return entity_tag(stored.fields) in tags or (dated and _is_validated_by_date(sent, stored))

    return any(map(is_named, candidates))


def unconditional(request: Request) -> Request:
    """*request* for the whole of the current representation, whatever the caller has of it."""
    return replace(request, fields=request.fields.without((*_PRECONDITIONS, "range")))


def completes(request: Request, candidates: tuple[StoredResponse, ...]) -> StoredResponse | None:
    """The stored first part of a representation whose rest is all that *request*, for the whole, needs (section 3.3).

    None also where the caller has preconditions of its own.
    """
    if "range" in request.fields or any(name in request.fields for name in _PRECONDITIONS):
        return None
    return next((stored for stored in candidates if not holds_whole(stored) and _is_prefix(stored)), None)


def _is_prefix(stored: StoredResponse) -> bool:
    part = content_range(stored.fields)
    if part is None or part[0] != 0 or stored.body is None or stored.body.length != part[1] + 1:
        return False
    return part[2] is None or part[1] + 1 < part[2]


def _for_the_rest(request: Request, part: StoredResponse) -> Request:
    fields = request.fields.replaced(("Range", f"bytes={part.body.length if part.body else 0}-"))
    tag = entity_tag(part.fields)
    if tag is not None and has_strong_tag(part.fields):  # "MUST NOT generate an If-Range with a weak" one (13.1.5)
        fields = fields.replaced(("If-Range", tag))
    return replace(request, fields=fields)


def _may_be_sent(value: str) -> bool:
    """Does it hold none of the control characters (RFC 9110 section 5.5) that clients refuse to send?"""
    return _CONTROL.search(value) is None


def _is_validated_by_date(request: Request, stored: StoredResponse) -> bool:
    """A date tells neither variants nor ranges apart, and vouches for nothing under another signature."""
    exact = same_uri(stored.uri, request.uri) and "*" not in vary_names(stored.fields)
    return exact and wanted(request) is None
