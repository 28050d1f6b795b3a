"""When brokers count as being at rest (I39)."""

from dataclasses import replace

from penstock.client import BrokerQuiescence
from penstock_operator.resting import Quiet

QUIET = [BrokerQuiescence(number, True, (), 100, 10) for number in range(3)]
EVERYBODY = range(3)


def test_it_takes_the_same_answer_of_everybody_twice() -> None:
    quiet = Quiet()
    assert not quiet.proven(QUIET, EVERYBODY)
    assert quiet.proven(QUIET, EVERYBODY)
    assert not quiet.proven(QUIET[:2], EVERYBODY), "not of everybody"
    assert not quiet.proven(QUIET, EVERYBODY), "the time before does not count"
    quiet.forget()
    assert not quiet.proven(QUIET, EVERYBODY)
    assert quiet.proven(QUIET, EVERYBODY)


def test_who_wrote_in_between_was_not_at_rest() -> None:
    quiet = Quiet()
    quiet.proven(QUIET, EVERYBODY)
    grown = [*QUIET[:2], replace(QUIET[2], log_ends=101)]
    assert not quiet.proven(grown, EVERYBODY)
    assert quiet.proven(grown, EVERYBODY)


def test_a_leader_that_has_not_heard_of_a_lost_seat_proves_nothing() -> None:
    """Seed 17189: broker 0 came back without its data; broker 2 led, and was asked before."""
    quiet = Quiet()
    quiet.proven(QUIET, EVERYBODY)
    told = [*(replace(one, metadata_version=11) for one in QUIET[:2]), QUIET[2]]
    assert not quiet.proven(told, EVERYBODY)
    assert not quiet.proven(told, EVERYBODY), "they never speak of the same cluster"


def test_a_change_that_all_have_heard_of_begins_it_again() -> None:
    quiet = Quiet()
    quiet.proven(QUIET, EVERYBODY)
    later = [replace(one, metadata_version=11) for one in QUIET]
    assert not quiet.proven(later, EVERYBODY)
    assert quiet.proven(later, EVERYBODY)
