"""A coordinator's state: ids, branches, ledgers; and the records of each change.

    Book.put_* ──▶ changes the state and adds the record (the newest per key) for the Ready

`loading.py` goes the other way: from a log's records to the state that they add up to.

Durable state is changed only through `Book`, so that state and log cannot diverge (I16); temporary
state (timers, parked joins, ends stored since the last record) is marked below and starts over with
the next coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.core.transactions.config import TransactionConfig
from penstock.core.transactions.contract import (
    BatchCommitted,
    Decision,
    End,
    Ended,
    JoinRequested,
    Outcome,
    Output,
    Reply,
)
from penstock.core.transactions.records import (
    CONFIRMATION_KEY,
    Attempt,
    BranchKey,
    BranchRecord,
    Ending,
    IdKey,
    IdRecord,
    Key,
    LedgerKey,
    LedgerRecord,
    Participant,
    PartitionParticipant,
    Value,
    encode_key,
    encode_value,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode


@dataclass(slots=True, eq=False)
class Branch:
    """One producer id of a transactional id. Below `size_bytes`: temporary state, in ms of the
    machine's clock; None: not running.

    finished: stored the end since the last record. flush_at_ms: when that is written.
    deadline_ms: when the open transaction is aborted. send_at_ms, pause_ms: of the next Ends.
    finishing_since_ms: when participants were last sent an end while none was pending.
    parked: joins that wait for their participant, with the time at which they are refused.
    wake_at_ms: the tick that is due for this branch.
    """

    transactional_id: str
    number: int
    record: BranchRecord
    size_bytes: int = 0
    finished: set[Participant] = field(default_factory=set)
    flush_at_ms: int | None = None
    deadline_ms: int | None = None
    send_at_ms: int | None = None
    pause_ms: int = 0
    finishing_since_ms: int | None = None
    parked: list[tuple[int, JoinRequested]] = field(default_factory=list)
    wake_at_ms: int | None = None

    def __str__(self) -> str:
        suffix = f" branch {self.number}" if self.number else ""
        return f"{self.transactional_id!r}{suffix}"

    def is_finishing(self, participant: Participant) -> bool:
        """It has not stored an end yet."""
        return participant in self.record.finishing and participant not in self.finished

    @property
    def finishing(self) -> dict[Participant, Ending]:
        """Participants that have not stored an end yet, with that end."""
        found = self.record.finishing
        return {p: ending for p, ending in found.items() if p not in self.finished}

    @property
    def is_settled(self) -> bool:
        """All participants have stored every end, on record or not."""
        return len(self.finished) == len(self.record.finishing)

    @property
    def due_ms(self) -> int | None:
        """When something is due; None: nothing is."""
        times = [self.flush_at_ms, self.deadline_ms, *(due_ms for due_ms, _ in self.parked[:1])]
        if not self.is_settled:
            times.append(self.send_at_ms)
        return min((when for when in times if when is not None), default=None)


@dataclass(slots=True, eq=False)
class Holder:
    """A transactional id: its owner, and its branches. A plain producer's is branch 0.

    attempts: of tasks, with the branch begun for each. idle: branches that a task may use.
    """

    transactional_id: str
    record: IdRecord
    branches: dict[int, Branch] = field(default_factory=dict)
    attempts: dict[Attempt | None, Branch] = field(default_factory=dict)
    idle: dict[int, Branch] = field(default_factory=dict)
    size_bytes: int = 0
    branch_bytes: int = 0

    @property
    def used_ms(self) -> int:
        """Since 1970: the last init, opening or decision."""
        used_ms = self.record.used_ms
        for branch in self.branches.values():
            last = branch.record.last
            ended_ms = 0 if last is None else last.time_ms
            used_ms = max(used_ms, branch.record.started_ms, ended_ms)
        return used_ms


@dataclass(slots=True, eq=False)
class Watcher:
    """A caller that waits until all of these transactions are visible, `until_ms` at most."""

    request_id: int
    until_ms: int
    left: set[tuple[ProducerId, int]]
    answer: Ended | BatchCommitted
    answered: bool = False


BranchId = tuple[str, int]


@dataclass(slots=True)
class Book:
    """All ids, and the effects of the current event so far.

    now_ms: the machine's clock at this event; time_ms: the same since 1970. producers: owner of
    producer ids, also of former ones of branches. open, unsettled: branches by id and number.
    gone: deleted topics of participants. is_loading: records come from the log,
    with its size. touched: branches whose times may have changed.
    """

    config: TransactionConfig = field(default_factory=TransactionConfig)
    now_ms: int = 0
    time_ms: int = 0
    is_time_trusted: bool = True
    holders: dict[str, Holder] = field(default_factory=dict)
    ledgers: dict[str, LedgerRecord] = field(default_factory=dict)
    producers: dict[ProducerId, Branch] = field(default_factory=dict)
    open: dict[BranchId, Branch] = field(default_factory=dict)
    unsettled: dict[BranchId, Branch] = field(default_factory=dict)
    watching: dict[tuple[ProducerId, int], list[Watcher]] = field(default_factory=dict)
    gone: set[TopicId] = field(default_factory=set)
    is_loading: bool = False
    state_bytes: int = 0
    ledger_bytes: dict[str, int] = field(default_factory=dict)
    records: dict[bytes, bytes | None] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    ended: list[Outcome] = field(default_factory=list)
    visible_ms: list[int] = field(default_factory=list)
    touched: dict[BranchId, Branch] = field(default_factory=dict)
    new_watchers: list[Watcher] = field(default_factory=list)

    # ------------------------------------------------------------ reading

    def holder(self, transactional_id: str) -> Holder:
        """Raises ClusterError(UNKNOWN_TRANSACTIONAL_ID)."""
        found = self.holders.get(transactional_id)
        if found is None:
            days = self.config.id_expiration_ms // 86_400_000
            raise ClusterError(
                f"there is no transactional id {transactional_id!r}; an id that is unused for "
                f"{days} days is forgotten, until a producer begins with it again",
                ErrorCode.UNKNOWN_TRANSACTIONAL_ID,
            )
        return found

    def branch(self, transactional_id: str, producer_id: ProducerId) -> Branch | None:
        """The branch of the id that has, or had, this producer id."""
        found = self.producers.get(producer_id)
        return found if found is not None and found.transactional_id == transactional_id else None

    # ------------------------------------------------------------ durable changes

    def put_holder(self, holder: Holder, record: IdRecord) -> None:
        """A new id becomes known by its first record."""
        self.holders[holder.transactional_id] = holder
        holder.record = record
        holder.size_bytes = self._note(
            IdKey(holder.transactional_id), record, before=holder.size_bytes
        )

    def put_branch(self, branch: Branch, record: BranchRecord) -> None:
        """Stores `record`, without participants in `finishing` that have stored the end since."""
        if branch.finished:
            left = {p: e for p, e in record.finishing.items() if p not in branch.finished}
            record = replace(record, finishing=left)
        branch.finished.clear()
        branch.flush_at_ms = None
        before, branch.record = branch.record, record
        key = (branch.transactional_id, branch.number)
        self._index(key, branch, before)
        holder = self.holders[branch.transactional_id]
        _index_attempt(holder, branch, before)
        if not record.is_open:
            branch.deadline_ms = None
        elif branch.deadline_ms is None:
            branch.deadline_ms = self.now_ms + record.timeout_ms
        size_bytes = self._note(BranchKey(*key), record, before=branch.size_bytes)
        holder.branch_bytes += size_bytes - branch.size_bytes
        branch.size_bytes = size_bytes
        self.touched[key] = branch

    def _index(self, key: BranchId, branch: Branch, before: BranchRecord) -> None:
        record = branch.record
        for producer_id in producer_ids(before) - producer_ids(record):
            del self.producers[producer_id]
        for producer_id in producer_ids(record):
            known = self.producers.setdefault(producer_id, branch)
            assert known is branch, f"producer id {producer_id} belongs to {known} and {branch}"
        for flag, found in ((record.is_open, self.open), (record.finishing, self.unsettled)):
            if flag:
                found[key] = branch
            else:
                found.pop(key, None)

    def put_ledger(self, application_id: str, record: LedgerRecord | None) -> None:
        """None deletes it."""
        if record is None:
            del self.ledgers[application_id]
        else:
            self.ledgers[application_id] = record
        before = self.ledger_bytes.pop(application_id, 0)
        size = self._note(LedgerKey(application_id), record, before=before)
        if record is not None:
            self.ledger_bytes[application_id] = size

    def remove_holder(self, holder: Holder) -> None:
        """Removes an id whose branches are idle and settled."""
        for branch in holder.branches.values():
            assert not branch.record.is_open, f"{branch} is open"
            assert branch.is_settled, f"{branch} has yet to tell of an end"
            for producer_id in producer_ids(branch.record):
                del self.producers[producer_id]
            key = (branch.transactional_id, branch.number)
            self.unsettled.pop(key, None)
            branch.flush_at_ms = None
            self._note(BranchKey(*key), None, before=branch.size_bytes)
        del self.holders[holder.transactional_id]
        self._note(IdKey(holder.transactional_id), None, before=holder.size_bytes)

    def _note(self, key: Key, value: Value | None, *, before: int) -> int:
        """Counts its bytes in the state."""
        if self.is_loading:
            return before
        encoded_key = encode_key(key)
        encoded = None if value is None else encode_value(value)
        self.records[encoded_key] = encoded
        size = 0 if encoded is None else len(encoded_key) + len(encoded)
        self.state_bytes += size - before
        return size

    def confirm(self) -> None:
        """Adds a record that changes nothing: only the current leader can commit it."""
        self.records.setdefault(CONFIRMATION_KEY, None)

    # ------------------------------------------------------------ for the Ready

    def say(self, reply: Reply) -> None:
        self.outputs.append(reply)

    def decide(self, event: str, **fields: object) -> None:
        self.decisions.append(Decision(event, fields))


def _index_attempt(holder: Holder, branch: Branch, before: BranchRecord) -> None:
    holder.branches[branch.number] = branch
    if branch.number == 0:
        return
    record = branch.record
    if before.attempt is not None and before.attempt != record.attempt:
        del holder.attempts[before.attempt]
    holder.attempts[record.attempt] = branch
    if record.is_open:
        holder.idle.pop(branch.number, None)
    else:
        holder.idle[branch.number] = branch


def producer_ids(record: BranchRecord) -> set[ProducerId]:
    """All ids by which it must be found: the current one, and those whose end may be requested."""
    found = {record.producer_id}
    if record.last is not None:
        found.add(record.last.producer_id)
    found.update(ending.producer_id for ending in set(record.finishing.values()))
    return found


def topics_of(record: BranchRecord) -> set[TopicId]:
    """Topics of partitions that have joined, or have not stored an end yet."""
    participants = (*record.joined, *record.finishing)
    return {p.topic_id for p in participants if isinstance(p, PartitionParticipant)}
