"""What the soak's origin serves, and which answers are right: agreed between the origin and the workers.

A resource changes at times that follow from its name alone, so that anybody can say which version was current when,
and a body says which version it is and can be checked to the last octet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["KINDS", "NUMBERS", "Kind", "body", "is_right", "version_at"]

NUMBERS = 12  # resources of each kind
SLACK = 1.5  # seconds: Date and Age count whole ones, and a busy machine lets a request wait


@dataclass(frozen=True)
class Kind:
    """Resources of one policy. ``stale``: seconds that a superseded version may still be served."""

    control: str
    stale: float
    etag: bool = True
    size: int = 20_000


KINDS = {
    "fresh": Kind("max-age=3", 3),
    "large": Kind("max-age=3", 3, size=1_500_000),
    "weak": Kind("max-age=2", 2, etag=False),
    "checked": Kind("no-cache", 0),
    "instant": Kind("max-age=0, must-revalidate", 0),
    "never": Kind("no-store", 0, etag=False),
    "later": Kind("max-age=1, stale-while-revalidate=3", 4),
    "sturdy": Kind("max-age=1, stale-if-error=4", 5),
    "private": Kind("private, max-age=60", 0),
    "signed": Kind("max-age=3", 3),
    "moved": Kind("max-age=3", 3),
}


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])


def version_at(name: str, time: float) -> int:
    """The version of a resource (``kind/number``) that is current at *time*, seconds since the epoch."""
    period = 4 + _seed(name) % 9  # seconds between two changes
    return int(time // period)


def body(name: str, version: int) -> bytes:
    """The octets of one version: of a length and content of its own."""
    kind = KINDS[name.partition("/")[0]]
    label = f"{name} {version} ".encode()
    length = kind.size + _seed(f"{name} {version}") % kind.size
    return (label * (length // len(label) + 1))[:length]


def is_right(name: str, octets: bytes, begun: float, ended: float) -> str | None:
    """What is wrong with an answer to a request that took from *begun* to *ended*; None: nothing."""
    label, _, rest = octets[:80].partition(b" ")
    version_text = rest.partition(b" ")[0]
    if label.decode("ascii", "replace") != name or not version_text.isdigit():
        return f"{name} was answered with {octets[:40]!r}"
    version = int(version_text)
    if octets != body(name, version):
        return f"{name}, version {version}: damaged or cut, {len(octets)} octets"
    oldest = version_at(name, begun - KINDS[name.partition("/")[0]].stale - SLACK)
    newest = version_at(name, ended + SLACK)
    if not oldest <= version <= newest:
        return f"{name}: version {version} where {oldest} to {newest} were allowed"
    return None
