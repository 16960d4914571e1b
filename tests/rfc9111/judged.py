"""Judging in one call, and what the tests of it judge."""

from __future__ import annotations

from vllm_http_cache.rfc9111.judging import Verdict, judge
from vllm_http_cache.rfc9111.message import Request, Response, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.storing import stored_response
from vllm_http_cache.rfc9111.updating import updated
from vllm_http_cache.rfc9111.validating import conditional

from .make import SHARED, T, answer, date, get

FRESH = "Cache-Control: max-age=60"
ONE, WEAK, TWO = 'ETag: "1"', 'ETag: W/"1"', 'ETag: "2"'
LATER = T + 100


def verdict(
    request: Request, response: Response, *candidates: StoredResponse, options: CacheOptions = SHARED
) -> Verdict:
    sent = conditional(request, candidates)
    return judge(request, sent, response, LATER, LATER, candidates, options)


def anew(request: Request, response: Response) -> StoredResponse:
    return stored_response(request, response, LATER, LATER, SHARED)


def freshened(stored: StoredResponse, response: Response, request: Request | None = None) -> StoredResponse:
    return updated(stored, request or get(), response, LATER, LATER, SHARED)


def not_modified(*lines: str) -> Response:
    return answer(f"Date: {date(100)}", *lines, status=304)
