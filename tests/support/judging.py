"""The judge of `penstock verify` on a history that a test made up."""

from collections.abc import Iterable

from penstock.verify.check import Checker
from penstock.verify.history import Event
from penstock.verify.verdict import Verdict


def judge(events: Iterable[Event]) -> Verdict:
    """The verdict on the whole history, which is gone through twice, as `check_files` does."""
    history = list(events)
    made = Checker()
    for event in history:
        made.first_pass(event)
    made.settle()
    for event in history:
        made.second_pass(event)
    return made.finish()
