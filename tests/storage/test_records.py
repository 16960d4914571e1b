"""Rules of the record format: whatever is on the disk, decoding gives a record that was encoded, or nothing."""

from __future__ import annotations

import math
import sys
import tracemalloc
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from tests.storage.helpers import key, response
from vllm_http_cache.rfc9111.message import BodyRef, Fields, StoredResponse
from vllm_http_cache.storage.records import LARGEST, decode, decode_growing, encode, encode_growing

KEY = key("records")
TEXT = st.text(st.characters(), max_size=40)
NAMES = st.text("!#$%&'*+-.^_`|~019AZaz", min_size=1, max_size=20)
VALUES = st.text(st.characters(max_codepoint=255, exclude_characters="\0\r\n"), max_size=40)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
LENGTHS = st.integers(0, 2**63)
REFS = st.builds(
    BodyRef, st.integers(0, 2**64 - 1).map(lambda number: f"{KEY}.{number:016x}"), LENGTHS, st.binary(max_size=64)
)
RESPONSES = st.builds(
    StoredResponse,
    uri=TEXT,
    status=st.integers(200, 599).filter(lambda status: status != 304),
    fields=st.lists(st.tuples(NAMES, VALUES), max_size=8).map(Fields),
    selecting=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    request_time=TIMES,
    response_time=TIMES,
    confirmed=TIMES,
    body=st.none() | REFS,
    reason=VALUES,
    first=LENGTHS,
)


@given(st.lists(RESPONSES, max_size=4).map(tuple))
def test_what_is_encoded_is_decoded(responses: tuple[StoredResponse, ...]) -> None:
    assert decode(encode(KEY, responses), KEY) == responses


@given(RESPONSES, st.data())
def test_any_flipped_bit_is_noticed(stored: StoredResponse, data: st.DataObject) -> None:
    octets = bytearray(encode(KEY, [stored]))
    position = data.draw(st.integers(0, len(octets) * 8 - 1))
    octets[position // 8] ^= 1 << position % 8
    assert decode(bytes(octets), KEY) is None


@given(RESPONSES, st.data())
def test_any_truncation_is_noticed(stored: StoredResponse, data: st.DataObject) -> None:
    octets = encode(KEY, [stored])
    assert decode(octets[: data.draw(st.integers(0, len(octets) - 1))], KEY) is None


@given(st.binary(max_size=400))
def test_garbage_is_nothing(octets: bytes) -> None:
    assert decode(octets, KEY) is None
    assert decode_growing(octets, KEY) is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXT, inner, max_size=3),
)


def sealed(value: object, magic: bytes = b"vhcrec\x00\x01") -> bytes:
    """A record file with a right checksum and whatever content."""
    payload: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return magic + xxh3_64_digest(payload) + payload


@given(JUNK)
def test_wrong_content_under_a_right_checksum_is_nothing(value: object) -> None:
    assert decode(sealed(value), KEY) in {None, ()}
    assert decode(sealed([KEY, [value]]), KEY) is None
    assert decode_growing(sealed([KEY, "writers/1.d/" + "0" * 16, value], b"vhcgro\x00\x01"), KEY) is None


PACKED = [
    "https://a.test/",
    200,
    [["ETag", '"a"']],
    [],
    1.0,
    1.0,
    1.0,
    [f"{KEY}.{'0' * 16}", 3, b"12345678"],
    "OK",
    0,
]


def test_what_has_this_form_is_a_record() -> None:
    assert decode(sealed([KEY, [PACKED]]), KEY)


@given(st.integers(0, len(PACKED) - 1), JUNK)
def test_one_wrong_part_never_raises_and_never_passes_as_another_type(part: int, junk: object) -> None:
    packed = list(PACKED)
    packed[part] = junk
    responses = decode(sealed([KEY, [packed]]), KEY)
    for stored in responses or ():
        assert type(stored.uri) is str
        assert 200 <= stored.status <= 599 and type(stored.reason) is str
        assert math.isfinite(stored.confirmed)
        assert stored.body is None or (type(stored.body.length) is int and stored.body.name.startswith(KEY))


STATUS, FIELDS, REASON = 1, 2, 8


@pytest.mark.parametrize(
    "part, value",
    [
        *((STATUS, status) for status in (0, 99, 101, 199, 304, 600, 99_999, 2**63)),
        *((FIELDS, [["ETag", '"a"'], [name, "a"]]) for name in ("", "X A", "X:", "X\n", "X\u00e4", "X\u4e2d", "X@")),
        *((FIELDS, [["X", value]]) for value in ("a\r\nSet-Cookie: x=1", "a\nb", "a\0", "\u4e2d", "\ud800")),
        *((REASON, reason) for reason in ("OK\r\nX: a", "\0", "\u4e2d")),
    ],
)
def test_what_cannot_be_an_answer_is_nothing(part: int, value: object) -> None:
    packed = list(PACKED)
    packed[part] = value
    assert decode(sealed([KEY, [packed]]), KEY) is None
    assert decode_growing(sealed([KEY, "writers/1.d/" + "0" * 16, packed], b"vhcgro\x00\x01"), KEY) is None


def test_what_clients_let_pass_is_kept_as_far_as_it_can_be_an_answer() -> None:
    kept = [("X", ""), ("X", " \t\x01\x0b\x7f\x80\x85\xe4\xff"), ("X", "a  b"), ("Vary", "a,  b")]
    lines = [*kept[:2], ("X", "a\n b"), ("Vary", "a,\r\0b"), ("X A", "b"), ("X@y", "b"), ("", "b")]
    (stored,) = decode(encode(KEY, [replace(response(), fields=Fields(lines), reason="a\rb")]), KEY) or ()
    assert (list(stored.fields.lines), stored.reason) == (kept, "a b")


def test_a_record_under_another_key_is_nothing() -> None:
    """Files that were swapped."""
    assert decode(encode(KEY, [response()]), key("another")) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", f"{key('another')}.{'0' * 16}", KEY, "", f"{KEY}.{'g' * 16}"])
def test_a_body_that_cannot_be_this_keys_is_nothing(name: str) -> None:
    assert decode(encode(KEY, [response(BodyRef(name, 1, b"x" * 8))]), KEY) is None


@pytest.mark.parametrize("path", ["../../../etc/passwd", "/etc/passwd", "writers/1.d/../../../x", "ab/" + KEY])
def test_a_growing_body_lies_with_a_writer(path: str) -> None:
    assert decode_growing(encode_growing(KEY, path, response()), KEY) is None


@pytest.mark.parametrize("magic", [b"vhcrec\x00\x02", b"vhcrec\x00\x00", b"vhcgro\x00\x01", bytes(8)])
def test_another_version_is_nothing(magic: bytes) -> None:
    assert decode(magic + encode(KEY, [response()])[8:], KEY) is None


def test_a_record_is_bounded() -> None:
    with pytest.raises(ValueError, match="octets"):
        encode(KEY, [response(tag="a" * LARGEST)])


@pytest.mark.parametrize(
    "count", [b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
)
def test_a_size_that_lies_costs_no_memory(count: bytes) -> None:
    """An array, string, blob and map of 2**32-1 items in five octets."""
    octets = b"vhcrec\x00\x01" + xxh3_64_digest(count) + count
    tracemalloc.start()
    try:
        assert decode(octets, KEY) is None
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_nothing() -> None:
    payload = b"\x91" * min(sys.getrecursionlimit() * 100, LARGEST // 2)
    assert decode(b"vhcrec\x00\x01" + xxh3_64_digest(payload) + payload, KEY) is None
