"""How transactions end: the decision, and notifying every participant until each has stored it.

    OPEN(e) ──decide──▶ IDLE(e + 1), all joined are finishing ──Ends, again and again──▶ Finished
                 └ one record: THE DECISION (I11)

The branch leaves its transaction at once: the next one may run while a participant has not stored
the end of the last. It has to wait only there: a join of a participant that is finishing is parked
until it has stored the end, so that nothing of e comes after the marker of e, and nothing of e + 1
before it (I12). Stored ends are kept in memory and written with the branch's next record, a second
later at most: forgetting one only repeats an End.

(producer id, epoch) identifies one transaction for ever. When the epochs of a producer id are used
up, the next decision continues with its successor.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeVar

from penstock.core.transactions.contract import (
    BatchCommitted,
    End,
    Ended,
    FinishedHeard,
    JoinRequested,
    Outcome,
    Reply,
)
from penstock.core.transactions.records import (
    BranchRecord,
    Ending,
    EndReason,
    LastEnd,
    Participant,
    PartitionParticipant,
)
from penstock.core.transactions.refusals import parked_too_long, refusal
from penstock.core.transactions.state import Book, Branch, Watcher
from penstock.core.types import ProducerId

EPOCH_LAST: Final = 2**31 - 2
"""Largest epoch of a producer id: its transactions have epochs 0 to this."""
_GENERATION: Final = 1 << 50
"""Producer ids are assigned in sequence from 0 and never reach this bit. From it up to the bit of
transactional ids, the id counts how often its epochs were used up (4,095 times, each time for two
thousand million transactions). So the coordinator can compute a successor without asking anyone,
which a timeout, for one, could not do."""


_Answer = TypeVar("_Answer", Ended, BatchCommitted)


def next_epoch(record: BranchRecord) -> tuple[ProducerId, int]:
    """Producer id and epoch of the transaction that follows."""
    if record.epoch < EPOCH_LAST:
        return record.producer_id, record.epoch + 1
    successor = ProducerId(record.producer_id + _GENERATION)
    assert successor >> 62 == record.producer_id >> 62, f"{record.producer_id} has no successor"
    return successor, 0


def decide(book: Book, branch: Branch, *, commit: bool, reason: EndReason) -> None:
    """Ends the current epoch, whether open or not: this is its outcome for ever."""
    record = branch.record
    ending = Ending(record.producer_id, record.epoch, commit)
    producer_id, epoch = next_epoch(record)
    last = LastEnd(
        producer_id=record.producer_id,
        epoch=record.epoch,
        commit=commit,
        reason=reason,
        time_ms=book.time_ms,
    )
    joined = sorted(record.joined, key=str)
    if joined and branch.is_settled:
        branch.finishing_since_ms = book.now_ms
    book.put_branch(
        branch,
        replace(
            record,
            producer_id=producer_id,
            epoch=epoch,
            is_open=False,
            joined=frozenset(),
            finishing={**record.finishing, **dict.fromkeys(joined, ending)},
            last=last,
        ),
    )
    if record.is_open:
        open_ms = max(0, book.time_ms - record.started_ms)
        book.ended.append(Outcome(commit, reason, open_ms))
        if reason is not EndReason.PRODUCER:
            book.decide(
                "transaction aborted",
                id=branch.transactional_id,
                branch=branch.number,
                producer_id=record.producer_id,
                epoch=record.epoch,
                reason=reason.value,
                open_ms=open_ms,
                participants=len(joined),
            )
    _tell(book, branch, dict.fromkeys(joined, ending))
    branch.pause_ms = book.config.retry_min_ms
    branch.send_at_ms = book.now_ms + branch.pause_ms
    _refuse_parked(book, branch)
    forget_gone(book, branch)


def _tell(book: Book, branch: Branch, endings: dict[Participant, Ending]) -> None:
    book.ends += [
        End(
            participant=participant,
            producer_id=ending.producer_id,
            producer_epoch=ending.epoch,
            commit=ending.commit,
            transactional_id=branch.transactional_id,
        )
        for participant, ending in endings.items()
    ]


def send_again(book: Book, branch: Branch) -> None:
    """Resends Ends to all that have not stored them; doubles the pause before the next time."""
    _tell(book, branch, branch.finishing)
    longest_ms = book.config.retry_max_ms
    branch.send_at_ms = book.now_ms + branch.pause_ms
    branch.pause_ms = min(branch.pause_ms * 2, longest_ms)
    book.touched[branch.transactional_id, branch.number] = branch


def send_at_once(book: Book, branch: Branch) -> None:
    """Leaders of participants may have changed, or this coordinator is new."""
    branch.pause_ms = book.config.retry_min_ms
    send_again(book, branch)


# ---------------------------------------------------------------- heard


def finished(book: Book, event: FinishedHeard) -> list[JoinRequested]:
    """Returns joins that no longer need to wait: the caller carries them out."""
    branch = book.producers.get(event.producer_id)
    if branch is None or not branch.is_finishing(event.participant):
        return []
    ending = branch.record.finishing[event.participant]
    if (ending.producer_id, ending.epoch) != (event.producer_id, event.producer_epoch):
        return []
    return _heard(book, branch, [event.participant])


def forget_gone(book: Book, branch: Branch) -> list[JoinRequested]:
    """Stops waiting for partitions of topics that no longer exist (I22: see `machine`)."""
    if not book.gone:
        return []
    lost: list[Participant] = [
        participant
        for participant in branch.finishing
        if isinstance(participant, PartitionParticipant) and participant.topic_id in book.gone
    ]
    if lost:
        book.decide(
            "partitions of deleted topics get no end",
            id=branch.transactional_id,
            branch=branch.number,
            partitions=len(lost),
        )
    return _heard(book, branch, lost)


def _heard(book: Book, branch: Branch, participants: list[Participant]) -> list[JoinRequested]:
    if not participants:
        return []
    endings = {branch.record.finishing[participant] for participant in participants}
    branch.finished.update(participants)
    if branch.flush_at_ms is None:
        branch.flush_at_ms = book.now_ms + book.config.finished_flush_ms
    key = (branch.transactional_id, branch.number)
    book.touched[key] = branch
    if branch.is_settled:
        book.unsettled.pop(key, None)
        since_ms, branch.finishing_since_ms = branch.finishing_since_ms, None
        assert since_ms is not None, f"{branch} has no time of its end"
        book.visible_ms.append(book.now_ms - since_ms)
    for ending in endings:
        _watched(book, branch, (ending.producer_id, ending.epoch))
    ready = [event for _, event in branch.parked if event.participant in branch.finished]
    branch.parked = [one for one in branch.parked if one[1].participant not in branch.finished]
    return ready


# ---------------------------------------------------------------- parked joins


def park(book: Book, branch: Branch, event: JoinRequested) -> None:
    """The join waits until the participant has stored the end of the previous transaction.

    One per participant: a repeated join replaces the earlier one.
    """
    for parked in branch.parked:
        if parked[1].participant == event.participant:
            branch.parked.remove(parked)
            book.say(Reply(parked[1].request_id, parked_too_long(branch, parked[1])))
            break
    branch.parked.append((book.now_ms + book.config.park_ms, event))
    book.touched[branch.transactional_id, branch.number] = branch


def _refuse_parked(book: Book, branch: Branch) -> None:
    """Refuses parked joins: their transaction has ended."""
    parked, branch.parked = branch.parked, []
    for _, event in parked:
        error = refusal(book, branch, event.producer_id, event.producer_epoch)
        book.say(Reply(event.request_id, error))


# ---------------------------------------------------------------- visible


def is_visible(branch: Branch, transaction: tuple[ProducerId, int]) -> bool:
    """Every participant of the transaction has stored its end."""
    return all(
        (ending.producer_id, ending.epoch) != transaction or participant in branch.finished
        for participant, ending in branch.record.finishing.items()
    )


def answer_when_visible(
    book: Book,
    request: tuple[int, int],
    answer: _Answer,
    transactions: Iterable[tuple[Branch, tuple[ProducerId, int]]],
) -> _Answer | None:
    """The answer, or None: it comes once they are visible. `request`: its id, ms to wait."""
    request_id, wait_ms = request
    left = {key for branch, key in transactions if not is_visible(branch, key)}
    if not left or wait_ms <= 0:
        return replace(answer, visible=not left)
    until_ms = book.now_ms + min(wait_ms, book.config.visible_wait_max_ms)
    watcher = Watcher(request_id, until_ms, left, answer)
    for key in left:
        book.watching.setdefault(key, []).append(watcher)
    book.new_watchers.append(watcher)
    return None


def _watched(book: Book, branch: Branch, transaction: tuple[ProducerId, int]) -> None:
    watchers = book.watching.get(transaction)
    if not watchers or not is_visible(branch, transaction):
        return
    del book.watching[transaction]
    for watcher in watchers:
        watcher.left.discard(transaction)
        if not watcher.left:
            answer_watcher(book, watcher)


def answer_watcher(book: Book, watcher: Watcher) -> None:
    """Answers: it is visible, or the caller has waited long enough."""
    if watcher.answered:
        return
    watcher.answered = True
    for key in watcher.left:
        others = [other for other in book.watching.pop(key, ()) if other is not watcher]
        if others:
            book.watching[key] = others
    book.say(Reply(watcher.request_id, replace(watcher.answer, visible=not watcher.left)))


# ---------------------------------------------------------------- time


def tick(book: Book, branch: Branch) -> None:
    """Does what is due for this branch."""
    now_ms = book.now_ms
    if branch.deadline_ms is not None and branch.deadline_ms <= now_ms:
        decide(book, branch, commit=False, reason=EndReason.TIMEOUT)
    while branch.parked and branch.parked[0][0] <= now_ms:
        _, event = branch.parked.pop(0)
        book.say(Reply(event.request_id, parked_too_long(branch, event)))
    if not branch.is_settled and branch.send_at_ms is not None and branch.send_at_ms <= now_ms:
        send_again(book, branch)
    if branch.flush_at_ms is not None and branch.flush_at_ms <= now_ms:
        book.put_branch(branch, branch.record)


def restore(book: Book, branch: Branch) -> None:
    """The timers of a branch that was loaded.

    The wall clock shows how much of its time an open transaction has used, from 0 to all of it: a
    clock that jumps can end it early, but can never keep it beyond one more timeout.
    """
    record = branch.record
    if record.is_open:
        used_ms = min(max(book.time_ms - record.started_ms, 0), record.timeout_ms)
        branch.deadline_ms = book.now_ms + record.timeout_ms - used_ms
    if record.finishing:
        branch.finishing_since_ms = book.now_ms
        send_at_once(book, branch)
