"""The part of a leader that keeps transactions whole: which may begin here, and how each ends.

    ProduceRequested, first of a transaction ─▶ guard ─▶ JoinRequest ─▶ its coordinator
    … later ones of that transaction ─────────▶ wait behind the guard, in order
    Joined ─────────────▶ guard gone? ignored.  Else: checked again and appended, or all refused
    ProduceRequested, transaction open here ──▶ appended at once
    EndRequested ───────▶ guards of the ended epoch go ─▶ marker appended ─▶ answered below the HW

A producer id is known to everybody who reads what it wrote, so that naming it proves nothing. The
caller may write under the transactional id of its request; that this id has the producer id and the
epoch, its coordinator says when the transaction joins. So a request goes on with an open
transaction without asking only under the id that has joined in this leadership. A new leader asks
once more; this costs one join per open transaction, and no memory beyond the open ones.

Nothing of a transaction is appended before its coordinator knows of this partition: a begin that is
only known here is lost with the leader, and its records would stay open for ever. The guard makes
late answers harmless (KAFKA-14884): join requested, transaction aborted and its marker appended,
then "joined" arrives. Its guard was removed with the marker, so that nothing is appended after
that.

A marker is appended even if nothing is open: a deposed leader does not know what is open. And
everything that waits here is answered: by its coordinator, the end of its transaction or of this
leadership, or its deadline. Kept here: I10, I12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.core.batch import BatchFlags
from penstock.core.replication.appending import Appending, failed
from penstock.core.replication.contract_leader import (
    EndRequested,
    Joined,
    JoinRequest,
    ProduceRequested,
)
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.producers import fenced
from penstock.core.types import Acks, ProducerId, is_transactional_producer
from penstock.errors import ClusterError, ErrorCode, PenstockError

ENDS_MAX: Final = 10_000
"""Extra capacity for ends beyond the limit of waiting requests, because those requests may be
waiting for an end."""
LAST_EPOCH: Final = 2**31 - 2
"""The last epoch that can be ended, because the marker begins the next one. After it, coordinators
use a new producer id."""


class _Claim(NamedTuple):
    """Whose transaction a request says that it belongs to, beside its producer id."""

    epoch: int
    transactional_id: str


def _claim(request: ProduceRequested) -> _Claim:
    return _Claim(request.batch.header.producer_epoch, request.transactional_id)


@dataclass(slots=True)
class _Guard:
    """A transaction that wants to begin here, and the requests that wait for it, in order."""

    number: int
    waiting: list[ProduceRequested] = field(default_factory=list)


class Transactions:
    """Transactional requests of one leadership."""

    def __init__(
        self,
        log: LocalLog,
        appending: Appending,
        shortage: Callable[[Acks, int], ClusterError | None],
        numbers: Iterator[int],
    ) -> None:
        """`shortage`: why nothing can be appended now, with this capacity beyond the limit.

        `numbers` assigns a number to each join.
        """
        self._log = log
        self._appending = appending
        self._shortage = shortage
        self._numbers = numbers
        # A client may name any epoch and any producer id: what was not assigned to its
        # transactional id must not replace, or stand before, what was.
        self._guards: dict[ProducerId, dict[_Claim, _Guard]] = {}
        self._asked: dict[int, tuple[ProducerId, _Claim]] = {}
        self._confirmed: dict[ProducerId, _Claim] = {}
        """What coordinators said in this leadership, until the transaction ends here."""
        self._first_deadline_ms = 0
        self.waiting = 0
        """Requests behind guards."""

    # ------------------------------------------------------------ data

    def produce(self, request: ProduceRequested, out: Outbox, now_ms: int) -> bool:
        """Appends, makes it wait for its transaction to begin here, or answers with an error.

        A fenced epoch is reported before anything else: no other error stops the retries
        (KAFKA-19690). True: the request may already be complete.
        """
        refusal: PenstockError | None = _misfit(request) or self._fenced(request)
        claim, is_open = _claim(request), self._is_open(request)
        if not is_open:  # nothing of it was appended before
            refusal = refusal or request.refusal
        refusal = refusal or self._shortage(request.acks, 0)
        if refusal is not None:
            out.replies.append(failed(request, refusal))
            return False
        header = request.batch.header
        if is_open and self._confirmed.get(header.producer_id) == claim:
            return self._appending.land(request, out, now_ms)
        guard = self._guards.get(header.producer_id, {}).get(claim)
        if guard is None and header.base_sequence != 0 and not is_open:
            out.replies.append(failed(request, _not_begun(request)))
            return False
        self._wait(guard or self._begin(request, out), request)
        return False

    def _is_open(self, request: ProduceRequested) -> bool:
        header = request.batch.header
        entry = self._log.producers.get(header.producer_id)
        return (
            entry is not None
            and entry.open_offset is not None
            and entry.producer_epoch == header.producer_epoch
        )

    def _begin(self, request: ProduceRequested, out: Outbox) -> _Guard:
        header, claim = request.batch.header, _claim(request)
        guard = _Guard(next(self._numbers))
        self._guards.setdefault(header.producer_id, {})[claim] = guard
        self._asked[guard.number] = (header.producer_id, claim)
        out.joins.append(
            JoinRequest(
                request.transactional_id, header.producer_id, header.producer_epoch, guard.number
            )
        )
        return guard

    def _wait(self, guard: _Guard, request: ProduceRequested) -> None:
        guard.waiting.append(request)
        if not self.waiting or request.deadline_ms < self._first_deadline_ms:
            self._first_deadline_ms = request.deadline_ms
        self.waiting += 1

    def joined(self, answer: Joined, out: Outbox, now_ms: int) -> bool:
        """The coordinator's answer. True: a request may already be complete."""
        asked = self._asked.get(answer.number)
        if asked is None:
            return False
        done = False
        if answer.error is None:
            self._confirmed[asked[0]] = asked[1]
        for request in self._take(*asked):
            refusal = answer.error or self._refusal(request)
            if refusal is not None:
                out.replies.append(failed(request, refusal))
            else:
                done = self._appending.land(request, out, now_ms) or done
        return done

    def _refusal(self, request: ProduceRequested) -> ClusterError | None:
        """What changed while the request waited."""
        header = request.batch.header
        entry = self._log.producers.get(header.producer_id)
        if (
            entry is not None
            and entry.open_offset is not None
            and entry.producer_epoch < header.producer_epoch
        ):
            return ClusterError(
                f"producer {header.producer_id} epoch {header.producer_epoch} joined, but its "
                f"transaction with epoch {entry.producer_epoch} is still open here since offset "
                f"{entry.open_offset}: nothing was appended; try again when that has ended",
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )
        return self._fenced(request) or self._shortage(request.acks, 0)

    def _fenced(self, request: ProduceRequested) -> ClusterError | None:
        header = request.batch.header
        entry = self._log.producers.get(header.producer_id)
        if entry is None or entry.producer_epoch <= header.producer_epoch:
            return None
        return fenced(entry, header.producer_epoch)

    # ------------------------------------------------------------ ends

    def end(self, request: EndRequested, out: Outbox, now_ms: int) -> bool:
        """Appends the marker, or waits for the existing one.

        True: the request may already be complete.
        """
        producer_id, epoch = request.producer_id, request.producer_epoch
        if not is_transactional_producer(producer_id) or not 0 <= epoch <= LAST_EPOCH:
            out.replies.append(failed(request, _no_transaction(request)))
            return False
        for guarded in sorted(self._guards.get(producer_id, {})):
            if guarded.epoch <= epoch:
                # Decided, regardless of this marker's outcome.
                self._refuse(self._take(producer_id, guarded), _ended_before(request), out)
        confirmed = self._confirmed.get(producer_id)
        if confirmed is not None and confirmed.epoch <= epoch:
            del self._confirmed[producer_id]
        refusal = self._shortage(Acks.ALL, ENDS_MAX)
        if refusal is not None:
            out.replies.append(failed(request, refusal))
            return False
        entry = self._log.producers.get(producer_id)
        if entry is None or entry.producer_epoch <= epoch:
            self._appending.mark(request, out, now_ms)
            return False
        self._appending.mark_again(request, entry.marker_offset, out, now_ms)
        return True

    def resign(self, error: PenstockError, out: Outbox) -> None:
        """The leadership ended: answers of coordinators are no longer handled here."""
        for asked in tuple(self._asked.values()):
            self._refuse(self._take(*asked), error, out)

    def expire(self, out: Outbox, now_ms: int) -> None:
        """Answers what waited past its deadline, and what follows it in its transaction."""
        if not self.waiting or now_ms < self._first_deadline_ms:
            return
        for producer_id, claim in tuple(self._asked.values()):
            waiting = self._guards[producer_id][claim].waiting
            late = [at for at, one in enumerate(waiting) if one.deadline_ms <= now_ms]
            if late and late[0] == 0:
                waiting = self._take(producer_id, claim)
                self._refuse(waiting, _not_joined(waiting[0]), out)
            elif late:
                refused = waiting[late[0] :]
                del waiting[late[0] :]
                self.waiting -= len(refused)
                self._refuse(refused, _not_joined(refused[0]), out)
        guards = [guard for ours in self._guards.values() for guard in ours.values()]
        deadlines = [one.deadline_ms for guard in guards for one in guard.waiting]
        self._first_deadline_ms = min(deadlines, default=0)

    def _take(self, producer_id: ProducerId, claim: _Claim) -> list[ProduceRequested]:
        """Removes a guard, and returns the requests that waited behind it."""
        guards = self._guards[producer_id]
        guard = guards.pop(claim)
        if not guards:
            del self._guards[producer_id]
        del self._asked[guard.number]
        self.waiting -= len(guard.waiting)
        return guard.waiting

    def _refuse(
        self, requests: Iterable[ProduceRequested], error: PenstockError, out: Outbox
    ) -> None:
        out.replies += [failed(request, error) for request in requests]


def _misfit(request: ProduceRequested) -> ClusterError | None:
    """Flags, producer id and transactional id go together, and such a batch needs acks=ALL."""
    header = request.batch.header
    wrong = None
    if header.flags != BatchFlags.TRANSACTIONAL:
        wrong = f"has flags {int(header.flags):#x}; they must be 0x1"
    elif not is_transactional_producer(header.producer_id):
        wrong = f"has producer id {header.producer_id}, which no coordinator has assigned"
    elif not request.transactional_id:
        wrong = "has no transactional id"
    elif not 0 <= header.producer_epoch <= LAST_EPOCH:
        wrong = f"has epoch {header.producer_epoch}; the last valid epoch is {LAST_EPOCH}"
    elif request.acks is not Acks.ALL:
        wrong = f"has acks={request.acks.name}; it must be ALL"
    if wrong is None:
        return None
    return ClusterError(f"a batch of a transaction {wrong}", ErrorCode.INVALID_REQUEST)


def _no_transaction(request: EndRequested) -> ClusterError:
    return ClusterError(
        f"producer id {request.producer_id} epoch {request.producer_epoch} is not a transaction: "
        f"coordinators assign ids, and epochs end at {LAST_EPOCH}",
        ErrorCode.INVALID_REQUEST,
    )


def _not_begun(request: ProduceRequested) -> ClusterError:
    header = request.batch.header
    return ClusterError(
        f"producer {header.producer_id} epoch {header.producer_epoch} has no open transaction "
        f"here and sent sequence {header.base_sequence}, expected 0: an earlier batch is "
        "missing; abort the transaction",
        ErrorCode.OUT_OF_ORDER_SEQUENCE,
    )


def _ended_before(request: EndRequested) -> ClusterError:
    return ClusterError(
        f"the transaction of producer {request.producer_id} epoch {request.producer_epoch} ended "
        "before this batch could join it: ask its coordinator for the outcome",
        ErrorCode.PRODUCER_FENCED,
    )


def _not_joined(request: ProduceRequested) -> ClusterError:
    return ClusterError(
        f"the coordinator of {request.transactional_id!r} did not confirm in time that this "
        "partition has joined the transaction: nothing was appended; try again",
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
