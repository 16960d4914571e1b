"""The values the rules speak of: field lines, requests, responses, stored responses.

Values only. Nothing in this file decides anything; everything in it is immutable, so that a decision can depend on
its inputs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["MAX_VARIANTS", "BodyRef", "Fields", "Request", "Response", "StoredResponse"]

MAX_VARIANTS = 32  # stored responses of one key


class Fields:
    """Field lines in the order received (RFC 9110 section 5).

    Names keep their spelling and compare case-insensitively; values are the octets on the wire decoded as ISO-8859-1,
    so any octet survives a round trip. A field that came on several lines stays on several lines.
    """

    __slots__ = ("_index", "lines")

    def __init__(self, lines: Iterable[tuple[str, str]] = ()) -> None:
        self.lines: tuple[tuple[str, str], ...] = tuple(lines)
        self._index: dict[str, list[str]] | None = None  # the values by name in lower case, once asked for

    def get_all(self, name: str) -> tuple[str, ...]:
        """The values of each line called *name* (given in lower case), in order; empty when absent."""
        return tuple((self._index or self._indexed()).get(name, ()))

    def _indexed(self) -> dict[str, list[str]]:
        self._index = _add(self.lines, {})
        return self._index

    def get(self, name: str) -> str | None:
        """The combined field value: all lines of *name* (lower case) joined by a comma (RFC 9110 section 5.2)."""
        values = (self._index or self._indexed()).get(name)
        if values is None:
            return None
        return values[0] if len(values) == 1 else ", ".join(values)

    def without(self, names: Iterable[str]) -> Fields:
        """All lines but those named (lower case)."""
        index = self._index or self._indexed()
        present = index.keys() & names
        if not present:
            return self
        rest = Fields([line for line in self.lines if line[0].lower() not in present])
        rest._index = {name: values for name, values in index.items() if name not in present}
        return rest

    def replaced(self, *lines: tuple[str, str]) -> Fields:
        """These lines in place of all lines of the same names."""
        rest = self.without([name.lower() for name, _ in lines])
        replaced = Fields(rest.lines + lines)
        replaced._index = _add(lines, (rest._index or rest._indexed()).copy())
        return replaced

    def __contains__(self, name: str) -> bool:
        return name in (self._index or self._indexed())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self.lines == other.lines

    def __hash__(self) -> int:
        return hash(self.lines)

    def __repr__(self) -> str:
        return f"Fields({list(self.lines)!r})"


def _add(lines: tuple[tuple[str, str], ...], index: dict[str, list[str]]) -> dict[str, list[str]]:
    for name, value in lines:
        index.setdefault(name.lower(), []).append(value)
    return index


@dataclass(frozen=True, slots=True)
class Request:
    """A request's method, target URI (absolute, as the caller spelled it, no fragment needed) and field lines."""

    method: str
    uri: str
    fields: Fields = Fields()


@dataclass(frozen=True, slots=True)
class Response:
    """A response's head."""

    status: int
    fields: Fields = Fields()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BodyRef:
    """Names one stored body: what it is called in its storage, its length in octets, and digests to check it by.

    ``digests`` holds one digest for each block; what a block and a digest are is the storage's to say.
    """

    name: str
    length: int
    digests: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One stored response: a status, its fields, which request it answers, and when (RFC 9111 sections 3 and 4.1).

    Times are seconds since the epoch on this machine's clock. ``request_time`` and ``response_time`` are those of
    section 4.2.3 and belong to the exchange that last gave the fields; ``confirmed`` is when the origin last sent or
    validated the response. ``selecting`` holds, for each field that Vary names, the request's value in the form that
    :mod:`.vary` compares. For a stored 206, ``first`` is the offset of the stored body in the complete
    representation.
    """

    uri: str
    status: int
    fields: Fields
    selecting: tuple[tuple[str, str], ...]
    request_time: float
    response_time: float
    confirmed: float
    body: BodyRef | None = None
    reason: str = ""
    first: int = 0
