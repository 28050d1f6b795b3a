"""A coordinator under a fake clock whose log commits at once; calls in one line each."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from support.ticking import pass_time

from penstock.core.defect import raise_defect
from penstock.core.transactions import TransactionConfig, TransactionCoordinator
from penstock.core.transactions import contract as c
from penstock.core.transactions.records import (
    CONFIRMATION_KEY,
    Attempt,
    BranchRecord,
    EndReason,
    GroupParticipant,
    LedgerRecord,
    Participant,
    PartitionParticipant,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ErrorCode, PenstockError

TIME_MS = 1_700_000_000_000
FRESH = 1 << 62
P0 = PartitionParticipant(TopicId("t"), 0)
P1 = PartitionParticipant(TopicId("t"), 1)
U0 = PartitionParticipant(TopicId("u"), 0)
GROUP = GroupParticipant("billing")
CONFIRMATION = (CONFIRMATION_KEY, None)
"""The record that changes nothing, of a coordinator that shows that it still leads."""


@dataclass
class Desk:
    """Feeds events and keeps what came out."""

    config: TransactionConfig = field(default_factory=TransactionConfig)
    now_ms: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    ready: c.Ready = c.NOTHING
    replies: dict[int, Any] = field(default_factory=dict)
    last_request: int = 0

    def __post_init__(self) -> None:
        self.requests = count(1)
        self.fresh = count(FRESH)
        self.machine = TransactionCoordinator(self.config, TIME_MS)
        self.take(self.machine.start(self.now_ms))

    def take(self, ready: c.Ready) -> c.Ready:
        self.log += ready.records
        self.ready = ready
        for output in ready.outputs:
            if isinstance(output, c.Reply):
                assert output.request_id not in self.replies, "answered once"
                self.replies[output.request_id] = output.answer
        return ready

    def feed(self, event: c.Event) -> c.Ready:
        ready = self.machine.handle(event, self.now_ms)
        raise_defect(ready.stopped)
        return self.take(ready)

    def restart(self, wall_ms: int = TIME_MS) -> c.Ready:
        """Another coordinator from the same log; `wall_ms`: the wall clock at time 0."""
        self.machine = TransactionCoordinator(self.config, wall_ms)
        for key, value in self.log:
            self.machine.load(key, value)
        return self.take(self.machine.start(self.now_ms))

    def pass_time(self, ms: int) -> list[c.Output]:
        """Ticks whenever one is due; all outputs."""
        return pass_time(self, c.Tick(), ms)

    # ------------------------------------------------------------ calls

    def send(self, make: Any, **fields: Any) -> int:
        """The request's id; its answer may be in `replies`."""
        self.last_request = next(self.requests)
        self.feed(make(request_id=self.last_request, **fields))
        return self.last_request

    def ask(self, make: Any, **fields: Any) -> Any:
        """The answer; raises the PenstockError it is."""
        answer = self.replies[self.send(make, **fields)]
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def init(self, name: str = "tx", instance: str = "a", **fields: Any) -> tuple[ProducerId, int]:
        answer = self.ask(
            c.InitRequested,
            transactional_id=name,
            instance_id=instance,
            fresh_producer_id=ProducerId(next(self.fresh)),
            **fields,
        )
        return answer.producer_id, answer.producer_epoch

    def join(self, who: tuple[ProducerId, int], what: Participant = P0, name: str = "tx") -> Any:
        return self.ask(c.JoinRequested, **self.joining(who, what, name))

    def join_later(
        self, who: tuple[ProducerId, int], what: Participant = P0, name: str = "tx"
    ) -> int:
        """A join that is parked; its request id."""
        request_id = self.send(c.JoinRequested, **self.joining(who, what, name))
        assert request_id not in self.replies
        return request_id

    @staticmethod
    def joining(who: tuple[ProducerId, int], what: Participant, name: str) -> dict[str, Any]:
        return {
            "transactional_id": name,
            "producer_id": who[0],
            "producer_epoch": who[1],
            "participant": what,
        }

    def end(
        self, who: tuple[ProducerId, int], *, commit: bool = True, name: str = "tx", **fields: Any
    ) -> Any:
        return self.ask(
            c.EndRequested,
            transactional_id=name,
            producer_id=who[0],
            producer_epoch=who[1],
            commit=commit,
            **fields,
        )

    def abort(self, name: str = "tx", **fields: Any) -> int:
        return int(self.ask(c.AbortRequested, transactional_id=name, **fields).count)

    def finished(self, *participants: Participant, who: tuple[ProducerId, int]) -> c.Ready:
        for participant in participants:
            self.feed(c.FinishedHeard(participant, *who))
        return self.ready

    def begin(self, task: int = 0, attempt: int = 0, **fields: Any) -> c.BranchBegun:
        name = fields.pop("name", "app")
        run, batch = fields.pop("run", "r1"), fields.pop("batch", 0)
        answer = self.ask(
            c.BeginBranchRequested,
            application_id=name,
            checkpoint=fields.pop("checkpoint", "cp"),
            attempt=Attempt(run, batch, task, attempt),
            fresh_producer_id=ProducerId(next(self.fresh)),
            **fields,
        )
        assert isinstance(answer, c.BranchBegun)
        return answer

    def commit_batch(self, *begun: c.BranchBegun, batch: int = 0, **fields: Any) -> Any:
        return self.ask(
            c.CommitBatchRequested,
            application_id=fields.pop("name", "app"),
            checkpoint=fields.pop("checkpoint", "cp"),
            run=fields.pop("run", "r1"),
            batch=batch,
            rows=fields.pop("rows", 10),
            branches=tuple((one.branch, one.producer_epoch) for one in begun),
            **fields,
        )

    def abort_batch(self, batch: int = 0, **fields: Any) -> bool:
        answer = self.ask(
            c.AbortBatchRequested,
            application_id=fields.pop("name", "app"),
            checkpoint=fields.pop("checkpoint", "cp"),
            run=fields.pop("run", "r1"),
            batch=batch,
        )
        return bool(answer.already_committed)

    # ------------------------------------------------------------ looks

    def record(self, name: str = "tx", branch: int = 0) -> BranchRecord:
        return self.machine.holders[name].branches[branch].record

    def ledger(self, name: str = "app") -> LedgerRecord:
        return self.machine.ledgers[name]

    def last(self, name: str = "tx", branch: int = 0) -> tuple[int, bool, EndReason]:
        last = self.record(name, branch).last
        assert last is not None
        return last.epoch, last.commit, last.reason

    @property
    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Records of the last event that change the state."""
        return [record for record in self.ready.records if record != CONFIRMATION]

    @property
    def confirmed(self) -> bool:
        """What the last event says leaves behind a record, whatever that is."""
        return bool(self.ready.records)

    @property
    def ends(self) -> list[tuple[Participant, int, bool]]:
        return ends(self.ready.outputs)


def ends(outputs: Any) -> list[tuple[Participant, int, bool]]:
    """(participant, epoch, commit) of all Ends."""
    return [
        (end.participant, end.producer_epoch, end.commit)
        for output in outputs
        if isinstance(output, c.SendEnds)
        for end in output.entries
    ]


@contextmanager
def refused(code: ErrorCode, match: str = "") -> Iterator[None]:
    """The block raises a PenstockError with this code, whose message has `match`."""
    with pytest.raises(PenstockError, match=re.escape(match) or None) as caught:
        yield
    assert caught.value.code is code
