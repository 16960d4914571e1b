"""Random lives of one resource: the origin that changes, who asks for it, and the cache between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import strategies as st

from vllm_http_cache.rfc9111.dates import format_http_date, parse_http_date
from vllm_http_cache.rfc9111.judging import Freshen, Keep, Pass, Refetch, UseStale, judge, judge_failure, merged
from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request, Response, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.responding import gateway_timeout, respond
from vllm_http_cache.rfc9111.selecting import Refuse, Reuse, select
from vllm_http_cache.rfc9111.validating import conditional, unconditional

from .make import URI, T

TTL = 500.0


# What a life is made of


@dataclass(frozen=True)
class Policy:
    """How the origin answers."""

    cache_control: str = "max-age=10"
    validator: str = "strong"
    varies: bool = False
    age: int | None = None
    lag: int = 0  # of the Date behind the clock
    terse: bool = False  # no validators in a 304
    wrong: bool = False  # a 304 names a tag that nobody has
    trouble: str = ""  # "down" or "503"
    delay: float = 0.0


@dataclass(frozen=True)
class Ask:
    """How a caller asks. ``tag``: it has the representation of so many versions ago."""

    method: str = "GET"
    cache_control: str = ""
    foo: str = ""
    tag: int | None = None
    range: str = ""


@dataclass(frozen=True)
class Change:
    """The representation changes."""


@dataclass(frozen=True)
class Wait:
    seconds: float


LIFETIMES = ["max-age=10"] * 4 + ["x", "max-age=100", "max-age=0", "s-maxage=10", "max-age=5, s-maxage=50"]
PERMISSIONS = ["", "", "stale-while-revalidate=20", "stale-if-error=50"]
RESTRICTIONS = [""] * 6 + ["must-revalidate", "proxy-revalidate", "no-cache", "no-store", "private", "public"]
POLICIES = st.builds(
    Policy,
    cache_control=st.tuples(*map(st.sampled_from, (LIFETIMES, PERMISSIONS, RESTRICTIONS))).map(
        lambda parts: ", ".join(filter(None, parts))
    ),
    validator=st.sampled_from(["strong", "strong", "weak", "date", "none"]),
    varies=st.booleans(),
    age=st.none() | st.integers(0, 20),
    lag=st.sampled_from([0, 0, 7]),
    terse=st.booleans(),
    wrong=st.sampled_from([False] * 5 + [True]),
    trouble=st.sampled_from([""] * 18 + ["down", "503"]),
    delay=st.sampled_from([0.0, 0.0, 3.0]),
)
ASKS = st.builds(
    Ask,
    method=st.sampled_from(["GET", "GET", "GET", "HEAD"]),
    cache_control=st.sampled_from(
        ["", "", "", "", "no-cache", "max-age=0", "max-age=8", "min-fresh=5", "max-stale", "max-stale=5", "no-store"]
        + ["only-if-cached", "max-stale=20, max-age=15", "stale-if-error=30", "only-if-cached, max-stale"]
    ),
    foo=st.sampled_from(["", "", "a", "b"]),
    tag=st.sampled_from([None, None, None, 0, 1, 2]),
    range=st.sampled_from(["", "", "", "bytes=0-3", "bytes=2-", "bytes=-4", "bytes=90-"]),
)
WAITS = st.builds(Wait, st.sampled_from([0.5, 3.0, 6.0, 10.0, 15.0, 40.0, 200.0, 600.0]))
TROUBLE = st.sampled_from(["down", "503", ""])
PLAIN = st.just(Ask())
EVENTS = st.one_of(PLAIN, PLAIN, PLAIN, ASKS, ASKS, ASKS, WAITS, WAITS, WAITS, POLICIES, TROUBLE, st.just(Change()))
LIVES = st.tuples(POLICIES, st.lists(EVENTS, min_size=8, max_size=20))


# The origin, and what it is remembered to have said


@dataclass(frozen=True)
class Said:
    """One answer of the origin to the cache. ``version`` names the representation that it was about."""

    request: Request
    response: Response
    version: str
    sent: float
    received: float


@dataclass
class Origin:
    now: float = T
    policy: Policy = Policy()
    number: int = 1
    changed: int = int(T) - 200
    said: list[Said] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)

    def version(self, foo: str, number: int | None = None) -> str:
        return f"{self.number if number is None else number}{foo if self.policy.varies else ''}"

    def change(self) -> None:
        self.now += 1  # two versions in one second would look alike to a date
        self.number += 1
        self.changed = int(self.now)

    def answer(self, request: Request) -> tuple[Response, bytes]:
        """Answer as an origin does. :raises ConnectionError: it is down."""
        sent, policy = self.now, self.policy
        self.now += policy.delay
        if policy.trouble == "down":
            raise ConnectionError
        version = self.version(request.fields.get("foo") or "")
        body = self.bodies.setdefault(version, (f"{version}|" + "0123456789" * 3)[: 20 + self.number].encode())
        response, content = self._compose(request, version, body)
        self.said.append(Said(request, response, version, sent, self.now))
        return response, content

    def _compose(self, request: Request, version: str, body: bytes) -> tuple[Response, bytes]:
        policy, fields = self.policy, request.fields
        common = [("Date", format_http_date(self.now - policy.lag)), ("Cache-Control", policy.cache_control)]
        common += [("Age", str(policy.age))] if policy.age is not None else []
        common += [("Vary", "Foo")] if policy.varies else []
        common += [("X-Version", version)]
        if policy.trouble == "503":
            return Response(503, Fields([("Date", common[0][1])]), ""), b"trouble"
        tag = {"strong": f'"{version}"', "weak": f'W/"{version}"'}.get(policy.validator)
        modified = format_http_date(self.changed) if policy.validator == "date" else None
        validators = [("ETag", tag)] if tag else [("Last-Modified", modified)] if modified else []
        asked = fields.get("if-none-match")
        since = parse_http_date(fields.get("if-modified-since"), self.now)
        unmodified = tag is not None and asked is not None and tag.removeprefix("W/") in asked
        if asked is None and modified is not None and since is not None:
            unmodified = self.changed <= since
        if unmodified:
            validators = [("ETag", '"wrong"')] if policy.wrong else [] if policy.terse else validators
            return Response(304, Fields([*common, *validators]), ""), b""
        wanted = fields.get("range")
        if wanted and request.method == "GET" and fields.get("if-range") in (None, tag):
            first, last = positions(wanted, len(body))
            if first >= len(body):
                return Response(416, Fields([("Content-Range", f"bytes */{len(body)}")]), ""), b""
            place = f"bytes {first}-{last - 1}/{len(body)}"
            return Response(206, Fields([*common, *validators, ("Content-Range", place)]), ""), body[first:last]
        length = ("Content-Length", str(len(body)))
        return Response(200, Fields([*common, *validators, length]), ""), b"" if request.method == "HEAD" else body


def positions(wanted: str, length: int) -> tuple[int, int]:
    first, last = wanted.removeprefix("bytes=").split("-")
    if not first:
        return max(0, length - int(last)), length
    return int(first), min(int(last) + 1, length) if last else length


# The cache: the rules, and a dictionary


@dataclass(frozen=True)
class Answered:
    response: Response
    body: bytes
    heard: list[Said]  # what the origin said before it was given
    now: float
    failed: bool  # the origin was asked, and gave nothing or an error


@dataclass
class Cache:
    origin: Origin
    options: CacheOptions
    responses: tuple[StoredResponse, ...] = ()
    bodies: list[bytes] = field(default_factory=list)

    def ask(self, request: Request) -> Answered | None:
        """None: there was no answer to be had."""
        before, now = len(self.origin.said), self.origin.now
        decision = select(request, self.responses, now, self.options)
        if isinstance(decision, Refuse):
            return Answered(gateway_timeout(), b"", [], now, failed=False)
        if isinstance(decision, Reuse):
            answered = Answered(*self._from(decision.stored, request, now), [], now, failed=False)
            if decision.validate_later:
                self._forward(unconditional(request), (decision.stored,))
            return answered
        found = self._forward(request, decision.candidates)
        heard = self.origin.said[before:]
        failed = not heard or heard[-1].response.status == 503
        return found and Answered(*found, heard, self.origin.now, failed)

    def _forward(self, request: Request, candidates: tuple[StoredResponse, ...]) -> tuple[Response, bytes] | None:
        for sent in (conditional(request, candidates), request):
            start = self.origin.now
            try:
                response, body = self.origin.answer(sent)
            except ConnectionError:
                stale = judge_failure(request, candidates, self.origin.now, self.options)
                return self._from(stale, request, self.origin.now) if stale else None
            now = self.origin.now
            match judge(request, sent, response, start, now, candidates, self.options):
                case Pass(changes):
                    self._change(changes)
                    return response, body
                case Keep(stored, _, part, _):
                    whole = self._body(part) + body if part else body
                    self.bodies.append(whole)
                    stored = replace(stored, body=BodyRef(str(len(self.bodies) - 1), len(whole)))
                    self.responses = merged(self.responses, stored, now=inf)
                    return (respond(request, stored, now)[0], whole) if part else (response, body)
                case Freshen(changes, selected, _):
                    self._change(changes)
                    return (response, body) if selected is None else self._from(selected, request, now)
                case UseStale(stored):
                    return self._from(stored, request, now)
                case Refetch():
                    assert candidates
            candidates = ()
        raise AssertionError("asked twice and was told to ask again")

    def _change(self, changes: tuple[tuple[StoredResponse, StoredResponse | None], ...]) -> None:
        by = dict(changes)
        self.responses = tuple(new for old in self.responses if (new := by.get(old, old)) is not None)

    def _body(self, stored: StoredResponse) -> bytes:
        assert stored.body is not None
        return self.bodies[int(stored.body.name)]

    def _from(self, stored: StoredResponse, request: Request, now: float) -> tuple[Response, bytes]:
        response, span = respond(request, stored, now)
        assert request.method != "HEAD" or span is None
        return response, self._body(stored)[slice(*span)] if span else b""


def request_of(ask: Ask, origin: Origin) -> Request:
    lines = [("Cache-Control", ask.cache_control)] if ask.cache_control else []
    lines += [("Foo", ask.foo)] if ask.foo else []
    lines += [("Range", ask.range)] if ask.range else []
    if ask.tag is not None:
        lines += [("If-None-Match", f'"{origin.version(ask.foo, max(1, origin.number - ask.tag))}"')]
    return Request(ask.method, URI, Fields(lines))
