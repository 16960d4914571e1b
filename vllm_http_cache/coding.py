"""Whether a content coding came to its end: a coded body cut short inside whole framing is not whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .rfc9111.fields import members

if TYPE_CHECKING:
    from .rfc9111.message import Fields

__all__ = ["CodingCheck", "coding_check", "decoded", "decoders_of"]

OUTPUT = 256 * 1024  # octets decoded at once
GZIP = 0x1F  # the first octet of a member
LIMIT = 1024 * 1024 * 1024  # octets of decoded content beyond which a body is taken for a bomb and not stored
SLICE = 256  # coded octets given at once to a decoder without a bound; of zstd no more than 8 MiB come of them


class Decoder(Protocol):
    """One content coding being undone. What is wrong with the octets raises an error of the decoder's own."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What the next coded octets are, in pieces of bounded size."""

    def finished(self) -> bool:
        """Is what came so far whole?"""


class CodingCheck:
    """Decodes as the body passes and keeps nothing of it.

    :param decoders: in the order in which they are undone.
    """

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self._decoders = decoders
        self._octets = 0
        self._begun = False
        self._damaged = False

    def feed(self, data: bytes) -> None:
        """Take the next octets of the coded body."""
        self._begun = True
        if self._damaged:
            return
        try:
            for piece in decoded(data, self._decoders):
                self._octets += len(piece)
                if self._octets > LIMIT:
                    self._damaged = True
                    return
        except Exception:  # each decoder has errors of its own
            self._damaged = True

    def finished(self) -> bool:
        """Whether what was fed is a whole coded body, or nothing: of an empty content, origins code nothing."""
        return not self._begun or (not self._damaged and all(decoder.finished() for decoder in self._decoders))


def decoded(data: bytes, decoders: Sequence[Decoder]) -> Iterator[bytes]:
    """The next octets of a coded body, its codings undone in this order, in pieces of bounded size.

    :raises Exception: they are not in these codings; each decoder has errors of its own.
    """
    if not decoders:
        yield data
        return
    for piece in decoders[0].pieces(data):
        yield from decoded(piece, decoders[1:])


class _Inflating:
    """gzip, in any number of members, and deflate, in its zlib wrapping or, as some have it, bare.

    What follows the end and is no further member is no part of the content, and nothing whole.
    """

    def __init__(self) -> None:
        self._decoder: Any = None
        self._over = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """:raises zlib.error: it is not in this coding."""
        while data and not self._over:
            if self._decoder is None:
                wrapped = data[0] == GZIP or data[0] & 0x0F == zlib.DEFLATED
                self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32 if wrapped else -zlib.MAX_WBITS)
            elif self._decoder.eof:
                self._over = data[0] != GZIP
                self._decoder = self._decoder if self._over else zlib.decompressobj(zlib.MAX_WBITS | 32)
                continue
            yield self._decoder.decompress(data, OUTPUT)
            data = self._decoder.unconsumed_tail or self._decoder.unused_data

    def finished(self) -> bool:
        return self._decoder is not None and bool(self._decoder.eof) and not self._over


class _Brotli:
    def __init__(self) -> None:
        from brotli import Decompressor

        self._decoder = Decompressor()
        self._decoder.process(b"", output_buffer_limit=OUTPUT)  # a TypeError before 1.2

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while piece := self._decoder.process(data, output_buffer_limit=OUTPUT):
            yield piece
            data = b""

    def finished(self) -> bool:
        return bool(self._decoder.is_finished())


class _Zstd:
    """zstd, in any number of frames, by whichever library the clients have for it."""

    def __init__(self) -> None:
        self._new = _zstd_decompressor()
        self._decoder = self._new()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), SLICE):
            rest = data[start : start + SLICE]
            while rest:
                if self._decoder.eof:
                    self._decoder = self._new()
                yield self._decoder.decompress(rest)
                rest = self._decoder.unused_data if self._decoder.eof else b""

    def finished(self) -> bool:
        return bool(self._decoder.eof)


def _zstd_decompressor() -> Callable[[], Any]:
    try:
        from compression.zstd import ZstdDecompressor  # Python 3.14
    except ImportError:
        try:
            from backports.zstd import ZstdDecompressor
        except ImportError:
            from zstandard import ZstdDecompressor as Zstandard

            return lambda: Zstandard().decompressobj()
    decompressor: Callable[[], Any] = ZstdDecompressor
    return decompressor


DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": _Inflating,
    "x-gzip": _Inflating,
    "deflate": _Inflating,
    "br": _Brotli,
    "zstd": _Zstd,
}


def decoders_of(fields: Fields) -> list[Decoder | None]:
    """What undoes each of a response's content codings, in that order; None for one that cannot be undone here."""
    codings = [coding.lower() for coding in members(fields.get("content-encoding") or "")]
    return [_decoder(coding) for coding in reversed(codings) if coding != "identity"]


def _decoder(coding: str) -> Decoder | None:
    try:
        return DECODERS[coding]()
    except (KeyError, ImportError, TypeError):
        return None


def coding_check(fields: Fields) -> CodingCheck | None:
    """The check for a response's content codings; None when there are none, or one that cannot be checked here."""
    found = decoders_of(fields)
    decoders = [decoder for decoder in found if decoder is not None]
    return CodingCheck(decoders) if decoders and len(decoders) == len(found) else None
