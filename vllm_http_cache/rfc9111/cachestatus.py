"""The Cache-Status field (RFC 9211), written as a structured field (RFC 8941)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheStatus"]

_NAME = "vllm-http-cache"
_ALPHA = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*")
_TOKEN = _ALPHA | frozenset("!#$%&'+-.^_`|~:/0123456789")
_MAX_INTEGER = 999_999_999_999_999


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """How this cache handled one request (RFC 9211 section 2). ``str()`` gives the field value.

    ``hit``: the answer came from here and nothing was forwarded. ``forward``: why the request went forward, one of
    the tokens of section 2.2. ``forward_status``: what the origin answered. ``ttl``: seconds of freshness left,
    negative when stale. ``stored``: the answer was stored. ``collapsed``: it was fetched for another request.
    """

    hit: bool = False
    forward: str | None = None
    forward_status: int | None = None
    ttl: int | None = None
    stored: bool = False
    collapsed: bool = False
    detail: str | None = None

    def __str__(self) -> str:
        parameters = [_NAME]
        if self.hit:
            parameters.append("hit")
        if self.forward is not None:  # hit and fwd exclude each other (section 2.1); the caller sees to that
            parameters.append(f"fwd={_token_or_string(self.forward)}")
            if self.forward_status is not None:
                parameters.append(f"fwd-status={self.forward_status}")
        if self.ttl is not None:
            parameters.append(f"ttl={max(-_MAX_INTEGER, min(self.ttl, _MAX_INTEGER))}")
        if self.forward is not None:
            parameters.extend(name for name in ("stored", "collapsed") if getattr(self, name))
        if self.detail is not None:
            parameters.append(f"detail={_token_or_string(self.detail)}")
        return "; ".join(parameters)


def _token_or_string(text: str) -> str:
    """*text* as a Token where it is one, else as a String; what a String cannot hold becomes a question mark."""
    if text and text[0] in _ALPHA and _TOKEN.issuperset(text):
        return text
    printable = "".join(character if " " <= character <= "~" else "?" for character in text)
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'
