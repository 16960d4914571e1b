"""The cache under requests: an adapter to mount on a session.

    adapter = CacheAdapter(cache)
    session.mount("http://", adapter)
    session.mount("https://", adapter)

Unless the cache is off, every answer carries ``Cache-Status``; :func:`refuse` says that an answer's octets were of no
use. Bodies of streamed answers are given as they come, in chunks of at most the size asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from functools import partial
from http.client import HTTPMessage
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3 import HTTPHeaderDict, HTTPResponse
from urllib3.exceptions import HeaderParsingError, ProtocolError, ReadTimeoutError
from urllib3.util import Retry, Timeout
from urllib3.util.response import assert_header_parsing

from .rfc9111.framing import is_framed
from .rfc9111.message import Fields, Request, Response
from .rfc9111.target import InvalidTarget, parse_target
from .wire import A_CACHE, Caller, Fetched, Reply, expect

if TYPE_CHECKING:
    from .cache import Cache
    from .wire import Body, UrlPolicy

__all__ = ["CacheAdapter", "received", "refuse"]

CHUNK = 64 * 1024  # octets read from a connection at once, at most
ATTRIBUTE = "vllm_http_cache"  # of a response: the Fetched it was made from
ADDED = (  # what http.client and urllib3 put on the wire where nothing else is given
    ("Accept-Encoding", "identity"),
    ("User-Agent", f"python-urllib3/{version('urllib3')}"),
)


class CacheAdapter(BaseAdapter):
    """An adapter that answers from *cache*, and otherwise from *inner*.

    A deep copy (of its session) is another adapter on the same cache; it cannot be pickled.

    :param inner: the adapter that goes to the origin, a new :class:`HTTPAdapter` if None. Closed with this one; the
        cache is not.
    :param url_policy: called with the target URI of every request (each hop of a chain of redirects is one) before the
        cache is asked; raises to refuse it.
    """

    def __init__(self, cache: Cache, inner: BaseAdapter | None = None, *, url_policy: UrlPolicy | None = None) -> None:
        super().__init__()
        expect(cache, "fetch", A_CACHE)
        self._cache = cache
        self._inner = HTTPAdapter() if inner is None else inner
        expect(self._inner, "send", "inner has to be an adapter, such as HTTPAdapter()")
        self._url_policy = url_policy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._inner = copy.deepcopy(self._inner, memo)
        return other

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CacheAdapter cannot be pickled, nor a session that it is mounted on: mount one on the copy")

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # answers always stream; the session reads what its caller wants whole
        timeout: float | tuple[float | None, float | None] | Timeout | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Answer *request*. Parameters are those of :meth:`requests.adapters.HTTPAdapter.send`, timeouts in seconds.

        :raises requests.exceptions.InvalidURL: the URL could be read in more than one way.
        :raises requests.exceptions.RequestException: as *inner* does. While another caller's download is followed:
            :class:`~requests.exceptions.ReadTimeout` after the read timeout, and
            :class:`~requests.exceptions.ConnectionError` when it breaks.
        """
        asked = _asked(request)
        inner: Any = self._inner

        def forward(sent: Request) -> Reply:
            outgoing = _outgoing(request, asked, sent)
            response = inner.send(outgoing, stream=True, timeout=timeout, verify=verify, cert=cert, proxies=proxies)
            return _reply(sent.method, response)

        try:
            if self._url_policy is not None:
                parse_target(asked.uri)
                self._url_policy(asked.uri)
            fetched = self._cache.fetch(asked, forward, _caller(request, timeout))
        except InvalidTarget as error:
            raise requests.exceptions.InvalidURL(error, request=request) from error
        except ReadTimeoutError as error:
            raise requests.ReadTimeout(error, request=request) from error
        except ProtocolError as error:
            raise requests.ConnectionError(error, request=request) from error
        return self._answer(request, fetched)

    def close(self) -> None:
        self._inner.close()

    def _answer(self, request: requests.PreparedRequest, fetched: Fetched) -> requests.Response:
        head = fetched.response
        response: Any = fetched.native
        if response is None:
            as_adapter = cast("HTTPAdapter", self)  # build_response makes it the response's connection, no more
            retries = getattr(self._inner, "max_retries", Retry(0, read=False))
            response = HTTPAdapter.build_response(as_adapter, request, _Raw(fetched.body, head, request, retries))
        else:
            response.raw.headers = _raw_headers(head.fields)
            response.headers = CaseInsensitiveDict(response.raw.headers)
            response.request = request  # without what the cache added
            response.connection = self
        setattr(response, ATTRIBUTE, fetched)
        return cast("requests.Response", response)


def refuse(response: requests.Response) -> None:
    """The consumer's veto: the octets of *response* are unusable (they do not decode).

    What is stored of it is dropped, and the next request asks the origin. Does nothing for what is not stored.
    """
    fetched = getattr(response, ATTRIBUTE, None)
    if isinstance(fetched, Fetched):
        fetched.refuse()


def reading(raw: HTTPResponse) -> Callable[[], bytes]:
    """Gives the next octets of a raw response, undecoded and as they come; empty at the end.

    http.client, below ``read1``, takes the chunks off a body whose Transfer-Encoding is spelled ``chunked``, and
    urllib3, where requests reads, off any whose list of codings has it.
    """
    if raw.chunked and raw.supports_chunked_reads() and not getattr(raw._original_response, "chunked", True):
        pieces = raw.read_chunked(CHUNK, decode_content=False)
        return lambda: next(pieces, b"")
    return lambda: raw.read1(CHUNK, decode_content=False) or b""


class _Source:
    """A :class:`~.wire.Source`: the raw response, undecoded."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        self.read = reading(cast("HTTPResponse", response.raw))

    def close(self) -> None:
        self._response.close()


class _File:
    """A body as the file under an :class:`urllib3.HTTPResponse`."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._left = body.length
        self._chunk = memoryview(b"")
        self.closed = False
        if body.length == 0:
            self._finish()
            self.closed = False  # until it is read: what wraps files wants an open one

    def read1(self, amt: int = -1) -> bytes:
        """At most *amt* octets (-1: as many as come), without waiting for more once there are some."""
        if self.closed:
            return b""
        if not self._chunk:
            self._chunk = memoryview(self._body.read())
        data = bytes(self._chunk if amt < 0 else self._chunk[:amt])
        self._chunk = self._chunk[len(data) :]
        if self._left is not None:
            self._left -= len(data)
        if self._left == 0 or not data:
            self._finish()
        return data

    def read(self, amt: int | None = None) -> bytes:
        """*amt* octets, or all that are left if there are fewer (None: all)."""
        parts: list[bytes] = []
        left = -1 if amt is None else amt
        while left and (data := self.read1(left)):
            parts.append(data)
            left -= len(data) if amt is not None else 0
        return b"".join(parts)

    def _finish(self) -> None:
        """Reading to the end gives the connection back: a caller who knows the length will not read on."""
        try:
            while self._body.read():
                pass
        finally:
            self.close()

    def close(self) -> None:
        self.closed = True
        self._chunk = memoryview(b"")
        self._body.close()


class _Original:
    """As much of an :class:`http.client.HTTPResponse` as urllib3 and requests ask for: cookies, and the end."""

    def __init__(self, file: _File, fields: Fields) -> None:
        self._file = file
        self.msg = HTTPMessage()
        for name, value in fields:
            self.msg[name] = value

    def isclosed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()


class _Raw(HTTPResponse):
    """A body in urllib3's clothes."""

    def __init__(self, body: Body, head: Response, request: requests.PreparedRequest, retries: Retry) -> None:
        file = _File(body)
        super().__init__(
            body=cast("Any", file),
            headers=_raw_headers(head.fields),
            status=head.status,
            version=11,
            reason=head.reason,
            preload_content=False,
            decode_content=False,
            original_response=cast("Any", _Original(file, head.fields) if "set-cookie" in head.fields else None),
            retries=retries,
            request_method=request.method,
            request_url=request.path_url,
        )
        self.version_string = "HTTP/1.1"
        self._file = file
        self._uncoded = "content-encoding" not in head.fields
        self._dropped = False
        self.chunked = False  # whatever the origin's framing was

    def stream(self, amt: int | None = 2**16, decode_content: bool | None = None) -> Generator[bytes, None, None]:
        """The body in chunks of at most *amt* octets, each as soon as it is there."""
        while not self._dropped and (data := self._next(amt, decode_content)):
            yield data

    def _next(self, amt: int | None, decode_content: bool | None) -> bytes:
        if not self._uncoded:
            return self.read1(amt, decode_content)
        data = self._file.read1(-1 if amt is None else amt)  # past urllib3's buffers: requests wants 10 KiB each time
        self._fp_bytes_read += len(data)
        if self.length_remaining is not None:
            self.length_remaining -= len(data)
        return data

    def close(self) -> None:
        self._dropped = True
        super().close()


def _asked(request: requests.PreparedRequest) -> Request:
    """The request as the cache sees it. Its URI is made of the parts that HTTPAdapter dials and sends, read alike."""
    parts = urlsplit(request.url or "")
    uri = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{request.path_url}"
    lines = [(_text(name), _text(value)) for name, value in request.headers.items()]
    given = {name.lower() for name, _ in lines}
    lines += [line for line in ADDED if line[0].lower() not in given]
    return Request(request.method or "GET", uri, Fields(lines))


def _outgoing(request: requests.PreparedRequest, asked: Request, sent: Request) -> requests.PreparedRequest:
    """What goes to the origin: the caller's own request unless the cache changed it."""
    if sent.fields == asked.fields and sent.method == asked.method:
        return request
    outgoing = request.copy()
    outgoing.method = sent.method
    outgoing.headers = CaseInsensitiveDict(_raw_headers(sent.fields))
    return outgoing


def _caller(
    request: requests.PreparedRequest, timeout: float | tuple[float | None, float | None] | Timeout | None
) -> Caller:
    if isinstance(timeout, tuple):
        timeout = timeout[1]
    elif isinstance(timeout, Timeout):
        timeout = timeout.clone()
        timeout.start_connect()
        timeout = timeout.read_timeout
    pool = cast("Any", None)
    return Caller(
        timeout=timeout,
        timed_out=partial(ReadTimeoutError, pool, request.url, "no octets from another caller's download"),
        broken=ProtocolError,
    )


def received(response: requests.Response) -> tuple[Response, bool]:
    """The head of a response from the network, and whether all of it could be read."""
    raw = cast("HTTPResponse", response.raw)
    fields = Fields((_text(name), _text(value).strip(" \t")) for name, value in raw.headers.items())
    if 100 <= response.status_code < 200:  # http.client takes it for the final one, which is still to come
        raw.close()
    return Response(response.status_code, fields, response.reason or ""), _is_legible(raw)


def _is_legible(raw: HTTPResponse) -> bool:
    message = getattr(getattr(raw, "_original_response", None), "msg", None)
    try:
        if isinstance(message, HTTPMessage):
            assert_header_parsing(message)
    except HeaderParsingError:  # urllib3 has logged it and gone on
        return False
    return True


def _reply(method: str, response: requests.Response) -> Reply:
    head, legible = received(response)
    return Reply(head, _Source(response), response, is_framed(method, head), legible, (ReadTimeoutError,))


def _raw_headers(fields: Fields) -> HTTPHeaderDict:
    headers = HTTPHeaderDict()
    for name, value in fields:
        headers.add(name, value)
    return headers


def _text(octets: str | bytes) -> str:
    return octets.decode("latin-1") if isinstance(octets, bytes) else octets
