"""Fields there and here: hishel's values are text that goes out as UTF-8; ours are octets, read as ISO-8859-1."""

from __future__ import annotations

from hishel import Headers

from ...rfc9111.message import Fields

__all__ = ["octets", "to_fields", "to_headers"]


def octets(value: str) -> str:
    return value.encode("utf-8", "surrogatepass").decode("latin-1")


def to_fields(headers: Headers) -> Fields:
    return Fields((name, octets(value)) for name in headers for value in headers.get_list(name) or ())


def to_headers(fields: Fields) -> Headers:
    grouped: dict[str, str | list[str]] = {}
    for name in dict.fromkeys(name for name, _ in fields):
        grouped[name] = [value.encode("latin-1").decode("utf-8", "surrogatepass") for value in fields.get_all(name)]
    return Headers(grouped)
