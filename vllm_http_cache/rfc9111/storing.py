"""What may be stored, and what of it is (RFC 9111 section 3).

Heads only. Whether the body came whole is not known here.
"""

from __future__ import annotations

from .dates import format_http_date
from .directives import request_directives, response_directives
from .fields import end_to_end
from .framing import keeps_its_coding
from .freshness import HEURISTIC_STATUSES, has_explicit_lifetime
from .message import Fields, Request, Response, StoredResponse
from .options import CacheOptions
from .ranges import content_range, wanted
from .target import recorded_uri, resolved, same_uri
from .vary import selecting

__all__ = ["kept_fields", "storable", "stored_response"]

# must-understand (section 5.2.2.3): the status codes of RFC 9110 whose demands on caches are met here.
_UNDERSTOOD = HEURISTIC_STATUSES | frozenset((201, 202, 302, 303, 307, 400, 401, 402, 403, 406, 407, 408, 409))
_UNDERSTOOD |= frozenset((411, 413, 415, 417, 421, 422, 426, 500, 502, 503, 504, 505))
# These speak of the request's own conditions, not of the target.
_ABOUT_THE_REQUEST = frozenset((304, 412, 416))


def storable(request: Request, response: Response, options: CacheOptions) -> bool:
    """May *response*, received for *request*, be stored?"""
    directives = response_directives(response.fields, options)
    status = response.status
    if not 200 <= status <= 599 or status in _ABOUT_THE_REQUEST or not _method_allows(request, response, options):
        return False
    if keeps_its_coding(response.fields):
        return False  # and the field that tells of it does not outlive its connection
    if options.mode == "no-store" or request_directives(request.fields).no_store:
        return False
    if status == 206 and (wanted(request) is None or content_range(response.fields) is None):
        return False  # a part we cannot tell the place of; several parts
    if directives.must_understand and status not in _UNDERSTOOD:
        return False
    if directives.no_store and not directives.must_understand:
        return False
    if options.shared and (
        directives.private or ("authorization" in request.fields and not directives.shares_authorized)
    ):
        return False
    allowed = directives.public or (directives.private and not options.shared) or status in HEURISTIC_STATUSES
    return allowed or has_explicit_lifetime(response.fields, options)


def kept_fields(fields: Fields, options: CacheOptions) -> Fields:
    """The fields that are stored: all but those of one hop, and those that no-cache="..." and, in a shared cache,
    private="..." name (section 3.1), and a Content-Length that a Transfer-Encoding overrode (RFC 9112 section 6.3)."""
    directives = response_directives(fields, options)
    withheld = directives.no_cache_fields | (directives.private_fields if options.shared else frozenset())
    withheld -= {directives.source}  # as decisive for what is stored as for what arrives
    if "transfer-encoding" in fields:
        withheld |= {"content-length"}
    return end_to_end(fields, options).without(withheld)


def stored_response(
    request: Request, response: Response, request_time: float, response_time: float, options: CacheOptions
) -> StoredResponse:
    """*response* as it is to be stored, without its body."""
    fields = kept_fields(response.fields, options)
    if "date" not in fields:  # RFC 9110 section 6.6.1
        fields = fields.replaced(("Date", format_http_date(response_time)))
    part = content_range(fields) if response.status == 206 else None
    return StoredResponse(
        uri=recorded_uri(request.uri),
        status=response.status,
        fields=fields,
        selecting=selecting(request, fields),
        request_time=request_time,
        response_time=response_time,
        confirmed=response_time,
        reason=response.reason,
        first=part[0] if part else 0,
    )


def _method_allows(request: Request, response: Response, options: CacheOptions) -> bool:
    if request.method == "GET":
        return True
    # RFC 9110 section 9.3.3: what a POST answers with, and says to be the target itself, is what a GET would get.
    location = resolved(request.uri, response.fields.get("content-location"))
    explicit = response.status == 200 and has_explicit_lifetime(response.fields, options)
    return request.method == "POST" and explicit and location is not None and same_uri(location, request.uri)
