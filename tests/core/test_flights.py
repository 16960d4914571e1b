"""Who leads and who follows, with nobody's body involved."""

from __future__ import annotations

import pytest

from vllm_http_cache.flights import UNSHAREABLE_FLIGHTS, UNSHAREABLE_SECONDS, Flights, Landing, Seat, Ticket
from vllm_http_cache.loops import Bell, ThreadBell
from vllm_http_cache.steps import Again, Alone


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Open:
    """A download that can be joined."""

    silent = False

    def joinable(self) -> bool:
        return True

    def is_silent(self, seconds: float) -> bool:
        return self.silent


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def flights(clock: Clock) -> Flights:
    return Flights(clock)


def enter(flights: Flights, key: str = "k", bell: Bell | None = None) -> Ticket:
    ticket = Ticket(bell or ThreadBell())
    flights.enter(key, ticket)
    return ticket


def lead(flights: Flights, key: str = "k") -> Seat:
    came = enter(flights, key).outcome
    assert isinstance(came, Seat)
    return came


def follow(flights: Flights, key: str = "k") -> Ticket:
    ticket = enter(flights, key)
    assert ticket.outcome is None
    return ticket


def rung(ticket: Ticket) -> bool:
    assert isinstance(ticket.bell, ThreadBell)
    return ticket.bell.wait(0)


def test_the_first_leads_and_others_of_the_same_key_wait(flights: Flights) -> None:
    lead(flights)
    assert not rung(follow(flights))
    lead(flights, "another key")


def test_finish_sends_all_followers_to_look_again_and_frees_the_key(flights: Flights) -> None:
    seat, followers = lead(flights), [follow(flights) for _ in range(3)]
    seat.finish()
    assert all(rung(f) and isinstance(f.outcome, Again) for f in followers)
    assert len(flights) == 0
    lead(flights)


def test_abandon_wakes_exactly_one_who_then_leads(flights: Flights) -> None:
    seat, first, second = lead(flights), follow(flights), follow(flights)
    seat.abandon()
    assert rung(first) and isinstance(first.outcome, Seat)
    assert not rung(second)
    first.outcome.finish()
    assert isinstance(second.outcome, Again)


class Claimed:
    released = 0

    def release(self) -> None:
        self.released += 1


class Deaf:
    """The bell of a loop that has been closed."""

    def ring(self) -> bool:
        return False

    lost = True
    silence = 0.0

    def is_lost(self) -> bool:
        return self.lost

    def silent(self) -> float:
        return self.silence


def test_a_follower_who_cannot_hear_is_passed_over(flights: Flights) -> None:
    seat, gone, second = lead(flights), enter(flights, bell=Deaf()), follow(flights)
    seat.abandon()
    assert isinstance(second.outcome, Seat) and rung(second)
    assert isinstance(flights.collect(gone), Alone)
    second.outcome.finish()
    seat, gone = lead(flights), enter(flights, bell=Deaf())
    seat.abandon()
    assert len(flights) == 0


def test_who_comes_after_a_leader_whose_loop_was_closed_leads_all_who_wait(flights: Flights) -> None:
    bell = Deaf()
    bell.lost = False
    lost, waiting = enter(flights, bell=bell).outcome, follow(flights)
    assert isinstance(lost, Seat)
    bell.lost = True
    claim = lost.claim = Claimed()
    seat = lead(flights)
    lost.abandon()  # by a collector, too late
    assert waiting.outcome is None and seat.claim is claim and not claim.released
    seat.finish()
    assert isinstance(waiting.outcome, Again) and claim.released
    assert len(flights) == 0


def test_who_waits_and_looks_leads_in_place_of_a_leader_whose_loop_was_closed(flights: Flights) -> None:
    bell = Deaf()
    bell.lost = False
    enter(flights, bell=bell)
    first, second = follow(flights), follow(flights)
    assert flights.still_waits(first, another := ThreadBell())
    bell.lost = True
    assert not flights.still_waits(second, ThreadBell())
    assert isinstance(second.outcome, Seat)
    assert flights.still_waits(first, another)
    second.outcome.abandon()
    assert isinstance(first.outcome, Seat) and another.wait(0)


def test_one_of_those_who_wait_leads_in_place_of_a_leader_whose_loop_does_not_turn(flights: Flights) -> None:
    bell = Deaf()
    bell.lost = False
    standing = enter(flights, bell=bell).outcome
    assert isinstance(standing, Seat)
    claim = standing.claim = Claimed()
    patient, first, second = (Ticket(ThreadBell(), patience) for patience in (5, 3, 3))
    for ticket in (patient, first, second):
        flights.enter("k", ticket)
    bell.silence = 2.9
    assert all(flights.still_waits(ticket, ThreadBell()) for ticket in (patient, first, second))
    bell.silence = 3
    assert flights.still_waits(patient, ThreadBell())
    assert not flights.still_waits(first, ThreadBell())
    assert isinstance(first.outcome, Seat) and first.outcome.claim is claim
    assert flights.still_waits(second, ThreadBell())
    standing.land(object(), Open())  # type: ignore[arg-type]
    standing.finish()
    assert patient.outcome is second.outcome is None and not claim.released
    first.outcome.finish()
    assert isinstance(patient.outcome, Again) and isinstance(second.outcome, Again)


def test_one_leads_in_place_of_a_landed_leader_whose_loop_does_not_turn(flights: Flights) -> None:
    download = Open()
    standing = lead(flights)
    standing.land(object(), download)  # type: ignore[arg-type]
    assert isinstance(enter(flights).outcome, Landing)
    download.silent = True
    seat = lead(flights)
    waiting = follow(flights)
    standing.finish()
    assert waiting.outcome is None
    seat.finish()
    assert isinstance(waiting.outcome, Again)


def test_followers_tell_their_leader_that_it_is_late(flights: Flights) -> None:
    seat, first, second = lead(flights), follow(flights), follow(flights)
    assert flights.still_waits(first, ThreadBell()) and not seat.is_late
    for ticket, is_late in ((first, True), (second, False)):
        assert flights.still_waits(ticket, ThreadBell(), is_late=is_late)
    assert seat.is_late


def test_a_follower_who_waits_no_longer_is_not_woken(flights: Flights) -> None:
    seat, first, second = lead(flights), follow(flights), follow(flights)
    assert flights.collect(first) is None
    seat.abandon()
    assert isinstance(second.outcome, Seat)


def test_a_follower_promoted_at_the_last_moment_can_pass_the_lead_on(flights: Flights) -> None:
    seat, first, second = lead(flights), follow(flights), follow(flights)
    seat.abandon()
    promoted = flights.collect(first)
    assert isinstance(promoted, Seat)
    promoted.abandon()
    assert isinstance(second.outcome, Seat)


def test_when_all_have_gone_nothing_is_left(flights: Flights) -> None:
    seat, first = lead(flights), follow(flights)
    flights.collect(first)
    seat.abandon()
    assert len(flights) == 0


def test_only_the_first_end_of_a_seat_counts(flights: Flights) -> None:
    seat = lead(flights)
    seat.finish()
    other = lead(flights)
    seat.disperse(remember=True)
    follow(flights)  # neither freed nor marked by the ended seat
    other.finish()


def test_what_is_not_shareable_sends_all_alone_and_is_remembered_for_a_while(flights: Flights, clock: Clock) -> None:
    seat, follower = lead(flights), follow(flights)
    seat.disperse(remember=True)
    assert isinstance(follower.outcome, Alone)
    assert isinstance(enter(flights).outcome, Alone)
    clock.now = UNSHAREABLE_SECONDS
    lead(flights)


def test_a_failure_sends_all_alone_and_is_not_remembered(flights: Flights) -> None:
    seat, follower = lead(flights), follow(flights)
    seat.disperse(remember=False)
    assert isinstance(follower.outcome, Alone)
    lead(flights)


def test_what_becomes_shareable_is_led_again(flights: Flights) -> None:
    lead(flights).disperse(remember=True)
    flights.shareable("k")
    lead(flights)


def test_the_memory_of_the_unshareable_is_bounded(flights: Flights) -> None:
    for n in range(UNSHAREABLE_FLIGHTS + 1):
        lead(flights, str(n)).disperse(remember=True)
    lead(flights, "0")
    assert isinstance(enter(flights, "1").outcome, Alone)


def test_landing_is_joined_by_those_who_wait_and_by_those_who_come(flights: Flights) -> None:
    seat, waiting = lead(flights), follow(flights)
    seat.land(object(), Open())  # type: ignore[arg-type]
    assert isinstance(waiting.outcome, Landing)
    assert isinstance(enter(flights).outcome, Landing)


def test_a_claim_is_released_by_every_end(flights: Flights) -> None:
    for end in (Seat.finish, Seat.abandon, lambda seat: seat.disperse(remember=False)):
        seat = lead(flights)
        claim = seat.claim = Claimed()
        end(seat)
        end(seat)
        assert claim.released == 1
