"""RFC 9111 section 4: what lies together under a key."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from vllm_http_cache.rfc9111.judging import merged
from vllm_http_cache.rfc9111.message import MAX_VARIANTS

from .judged import ONE, TWO
from .make import T, get, kept, part
from .test_selecting import RESIGNED, SIGNED


def test_the_same_variant_is_replaced() -> None:
    old, new = kept(ONE), kept(TWO)
    assert merged((old,), new, inf) == (new,)
    assert merged((), new, inf) == (new,)
    signed = kept(TWO, uri=RESIGNED)
    assert merged((kept(ONE, uri=SIGNED),), signed, inf) == (signed,)


def test_other_variants_stay() -> None:
    one, two = (kept("Vary: Accept", request=get(f"Accept: {a}")) for a in "ab")
    assert merged((one,), two, inf) == (two, one)
    assert merged((two,), kept("Vary: Accept, Foo", request=get("Accept: a")), inf)[1:] == (two,)
    assert merged((one,), kept(), inf) == (kept(), one)
    assert merged((one,), kept("Vary: Foo"), inf)[1:] == (one,), "which of Foo's requests it answers nobody knows"


def test_what_would_have_answered_the_request_of_a_newer_one_is_outdated() -> None:
    """Section 4.3.3: a full response says so of what was asked about, whatever it varies on."""
    for old in (kept(), kept("Vary: Accept", request=get("Accept: a")), kept("Vary: Foo", request=get("Foo: 1"))):
        new = kept("Vary: Accept, Foo", request=get("Accept: a", "Foo: 1"))
        assert merged((old,), new, inf) == (new,)
        late = replace(old, response_time=T + 5)
        assert merged((late,), new, inf) == (late,)
    star = kept("Vary: *")
    assert merged((star,), kept("Vary: Foo"), inf) == (kept("Vary: Foo"), star)
    assert merged((kept(),), star, inf) == (star,)


def test_parts_of_one_representation_stay_together() -> None:
    one, two = part("0-4/10", ONE), part("7-9/10", ONE)
    assert merged((one,), two, inf) == (two, one)
    again = part("0-4/10", ONE, "A: 2")
    assert merged((one, two), again, inf) == (again, two)
    whole = kept(ONE)
    assert merged((whole,), one, inf) == (one, whole)
    odd = kept(ONE, "Content-Range: bytes 0-4/10")  # which means nothing in a 200
    assert merged((odd,), one, inf) == (one, odd)
    assert merged((one, two), whole, inf) == (whole,)


def test_parts_of_another_representation_go() -> None:
    for old in (part("0-4/10", ONE), kept(ONE), part("0-4/10"), kept()):
        new = part("7-9/10", TWO)
        assert merged((old,), new, inf) == (new,)
    assert merged((part("0-4/10"),), part("7-9/10"), inf) == (part("7-9/10"),)


def test_the_number_of_variants_is_bounded() -> None:
    variants = tuple(
        replace(kept("Vary: Foo", request=get(f"Foo: {n}")), confirmed=T + (n * 7) % 40) for n in range(40)
    )
    new = kept("Vary: Foo")
    found = merged(variants, new, inf)
    assert len(found) == MAX_VARIANTS == 32
    assert found[0] == new
    assert [stored.confirmed - T for stored in found[1:]] == list(range(39, 8, -1))


def test_what_came_later_is_not_given_up_for_a_body_that_took_longer() -> None:
    new, later = kept(ONE), kept(TWO, at=T + 5)
    assert merged((later,), new, inf) == (later,)
    assert merged((later,), new, T + 5) == (later,)
    assert merged((later,), new, T + 4.9) == (new,)  # it was stored by a clock that was ahead
    assert merged((kept(TWO),), new, T) == (new,)
    variant = kept("Vary: Foo", at=T + 5)
    assert merged((variant,), new, inf) == (new, variant)


def test_what_came_later_stays_but_only_where_it_answers_the_same() -> None:
    later = replace(kept(), response_time=T + 5, confirmed=T + 5)
    variant = replace(kept("Vary: Foo"), response_time=T + 5, confirmed=T + 5)
    assert merged((later,), kept(), inf) == (later,)
    assert merged((variant,), kept(), inf) == (kept(), variant)
