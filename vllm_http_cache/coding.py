"""Whether a content coding came to its end: a gzip body cut short inside whole framing is not whole."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rfc9111.message import Fields

__all__ = ["CodingCheck", "coding_check"]

OUTPUT = 64 * 1024  # octets decoded at once, and thrown away
LIMIT = 1024 * 1024 * 1024  # octets of decoded content beyond which a body is taken for a bomb and not stored


class CodingCheck:
    """Decodes as the body passes and keeps nothing of it."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: gzip or zlib, as the header says
        self._octets = 0
        self._bare = False
        self._damaged = False

    def feed(self, data: bytes) -> None:
        """Take the next octets of the coded body."""
        while data and not self._damaged:
            if self._decoder.eof:  # gzip members may follow one another
                self._decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
            try:
                self._octets += len(self._decoder.decompress(data, OUTPUT))
            except zlib.error:
                if self._octets or self._bare:
                    self._damaged = True
                    return
                self._bare = True  # deflate without its zlib wrapper, which clients decode too
                self._decoder = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
                continue
            data = self._decoder.unconsumed_tail or self._decoder.unused_data
            self._damaged = self._octets > LIMIT

    def finished(self) -> bool:
        """Whether what was fed is a whole coded body."""
        return self._decoder.eof and not self._damaged


def coding_check(fields: Fields) -> CodingCheck | None:
    """The check for a response's content coding; None when there is none, or none that can be checked here."""
    coding = (fields.get("content-encoding") or "").strip().lower()
    return CodingCheck() if coding in ("gzip", "x-gzip", "deflate") else None
