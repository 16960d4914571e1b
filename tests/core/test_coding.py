"""A coded body is whole when its content coding says so (RFC 9110 section 8.4), and only then is it kept."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache import coding
from vllm_http_cache.coding import CodingCheck, Decoder, coding_check, decoded
from vllm_http_cache.rfc9111.message import Fields

CONTENT = bytes(range(256)) * 400


def bare_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return coder.compress(data) + coder.flush()


def zstd(data: bytes) -> bytes:
    return bytes(zstandard.ZstdCompressor().compress(data))


def br(data: bytes) -> bytes:
    return bytes(brotli.compress(data))


CODED: list[tuple[str, bytes]] = [
    ("gzip", gzip.compress(CONTENT)),
    ("x-gzip", gzip.compress(CONTENT)),
    ("GZIP", gzip.compress(CONTENT[:1000]) + gzip.compress(CONTENT)),
    ("deflate", zlib.compress(CONTENT)),
    ("deflate", bare_deflate(CONTENT)),
    ("br", br(CONTENT)),
    ("zstd", zstd(CONTENT)),
    ("zstd", zstd(CONTENT[:1000]) + zstd(CONTENT)),
    ("identity, gzip", gzip.compress(CONTENT)),
    ("br, gzip", gzip.compress(br(CONTENT))),
    ("gzip, zstd, br", br(zstd(gzip.compress(CONTENT)))),
]


def check_of(value: str) -> CodingCheck:
    check = coding_check(Fields([("Content-Encoding", value)]))
    assert check is not None
    return check


def is_whole(value: str, *pieces: bytes) -> bool:
    check = check_of(value)
    for piece in pieces:
        check.feed(piece)
    return check.finished()


@pytest.mark.parametrize("value, coded", CODED)
def test_whole_however_it_comes(value: str, coded: bytes) -> None:
    middle = len(coded) // 2
    assert is_whole(value, coded)
    assert is_whole(value, coded[:middle], coded[middle:])
    assert is_whole(value, coded[:2], *(coded[n : n + 100] for n in range(2, len(coded), 100)))


@pytest.mark.parametrize("value, coded", CODED)
def test_cut_short_anywhere_it_is_not(value: str, coded: bytes) -> None:
    for length in (1, len(coded) // 2, len(coded) - 1):
        assert not is_whole(value, coded[:length])
    assert is_whole(value), "but an empty content"


@pytest.mark.parametrize("value, coded", CODED)
def test_damaged_it_is_not(value: str, coded: bytes) -> None:
    assert not is_whole(value, b"\xff\xfe\xfd" + coded)
    assert not is_whole(value, coded, b"\xff\xfe\xfd and more")
    assert not is_whole(value, coded + b"\xff\xfe\xfd and more")


def test_a_cut_within_a_coding_within_a_coding() -> None:
    assert not is_whole("br, gzip", gzip.compress(br(CONTENT)[:-1]))


@pytest.mark.parametrize("value", ["", "identity", "aws-chunked", "gzip, aws-chunked", "compress"])
def test_what_cannot_be_checked_is_not(value: str) -> None:
    assert coding_check(Fields([("Content-Encoding", value)])) is None


@pytest.mark.parametrize("name, coder", [("gzip", gzip.compress), ("br", br), ("zstd", zstd)])
def test_a_bomb_is_not_kept_and_takes_no_memory(
    name: str, coder: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding, "LIMIT", 32 * 1024**2)
    largest = 0

    def watched(data: bytes, decoders: Sequence[Decoder]) -> Iterator[bytes]:
        nonlocal largest
        for piece in decoded(data, decoders):
            largest = max(largest, len(piece))
            yield piece

    monkeypatch.setattr(coding, "decoded", watched)
    assert not is_whole(name, coder(bytes(64 * 1024**2)))
    assert 0 < largest <= 8 * 1024**2


@pytest.mark.parametrize("missing", [("compression.zstd",), ("compression.zstd", "backports.zstd")])
def test_either_library_will_do(missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in missing:
        monkeypatch.setitem(__import__("sys").modules, name, None)
    assert is_whole("zstd", zstd(CONTENT))
    assert not is_whole("zstd", zstd(CONTENT)[:-1])


def test_without_a_library_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "backports.zstd", "zstandard", "brotli"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    for value in ("zstd", "br"):
        assert coding_check(Fields([("Content-Encoding", value)])) is None


@given(st.sampled_from(["gzip", "deflate", "br", "zstd", "br, gzip"]), st.lists(st.binary(max_size=300), max_size=5))
def test_junk_raises_nothing(value: str, pieces: list[bytes]) -> None:
    is_whole(value, *pieces)


@given(st.sampled_from(CODED), st.lists(st.integers(2, 100_000), max_size=6))
def test_pieces_of_any_size(case: tuple[str, bytes], cuts: list[int]) -> None:
    value, coded = case
    bounds = sorted({0, len(coded), *(cut for cut in cuts if cut < len(coded))})
    assert is_whole(value, *(coded[start:stop] for start, stop in pairwise(bounds)))
