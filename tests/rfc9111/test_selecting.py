"""RFC 9111 section 4, RFC 5861 section 3, RFC 8246."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions, Mode
from vllm_http_cache.rfc9111.selecting import Ask, Refuse, Reuse, forbids_forwarding, select

from .make import PRIVATE, SHARED, T, date, get, head, kept, part
from .test_target import AWS

FRESH = "Cache-Control: max-age=60"
ONE = 'ETag: "1"'


def test_nothing_is_stored() -> None:
    assert select(get(), (), T, SHARED) == Ask("uri-miss")


def test_fresh_until_the_lifetime_ends() -> None:
    stored = kept(FRESH)
    assert select(get(), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(get(), (stored,), T + 0.5, SHARED) == Reuse(stored, 59)
    assert select(get(), (stored,), T + 59.9, SHARED) == Reuse(stored, 0)
    assert select(get(), (stored,), T + 60, SHARED) == Ask("stale", (stored,))


def test_a_head_is_answered_from_a_get() -> None:
    stored = kept(FRESH)
    assert select(head(), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(head(), (stored,), T + 60, SHARED) == Ask("stale", (stored,), collapsible=False)


@pytest.mark.parametrize(
    "lines, expected",
    [
        (("Cache-Control: no-cache, max-age=60",), "stale"),
        (("Cache-Control: max-age=x",), "stale"),
        (("Expires: 0",), "stale"),
        ((), "stale"),
    ],
)
def test_never_fresh(lines: tuple[str, ...], expected: str) -> None:
    stored = kept(*lines)
    assert select(get(), (stored,), T, SHARED) == Ask(expected, (stored,))


def test_past_the_ttl() -> None:
    stored = kept("Cache-Control: max-age=600, stale-while-revalidate=600")
    options = CacheOptions(ttl=30)
    assert select(get(), (stored,), T + 29, options) == Reuse(stored, 1)
    assert select(get(), (stored,), T + 30, options) == Ask("stale", (stored,))
    assert select(get("Cache-Control: max-stale"), (stored,), T + 30, options) == Ask("stale", (stored,))


def test_stored_by_a_clock_that_was_ahead() -> None:
    stored = kept("Cache-Control: max-age=600, stale-while-revalidate=600")
    for mode in ("default", "force-cache"):
        options = CacheOptions(mode=mode)
        assert isinstance(select(get(), (stored,), T - 5, options), Reuse)
        assert select(get(), (stored,), T - 5.1, options) == Ask("stale", (stored,))


# Which of several


def test_variants() -> None:
    one, two = (kept(FRESH, "Vary: Accept", request=get(f"Accept: {a}"), name=a) for a in ("a/a", "b/b"))
    assert select(get("Accept: a/a"), (one, two), T, SHARED) == Reuse(one, 60)
    assert select(get("Accept: b/b"), (one, two), T, SHARED) == Reuse(two, 60)
    assert select(get("Accept: c/c"), (one, two), T, SHARED) == Ask("vary-miss")
    assert select(get(), (one, two), T, SHARED) == Ask("vary-miss")


def test_the_most_recent_by_date() -> None:
    old = kept(FRESH, f"Date: {date(-9)}", at=T + 5)
    new = kept(FRESH, f"Date: {date(-8)}", at=T + 4)
    for responses in ((old, new), (new, old)):
        assert select(get(), responses, T + 6, SHARED) == Reuse(new, 46)


def test_the_last_received_of_one_second() -> None:
    old, new = kept(FRESH, at=T), kept(FRESH, f"Date: {date()}", at=T + 0.5, name="new")
    for responses in ((old, new), (new, old)):
        decision = select(get(), responses, T + 1, SHARED)
        assert isinstance(decision, Reuse) and decision.stored == new


def test_an_origin_that_no_longer_varies() -> None:
    """Section 4 goes before the SHOULD of section 4.1."""
    without = kept(FRESH, f"Date: {date(5)}", at=T + 5)
    with_it = kept(FRESH, "Vary: Accept", request=get("Accept: a"))
    for responses in ((without, with_it), (with_it, without)):
        for accept in ("Accept: a", "Accept: b"):
            assert select(get(accept), responses, T + 6, SHARED) == Reuse(without, 59)


def test_the_best_decides_even_if_it_is_stale_and_an_older_one_fresh() -> None:
    old = kept("Cache-Control: max-age=600", f"Date: {date(-9)}")
    new = kept("Cache-Control: max-age=1", 'ETag: "2"', name="new")
    assert select(get(), (old, new), T + 5, SHARED) == Ask("stale", (new, old))


def test_vary_on_everything_is_asked_about_by_a_strong_validator_only() -> None:
    strong = kept(FRESH, "Vary: *", ONE)
    weak = kept(FRESH, "Vary: *", 'ETag: W/"1"')
    dated = kept(FRESH, "Vary: *", f"Last-Modified: {date(-9)}")
    assert select(get(), (strong, weak, dated), T, SHARED) == Ask("vary-miss", (strong,))
    assert select(get(), (weak, dated), T, SHARED) == Ask("vary-miss")
    assert select(get(), (weak,), T, CacheOptions(mode="force-cache")) == Ask("vary-miss")


def test_a_variant_that_does_not_match_is_not_asked_about() -> None:
    assert select(get("Accept: b"), (kept(ONE, "Vary: Accept"),), T, SHARED) == Ask("vary-miss")


def test_a_coding_the_caller_cannot_undo() -> None:
    stored = kept(FRESH, ONE, "Content-Encoding: zstd")
    assert select(get("Accept-Encoding: zstd, gzip"), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(get("Accept-Encoding: gzip"), (stored,), T, SHARED) == Ask("vary-miss")
    plain = kept(FRESH, at=T - 1)
    assert select(get("Accept-Encoding: gzip"), (stored, plain), T, SHARED) == Reuse(plain, 59)
    star = kept(FRESH, ONE, "Content-Encoding: zstd", "Vary: *")
    assert select(get("Accept-Encoding: gzip"), (star,), T, SHARED) == Ask("vary-miss")
    assert select(get("Accept-Encoding: zstd"), (star,), T, SHARED) == Ask("vary-miss", (star,))


# Signatures

SIGNED = f"https://example.test/cat.png?{AWS}"
RESIGNED = SIGNED.replace("=S", "=T")


def test_the_identical_signed_url_is_an_ordinary_hit() -> None:
    stored = kept(FRESH, uri=SIGNED)
    assert select(get(uri=SIGNED), (stored,), T, SHARED) == Reuse(stored, 60)


@pytest.mark.parametrize("mode", ["default", "no-cache", "force-cache"])
def test_another_signature_is_asked_about_by_a_strong_validator_only(mode: Mode) -> None:
    options = CacheOptions(mode=mode)
    strong = kept(FRESH, ONE, uri=SIGNED)
    decision = select(get(uri=RESIGNED), (strong,), T, options)
    assert decision == Ask("uri-miss", (strong,), collapsible=mode != "no-cache")
    for line in ('ETag: W/"1"', f"Last-Modified: {date(-9)}", "ETag: 1", "X: y"):
        decision = select(get(uri=RESIGNED), (kept(FRESH, line, uri=SIGNED),), T, options)
        assert decision == Ask("uri-miss", collapsible=mode != "no-cache")


def test_another_signature_has_to_match_in_everything_else() -> None:
    varied = kept(FRESH, ONE, "Vary: Foo", uri=SIGNED)
    assert select(get("Foo: 1", uri=RESIGNED), (varied,), T, SHARED) == Ask("uri-miss")
    assert select(get(uri=RESIGNED), (varied,), T, SHARED) == Ask("uri-miss", (varied,))
    coded = kept(FRESH, ONE, "Content-Encoding: br", uri=SIGNED)
    assert select(get("Accept-Encoding: gzip", uri=RESIGNED), (coded,), T, SHARED) == Ask("uri-miss")
    piece = part("0-4/10", ONE, uri=SIGNED)
    assert select(get(uri=RESIGNED), (piece,), T, SHARED) == Ask("uri-miss")
    asked = get("Range: bytes=0-1", uri=RESIGNED)
    assert select(asked, (piece,), T, SHARED) == Ask("uri-miss", (piece,), collapsible=False)


def test_the_exact_url_is_preferred_to_another_signature() -> None:
    mine, other = kept(FRESH, uri=RESIGNED, at=T - 5), kept(FRESH, ONE, uri=SIGNED)
    assert select(get(uri=RESIGNED), (mine, other), T, SHARED) == Reuse(mine, 55)
    varied = kept(FRESH, ONE, "Vary: Foo", request=get("Foo: 1", uri=RESIGNED))
    assert select(get(uri=RESIGNED), (varied, other), T, SHARED) == Ask("vary-miss", (other,))


# Parts


def test_a_range_is_cut_from_a_whole() -> None:
    stored = kept(FRESH, length=10)
    assert select(get("Range: bytes=2-3"), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(get("Range: bytes=99-"), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(get("Range: bytes=2-3"), (stored,), T + 60, SHARED) == Ask("stale", (stored,), collapsible=False)


def test_a_part_answers_for_what_it_holds() -> None:
    stored = part("2-5/10", FRESH)
    assert select(get("Range: bytes=2-3"), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(get("Range: bytes=5-6"), (stored,), T, SHARED) == Ask("partial", collapsible=False)
    assert select(get(), (stored,), T, SHARED) == Ask("partial")
    assert select(head(), (stored,), T, SHARED) == Ask("partial", collapsible=False)


@pytest.mark.parametrize("length, used", [(999, False), (1000, True), (1001, False)])
@pytest.mark.parametrize("lines", [('ETag: "a"',), ("Vary: *", 'ETag: "a"'), ()])
def test_what_is_not_as_long_as_it_says_is_of_no_use(length: int, used: bool, lines: tuple[str, ...]) -> None:
    """Something else than this cache has put it there."""
    stored = kept("Cache-Control: max-age=60", "Content-Length: 1000", *lines, length=length)
    for now in (T + 1, T + 100):
        decision = select(get(), [stored], now, SHARED)
        assert (decision != Ask("uri-miss")) is used


def test_a_first_part_may_be_completed() -> None:
    stored, newer = part("0-5/10", FRESH, ONE), part("0-6/10", FRESH, ONE, f"Date: {date(1)}")
    assert select(get(), (stored, newer), T, SHARED) == Ask("partial", (newer, stored))
    assert select(get("Range: bytes=8-9"), (stored,), T, SHARED) == Ask("partial", collapsible=False)
    assert select(get("Range: bytes=8-9,1-2"), (stored,), T, SHARED) == Ask("partial", collapsible=False)
    assert select(head(), (stored,), T, SHARED) == Ask("partial", collapsible=False)


# The caller's directives (section 5.2.1)


@pytest.mark.parametrize(
    "line, age, expected",
    [
        ("Cache-Control: no-cache", 0, False),
        ("Pragma: no-cache", 0, False),
        ("Cache-Control: max-age=0", 0, False),  # zero is not absent
        ("Cache-Control: max-age=0", 5, False),
        ("Cache-Control: max-age=1", 0.5, True),
        ("Cache-Control: max-age=5", 5, True),
        ("Cache-Control: max-age=5", 5.1, False),
        ("Cache-Control: max-age=x", 0, False),
        ("Cache-Control: min-fresh=10", 50, True),
        ("Cache-Control: min-fresh=10", 50.1, False),
        ("Cache-Control: min-fresh=x", 0, False),
        ("Cache-Control: max-stale", 0, True),
        ("Cache-Control: foo", 0, True),
    ],
)
def test_a_fresh_response_may_not_be_fresh_enough(line: str, age: float, expected: bool) -> None:
    stored = kept(FRESH)
    decision = select(get(line), (stored,), T + age, SHARED)
    if expected:
        assert isinstance(decision, Reuse)
    else:
        assert decision == Ask("request", (stored,), collapsible=decision.collapsible)  # type: ignore[union-attr]


def test_max_age_counts_the_age_before_receipt() -> None:
    stored = kept("Cache-Control: max-age=3600", "Age: 1800")
    assert isinstance(select(get("Cache-Control: max-age=600"), (stored,), T, SHARED), Ask)
    assert isinstance(select(get("Cache-Control: max-age=1800"), (stored,), T, SHARED), Reuse)
    assert isinstance(select(get("Cache-Control: min-fresh=1801"), (stored,), T, SHARED), Ask)


@pytest.mark.parametrize(
    "line, age, expected",
    [
        ("max-stale", 10_000, True),
        ("max-stale=5", 65, True),
        ("max-stale=5", 65.1, False),
        ("max-stale=0", 60, True),
        ("max-stale=0", 60.1, False),
        ("max-stale=x", 60, False),
        ("max-stale=50, max-age=70", 70, True),
        ("max-stale=50, max-age=70", 70.1, False),
        ("max-stale, no-cache", 65, False),
    ],
)
def test_max_stale(line: str, age: float, expected: bool) -> None:
    stored = kept(FRESH)
    decision = select(get(f"Cache-Control: {line}"), (stored,), T + age, SHARED)
    assert isinstance(decision, Reuse) is expected
    if isinstance(decision, Reuse):
        assert decision.ttl == 60 - age
        assert not decision.validate_later


@pytest.mark.parametrize("value", ["must-revalidate", "proxy-revalidate", "s-maxage=60", "no-cache"])
def test_what_forbids_stale_forbids_it_to_those_who_would_take_it(value: str) -> None:
    stored = kept(f"Cache-Control: max-age=60, stale-while-revalidate=600, {value}")
    assert select(get("Cache-Control: max-stale"), (stored,), T + 61, SHARED) == Ask("stale", (stored,))
    assert select(get(), (stored,), T + 61, SHARED) == Ask("stale", (stored,))
    in_private = select(get(), (stored,), T + 61, PRIVATE)
    assert isinstance(in_private, Reuse) is (value in ("proxy-revalidate", "s-maxage=60"))


def test_request_no_store_goes_to_the_origin() -> None:
    assert select(get("Cache-Control: no-store"), (kept(FRESH),), T, SHARED) == Ask("request", collapsible=False)


@pytest.mark.parametrize("line", ['If-Match: "1"', f"If-Unmodified-Since: {date()}"])
def test_preconditions_for_the_origin_go_there(line: str) -> None:
    assert select(get(line), (kept(FRESH, ONE),), T, SHARED) == Ask("request", collapsible=False)


def test_what_forbids_to_ask_the_origin() -> None:
    plain, local = get(), get("Cache-Control: only-if-cached")
    assert forbids_forwarding(local, SHARED) and not forbids_forwarding(plain, SHARED)
    assert forbids_forwarding(plain, CacheOptions(mode="only-if-cached"))
    assert not forbids_forwarding(local, CacheOptions(mode="off"))  # as if there were no cache


def test_only_if_cached_respects_freshness() -> None:
    request = get("Cache-Control: only-if-cached")
    stored = kept(FRESH)
    assert select(request, (), T, SHARED) == Refuse("only-if-cached")
    assert select(request, (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(request, (stored,), T + 60, SHARED) == Refuse("only-if-cached")
    assert select(get("Cache-Control: only-if-cached, max-stale"), (stored,), T + 60, SHARED) == Reuse(stored, 0)
    assert select(get("Cache-Control: only-if-cached, no-cache"), (stored,), T, SHARED) == Refuse("only-if-cached")
    assert select(get("Cache-Control: only-if-cached, no-store"), (stored,), T, SHARED) == Reuse(stored, 60)
    assert select(get("Cache-Control: only-if-cached", 'If-Match: "1"'), (stored,), T, SHARED) == Reuse(stored, 60)


# stale-while-revalidate (RFC 5861 section 3)

SWR = kept("Cache-Control: max-age=60, stale-while-revalidate=30")


def test_stale_while_revalidate() -> None:
    assert select(get(), (SWR,), T + 59, SHARED) == Reuse(SWR, 1)
    assert select(get(), (SWR,), T + 60, SHARED) == Reuse(SWR, 0, validate_later=True)
    assert select(get(), (SWR,), T + 60.5, SHARED) == Reuse(SWR, -1, validate_later=True)
    assert select(get(), (SWR,), T + 90, SHARED) == Reuse(SWR, -30, validate_later=True)
    assert select(get(), (SWR,), T + 90.1, SHARED) == Ask("stale", (SWR,))


def test_who_wants_what_is_stored_only_has_nothing_validated() -> None:
    """Section 5.2.1.7: a background request is one too."""
    assert select(get("Cache-Control: only-if-cached"), (SWR,), T + 61, SHARED) == Reuse(SWR, -1)


@pytest.mark.parametrize("value", ["no-cache", "max-age=1000", "min-fresh=0", "max-stale=0"])
def test_who_sets_limits_gets_nothing_beyond_them(value: str) -> None:
    decision = select(get(f"Cache-Control: {value}"), (SWR,), T + 61, SHARED)
    assert isinstance(decision, Ask) and decision.why == "stale"


def test_who_takes_stale_needs_no_validation() -> None:
    assert select(get("Cache-Control: max-stale=5"), (SWR,), T + 61, SHARED) == Reuse(SWR, -1)


@pytest.mark.parametrize("status", [401, 407])
def test_a_challenge_is_no_answer_to_credentials(status: int) -> None:
    stored = kept("Cache-Control: public, max-age=60", status=status)
    assert isinstance(select(get(), (stored,), T, SHARED), Reuse)
    decision = select(get("Authorization: Basic eA=="), (stored,), T, SHARED)
    assert isinstance(decision, Ask) and (decision.why, decision.candidates) == ("uri-miss", ())
    assert isinstance(
        select(get("Authorization: Basic eA=="), (kept("Cache-Control: public, max-age=60"),), T, SHARED), Reuse
    )


# immutable (RFC 8246)


@pytest.mark.parametrize(
    "uri, line, age, expected",
    [
        ("https://example.test/", "max-age=0", 5, True),
        ("HTTPS://example.test/", "max-age=0", 5, True),
        ("https://example.test/", "max-age=3", 5, False),  # section 2.1 speaks of reloads alone
        ("https://example.test/", "no-cache", 5, False),
        ("https://example.test/", "min-fresh=100", 5, False),
        ("https://example.test/", "max-age=0", 60, False),
        ("http://example.test/", "max-age=0", 5, False),  # section 3
    ],
)
def test_immutable(uri: str, line: str, age: float, expected: bool) -> None:
    stored = kept("Cache-Control: max-age=60, immutable", uri=uri)
    decision = select(get(f"Cache-Control: {line}", uri=uri), (stored,), T + age, SHARED)
    assert isinstance(decision, Reuse) is expected


# Collapsing (section 4)


@pytest.mark.parametrize(
    "line",
    ["Range: bytes=0-1", 'If-None-Match: "1"', f"If-Modified-Since: {date()}", "Cache-Control: no-cache"]
    + ["Cache-Control: max-age=0", "Authorization: x"],
)
def test_who_could_not_use_anothers_answer_does_not_wait_for_it(line: str) -> None:
    assert select(get(line), (), T, SHARED) == Ask("uri-miss", collapsible=False)


@pytest.mark.parametrize("line", ["Cookie: a=b", "Cache-Control: max-age=1", "Cache-Control: min-fresh=5", "Foo: bar"])
def test_others_wait(line: str) -> None:
    assert select(get(line), (), T, SHARED) == Ask("uri-miss")


def test_authenticated_requests_wait_where_the_answer_is_known_to_be_shared() -> None:
    stored = kept("Cache-Control: max-age=60, public")
    assert select(get("Authorization: x"), (stored,), T + 60, SHARED) == Ask("stale", (stored,))
    silent = kept("Cache-Control: max-age=60")
    assert select(get("Authorization: x"), (silent,), T + 60, SHARED) == Ask("stale", (silent,), collapsible=False)
    assert select(get("Authorization: x"), (), T, PRIVATE) == Ask("uri-miss")


def test_decisions_depend_on_values_alone() -> None:
    def again() -> tuple[StoredResponse, ...]:
        return (kept(FRESH, ONE, "Vary: Foo"), part("0-4/10", ONE))

    for request in (get(), get("Foo: 1"), get("Range: bytes=0-1"), head()):
        assert select(request, again(), T + 5, SHARED) == select(request, again(), T + 5, SHARED)
