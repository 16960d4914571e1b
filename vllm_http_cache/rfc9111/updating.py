"""A stored response that a newer one brings up to date (RFC 9111 sections 3.2, 3.4, 4.3.4 and 4.3.5).

Which stored responses those are is decided in :mod:`.judging`. Here it is only said what becomes of them; a body is
never touched.
"""

from __future__ import annotations

from dataclasses import replace

from .dates import format_http_date
from .directives import response_directives
from .fields import DIGESTS, end_to_end, trimmed
from .freshness import lifetime, stale_if_error
from .message import Fields, Request, Response, StoredResponse
from .options import CacheOptions
from .storing import kept_fields
from .target import recorded_uri
from .vary import selecting, vary_names

__all__ = ["UNNOTED", "completed", "is_news", "updated"]

_OF_THE_TIME = frozenset(("age", "date", "expires"))
# Seconds by which a response may be taken for older than it is; at most a sixtieth of any span that counts from then.
UNNOTED = 60.0

# Section 3.2: what says how the stored octets are to be read stays with them. A digest in a 304 is that of no octets
# at all.
_OF_THE_OCTETS = DIGESTS | frozenset(("content-encoding", "content-length", "content-range", "digest", "etag"))


def updated(
    stored: StoredResponse,
    request: Request,
    response: Response,
    request_time: float,
    response_time: float,
    options: CacheOptions,
    *,
    confirms: bool = True,
) -> StoredResponse:
    """*stored* with the fields of *response*, which the origin gave for *request*.

    :param confirms: the origin has compared a validator, so the stored octets are known to be current.
    """
    # What Connection and its like say is said of the message that they came in.
    fields = _merged(stored.fields, end_to_end(response.fields, options), response_time)
    fields = kept_fields(fields, options)
    varies = vary_names(fields)
    return replace(
        stored,
        uri=recorded_uri(request.uri),
        fields=fields,
        selecting=stored.selecting if varies == vary_names(stored.fields) else selecting(request, fields),
        request_time=request_time,
        response_time=response_time,
        confirmed=response_time if confirms else stored.confirmed,
    )


def is_news(old: StoredResponse, new: StoredResponse, options: CacheOptions) -> bool:
    """Is there more to remember of *new*, the updated *old*, than when it was confirmed?

    A response that was and is never used without being confirmed may as well be taken for a little older than it is.
    """
    for stored in (old, new):
        window = response_directives(stored.fields, options).stale_while_revalidate
        if window is not None or lifetime(stored, options).seconds > 0:
            return True
    spans = options.ttl, stale_if_error(new, options)
    if new.confirmed - old.confirmed >= min(UNNOTED, *(span / 60 for span in spans if span is not None)):
        return True
    changed = {name.lower() for name, _ in set(old.fields.lines) ^ set(new.fields.lines)}
    return not changed <= _OF_THE_TIME or (old.uri, old.selecting) != (new.uri, new.selecting)


def completed(part: StoredResponse, new: StoredResponse, length: int, options: CacheOptions) -> StoredResponse:
    """The whole that *part*, a first part, and *new*, the rest, make: a 200 of *length* octets (RFC 9110 section
    15.3.7.3)."""
    fields = _merged(part.fields, new.fields, new.response_time).without(DIGESTS | {"content-range"})
    fields = kept_fields(fields, options)
    return replace(
        new,
        status=200,
        reason="OK",
        fields=fields.replaced(("Content-Length", str(length))),
        first=0,
    )


def _merged(old: Fields, new: Fields, received: float) -> Fields:
    """Each field of *new* in place of those of the same name in *old*."""
    # Age and Date belong to the response that brought them: a new one without them is as old as its receipt.
    old = old.without(("age",))
    if "date" not in new:
        new = new.replaced(("Date", format_http_date(received)))
    kept = _OF_THE_OCTETS if _same_media_type(old, new) else _OF_THE_OCTETS | {"content-type"}
    return old.replaced(*new.without(kept).lines)


def _same_media_type(old: Fields, new: Fields) -> bool:
    """May the new Content-Type replace the old one? Its parameters may change; octets that were an image, and whose
    validator is still the same, have not become a page."""
    before, after = (fields.get("content-type") for fields in (old, new))
    if before is None or after is None:
        return before is None
    return trimmed(before.partition(";")[0]).lower() == trimmed(after.partition(";")[0]).lower()
