"""RFC 9111 sections 4.3.1, 4.3.2 and 3.3."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import Request, StoredResponse
from vllm_http_cache.rfc9111.validating import completes, conditional, unconditional, validates

from .make import date, get, head, kept, part
from .test_selecting import RESIGNED, SIGNED

ONE, TWO = 'ETag: "1"', 'ETag: W/"2"'
LM = f"Last-Modified: {date(-9)}"
IMS = f"If-Modified-Since: {date(-9)}"


def added(request: Request, *candidates: StoredResponse) -> list[str]:
    """The lines in what is sent that are not in *request*, and with a minus those that are gone."""
    sent = conditional(request, candidates)
    assert (sent.method, sent.uri) == (request.method, request.uri)
    new = [f"{name}: {value}" for name, value in sent.fields if (name, value) not in request.fields.lines]
    return new + [f"-{name}" for name, value in request.fields if (name, value) not in sent.fields.lines]


def test_the_validators_of_a_single_response() -> None:
    assert added(get("User-Agent: me", "Foo: 1"), kept(ONE, LM)) == ['If-None-Match: "1"', IMS]
    assert added(get(), kept(TWO)) == ['If-None-Match: W/"2"']
    assert added(get(), kept(LM)) == [IMS]
    assert added(get(), kept("ETag: abc")) == ["If-None-Match: abc"]
    assert added(get(), kept()) == []
    assert added(get()) == []


@pytest.mark.parametrize("tag", ["*", '"1", *', '"1", "2"', "a, b", '"1"2'])
def test_what_stands_for_more_than_one_tag_is_not_sent(tag: str) -> None:
    """RFC 9110 section 13.1.2: a star would have anything confirmed."""
    assert added(get(), kept(f"ETag: {tag}")) == []
    assert added(get(), kept(f"ETag: {tag}", LM)) == [IMS]
    assert added(get(), kept(f"ETag: {tag}"), kept(ONE)) == ['If-None-Match: "1"']


@pytest.mark.parametrize(
    "octet, sent", [(octet, False) for octet in "\0\x08\n\x0b\r\x1f\x7f"] + [("\t", True), ("\x80", True)]
)
def test_what_clients_refuse_to_send_is_not_sent(octet: str, sent: bool) -> None:
    """RFC 9110 section 5.5."""
    tag, modified = f'"a{octet}b"', f"a{octet}b"
    assert added(get(), kept(f"ETag: {tag}")) == ([f"If-None-Match: {tag}"] if sent else [])
    assert added(get(), kept(f"Last-Modified: {modified}")) == ([f"If-Modified-Since: {modified}"] if sent else [])


def test_a_date_is_sent_as_it_was_received() -> None:
    assert added(get(), kept("Last-Modified: Sunday, 06-Nov-94 08:49:28 GMT")) == [
        "If-Modified-Since: Sunday, 06-Nov-94 08:49:28 GMT"
    ]


def test_the_tags_of_several_responses_without_a_date() -> None:
    assert added(get(), kept(ONE, LM), kept(TWO, LM), kept(LM), kept(ONE)) == ['If-None-Match: "1", W/"2"']
    assert added(get(), kept(LM), kept(LM, name="x")) == []


def test_the_callers_tags_stay_beside_ours() -> None:
    assert added(get('If-None-Match: "x", "1"', 'If-None-Match: "y"'), kept(ONE)) == [
        'If-None-Match: "x", "1", "y"',
        "-If-None-Match",
        "-If-None-Match",
    ]
    assert added(get('If-None-Match: "1"'), kept(ONE)) == []
    assert added(get('If-None-Match: "x"'), kept(LM)) == []  # the origin would not look at the date
    assert added(get('If-None-Match: "x"'), kept(ONE, LM)) == ['If-None-Match: "x", "1"', IMS, "-If-None-Match"]


def test_the_callers_star_stays_as_it_is() -> None:
    assert added(get("If-None-Match: *"), kept(ONE, LM)) == []


def test_the_callers_date_gives_way_to_ours() -> None:
    own = f"If-Modified-Since: {date(-99)}"
    assert added(get(own), kept(LM)) == [IMS, "-If-Modified-Since"]
    assert added(get(own), kept(ONE)) == ['If-None-Match: "1"', "-If-Modified-Since"]
    assert added(get(own), kept(ONE, LM)) == ['If-None-Match: "1"', IMS, "-If-Modified-Since"]
    assert added(get(own), kept()) == []


def test_a_head_is_forwarded_as_it_is() -> None:
    assert added(head(), kept(ONE, LM)) == []


def test_another_signature_is_validated_by_its_tag_alone() -> None:
    assert added(get(uri=RESIGNED), kept(ONE, LM, uri=SIGNED)) == ['If-None-Match: "1"']
    assert added(get(uri=SIGNED), kept(ONE, LM, uri=SIGNED)) == ['If-None-Match: "1"', IMS]


@pytest.mark.parametrize("status, expected", [(200, True), (203, True), (299, True), (300, False), (301, False)])
def test_only_a_success_is_validated(status: int, expected: bool) -> None:
    """RFC 9110 section 13.2.1: a 304 is the origin's word on a success."""
    for line, condition in ((ONE, 'If-None-Match: "1"'), (LM, IMS)):
        assert added(get(), kept(line, status=status)) == ([condition] if expected else [])
        assert added(get(), kept(line, status=404)) == added(get(), kept(line, status=503)) == []
    assert added(get(), kept(ONE, status=404), kept(TWO, LM)) == ['If-None-Match: W/"2"', IMS]


def test_what_varies_on_everything_is_validated_by_its_tag_alone() -> None:
    assert added(get(), kept(ONE, LM, "Vary: *")) == ['If-None-Match: "1"']


def test_a_range_is_validated_by_tags_alone() -> None:
    asked = get("Range: bytes=2-3")
    assert added(asked, kept(ONE, LM)) == ['If-None-Match: "1"']
    assert added(asked, part("0-4/10", ONE)) == ['If-None-Match: "1"']
    assert added(asked, part("0-2/10", ONE)) == []  # section 4.3.2: only for what lies in it
    assert added(asked, kept(LM)) == []


def test_the_rest_of_a_first_part() -> None:
    assert added(get("Foo: 1"), part("0-4/10", ONE, LM)) == ["Range: bytes=5-", 'If-Range: "1"']
    assert added(get(), part("0-8/10", ONE)) == ["Range: bytes=9-", 'If-Range: "1"']
    assert added(get(), part("0-4/*", ONE)) == ["Range: bytes=5-", 'If-Range: "1"']
    assert added(get(), part("0-4/10", TWO)) == ["Range: bytes=5-"]
    assert added(get(), part("0-4/10")) == ["Range: bytes=5-"]
    assert added(get(), kept(ONE), part("0-4/10", ONE)) == ["Range: bytes=5-", 'If-Range: "1"']


@pytest.mark.parametrize(
    "request_lines, candidate",
    [
        ((), part("1-4/10", ONE)),  # not from the start
        ((), part("0-9/10", ONE)),  # nothing is missing
        ((), part("0-4/10", ONE, length=4)),  # not as long as it says
        ((), kept(ONE, "Content-Range: bytes 0-4/10", length=5)),  # a whole
        (("Range: bytes=0-",), part("0-4/10", ONE)),
        (("Range: x",), part("0-4/10", ONE)),
        (('If-None-Match: "1"',), part("0-4/10", ONE)),
        ((IMS,), part("0-4/10", ONE)),
        (('If-Match: "1"',), part("0-4/10", ONE)),
        ((f"If-Unmodified-Since: {date()}",), part("0-4/10", ONE)),
        (('If-Range: "1"',), part("0-4/10", ONE)),
    ],
)
def test_what_is_not_completed(request_lines: tuple[str, ...], candidate: StoredResponse) -> None:
    assert completes(get(*request_lines), (candidate,)) is None
    assert "range" not in conditional(get(*request_lines), (candidate,)).fields or request_lines


def test_the_best_first_part_is_completed() -> None:
    best, other = part("0-4/10", ONE), part("0-5/10", ONE)
    assert completes(get(), (best, other)) is best


def test_what_is_sent_validates_what_it_names() -> None:
    def asks_about(candidate: StoredResponse, request: Request | None = None) -> bool:
        return validates(conditional(request or get(), (candidate,)), (candidate,))

    assert asks_about(kept(ONE)) and asks_about(kept(TWO)) and asks_about(kept(LM))
    assert asks_about(kept(ONE), get('If-None-Match: "1"')) and asks_about(kept(ONE), head('If-None-Match: "1"'))
    assert not asks_about(kept()) and not asks_about(kept(), get(IMS)) and not asks_about(kept(ONE), head())
    assert not asks_about(kept(LM), get('If-None-Match: "x"')) and not asks_about(kept(ONE), get("If-None-Match: *"))
    assert not asks_about(part("0-4/10", ONE)), "its rest is asked for"
    assert not validates(get('If-None-Match: "1"'), ())


def test_unconditional() -> None:
    request = get('If-Match: "1"', IMS, 'If-None-Match: "1"', f"If-Range: {date()}", "Foo: 1", "Range: bytes=0-1")
    request = get(*(f"{n}: {v}" for n, v in request.fields), f"if-unmodified-since: {date()}", method="GET")
    assert unconditional(request) == get("Foo: 1")


def test_a_part_that_does_not_say_which_is_not_completed() -> None:
    for line in ("Foo: 1", "Content-Range: bytes 0-4", "Content-Range: lines 0-4/10"):
        stored = kept(line, 'ETag: "1"', status=206, length=5)
        assert completes(get(), (stored,)) is None
