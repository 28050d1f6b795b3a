"""Stores and reads a group's offsets for a consumer: one request at a time, in order.

    Assignment.to_commit ──▶ CommitOffsetsStream at the coordinator ──▶ Assignment.committed
          │                      │ STALE_MEMBER_EPOCH: wait for the newer epoch, commit again
          │                      ├ UNKNOWN_MEMBER, FENCED_INSTANCE_ID: out of the group
          │                      ├ OFFSET_WENT_BACK: again, if only the rewind epoch is older
          │                      └ partitions refused for now: those again, until the time is up
          └ while one is in flight ──▶ CommitQueue ──▶ the next request

One at a time, so that an older commit never arrives after a newer one: committed offsets do not go
back (I18). A commit goes back only in a new rewind epoch, after a seek or when the log became
shorter (`Progress`): a copy of an older one that is still on its way is refused then. Commits
requested in the meantime share the next call. An automatic commit covers only what an earlier poll
returned; a failed one is logged, and the next one covers it. So it is not repeated for partitions
that are refused for now: a poll may be waiting.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.client.clock import loop_time_s
from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ConsumerConfig
from penstock.client.consumer.assignment import Assignment
from penstock.client.group.commit_queue import CommitBatch, CommitQueue, Done, Offsets, in_parts
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.group.wire import commit_to_wire, committed_from_wire
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, Lost, PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc.errors import error_from_wire

AUTO_COMMIT_S: Final = 5.0
"""How long an automatic commit tries: shorter than a user's commit, because other commits wait for
it."""

RENEWAL_S: Final = 3_600.0
"""How often a consumer without membership commits again what has not changed: its offsets expire
`offsets.retention.minutes` (a week) after their last commit."""

FindCommitted = Callable[
    [Mapping[TopicPartition, str]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]
]
"""Partitions with their topic ids -> their committed offsets; without a group, nothing."""

_log = logging.getLogger("penstock.client")


class MemberIdentity(NamedTuple):
    """Who commits. A consumer without membership: no member id, epoch -1."""

    member_id: str = ""
    member_epoch: int = -1


class Member(Protocol):
    """The consumer's membership as commits see it."""

    def identity(self) -> MemberIdentity:
        """Who commits now."""

    async def newer_epoch(self, than: int, timeout_s: float) -> None:
        """Waits until the member has another epoch, or the time is up."""

    def catch_up(self) -> None:
        """From here on, it is known what was lost up to now."""

    def fenced(self, code: ErrorCode) -> None:
        """A commit was refused: this consumer is no longer a member."""


class Committer:
    """One per consumer with a group id."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: GroupCalls,
        config: ConsumerConfig,
        assignment: Assignment,
        member: Member,
        tasks: BackgroundTasks,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._config = config
        self._assignment = assignment
        self._member = member
        self._tasks = tasks
        self._queue = CommitQueue()
        self._under_way = False
        self._answered_s: dict[TopicPartition, float] = {}
        self._timeout_s = config.request_timeout_ms / 1000

    async def commit(
        self, offsets: Offsets, timeout_s: float | None = None, *, repeats: bool = True
    ) -> None:
        """Stores `offsets`; makes no call if there are none.

        Returns when these offsets, or later ones of the same partitions, are stored. Raises
        ClusterError: the first partition's refusal (the others may be stored), or the coordinator's
        refusal of the whole call. `repeats`: a partition that is refused for now is sent again
        until `timeout_s` has passed.
        """
        if not offsets:
            return
        offsets = self._named(offsets)
        answered: asyncio.Future[PenstockError | None]
        answered = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not answered.done():
                answered.set_result(error)

        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._queue.add(offsets, timeout_s, done, repeats=repeats)
        if not self._under_way:
            # No commit is waiting: this task sends it itself, which saves a task.
            self._under_way = True
            try:
                await self._send(self._queue.take())
            finally:
                self._under_way = False
                self._go_on()
        error = await answered
        if error is not None:
            raise error

    def start(
        self, offsets: Offsets, callback: Callable[[PenstockError | None], None] | None
    ) -> None:
        """Like `commit`, but without waiting; the outcome goes to `callback`, or an error to the
        log."""
        done: Done = self._log_failure if callback is None else partial(_call_soon, callback)
        if not offsets:
            done(None)
            return
        self._queue.add(self._named(offsets), self._timeout_s, done)
        self._go_on()

    async def settle(self, timeout_s: float) -> None:
        """Waits until every commit that was started is answered, for at most `timeout_s`."""
        answered = asyncio.Event()
        if not self._under_way:
            return
        self._queue.add({}, timeout_s, lambda _: answered.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await answered.wait()

    async def commit_done(
        self, timeout_s: float, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """The automatic commit: what an earlier poll returned. Failures are logged; takes
        `timeout_s` at most, with all commits before it.

        Offsets in a commit in flight are waited for and not stored again: the user's commit may be
        ahead, and this one would go back behind it.
        """
        only = None if partitions is None else set(partitions)
        found = self._assignment.to_commit(only_done=True) | self.renewals(only_done=True)
        wanted = {
            where: offset
            for where, offset in found.items()
            if (only is None or where in only) and not self._queue.covers(where, offset)
        }
        if not wanted:
            await self.settle(timeout_s)
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.commit(wanted, timeout_s, repeats=False)
        except (PenstockError, TimeoutError) as error:
            then = "the next one covers it"
            if isinstance(error, PenstockError) and error.code is ErrorCode.OFFSET_WENT_BACK:
                then = (
                    "and the next ones may, until this consumer has passed the committed offset, "
                    "or seeks to it"
                )
                if wanted.keys() - self._assignment.may_be_sent(wanted).keys():
                    then = "and is not needed any more"  # its partition has left
            _log.warning(
                "group %s: automatic commit failed, %s: %s",
                self._coordinator.group_id,
                then,
                str(error) or f"no answer within {timeout_s:g} s",
            )

    def renewals(
        self, *, only_done: bool, at_once: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Unchanged offsets that a consumer without membership commits again, so that they do not
        expire: each once in `RENEWAL_S`, or `at_once`. Members' offsets do not expire."""
        if self._member.identity().member_id:
            return {}
        now_s = loop_time_s()
        return {
            where: offset
            for where, offset in self._assignment.unchanged(only_done=only_done).items()
            if at_once or now_s - self._answered_s.get(where, -RENEWAL_S) >= RENEWAL_S
        }

    async def run(self) -> None:
        """Commits automatically every `auto_commit_interval_ms`, until cancelled."""
        while True:
            await asyncio.sleep(self._config.auto_commit_interval_ms / 1000)
            await self.commit_done(AUTO_COMMIT_S)

    async def fetch(
        self, partitions: Mapping[TopicPartition, str], *, repeat: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of these partitions of topics with these ids; None = none.

        `repeat`: see `GroupCalls.fetch`. Raises PenstockError.
        """
        request = pb.FetchOffsetsRequest(
            group_id=self._coordinator.group_id,
            partitions=[
                pb.OffsetPartition(topic=where.topic, topic_id=topic_id, partition=where.partition)
                for where, topic_id in partitions.items()
            ],
        )
        if not partitions:
            return {}
        answer = await self._coordinator.fetch(request, self._timeout_s, repeat=repeat)
        return {
            TopicPartition(seen.topic, seen.partition): committed_from_wire(seen)
            for seen in answer.offsets
        }

    # ------------------------------------------------------------ inside

    def _log_failure(self, error: PenstockError | None) -> None:
        if error is not None:
            _log.warning("group %s: a commit failed: %s", self._coordinator.group_id, error)

    def _go_on(self) -> None:
        """Sends waiting commits, unless a task is already doing so."""
        if self._queue and not self._under_way:
            self._under_way = True
            task = self._tasks.spawn(self._send_all(), "commits")
            if task is None:
                self._end()
            else:  # it may be cancelled before its first step
                task.add_done_callback(lambda task: self._end() if task.cancelled() else None)

    async def _send_all(self) -> None:
        try:
            while self._queue:
                await self._send(self._queue.take())
        finally:
            self._end()

    def _end(self) -> None:
        """No more calls: at the end of the client, commits that still wait are never sent."""
        self._under_way = False
        for batch in self._queue.take_all():
            batch.fail(_closed())

    async def _send(self, batch: CommitBatch) -> None:
        """Stores what can be stored; every waiting caller gets the outcome."""
        try:
            await self._store(batch)
        finally:
            self._queue.over()
            batch.fail(_closed())  # no caller is left, unless this task was cancelled

    async def _store(self, batch: CommitBatch) -> None:
        """Sends it, and what is refused for now again. Callers hear as soon as it is known what
        has become of all their partitions."""
        deadline = loop_time_s() + batch.timeout_s
        pause_s = self._config.retry_backoff_ms / 1000
        left: Offsets = batch.offsets
        refused: dict[TopicPartition, PenstockError] = {}
        while left:
            try:
                found: dict[TopicPartition, PenstockError] = {}
                for part in in_parts(left):
                    found |= await self._ask(part, deadline)
            except PenstockError as error:  # it was repeated in there if it can be
                refused |= dict.fromkeys(left, error)
                break
            refused = {w: e for w, e in refused.items() if w not in left} | found
            may_repeat = batch.repeats and loop_time_s() + pause_s < deadline
            left = {w: left[w] for w, e in found.items() if may_repeat and e.retriable}
            batch.answer(refused, left)
            if left:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._config.retry_backoff_max_ms / 1000)
        batch.answer(refused)

    async def _ask(self, offsets: Offsets, deadline: float) -> dict[TopicPartition, PenstockError]:
        """The partitions that were refused, and why. Raises PenstockError if all were."""
        while True:
            identity, sent = self._member.identity(), offsets
            left_s = max(deadline - loop_time_s(), 0.1)

            def request(identity: MemberIdentity = identity) -> pb.CommitOffsetsRequest:
                nonlocal sent  # a partition may leave and come back between two attempts
                sent = self._assignment.may_be_sent(offsets)
                if not sent:
                    raise next(iter(_left(offsets).values()))
                return pb.CommitOffsetsRequest(
                    group_id=self._coordinator.group_id,
                    member_id=identity.member_id,
                    member_epoch=identity.member_epoch,
                    instance_id=self._config.group_instance_id if identity.member_id else "",
                    partitions=commit_to_wire(sent, self._topic_id),
                )

            try:
                answer = await self._coordinator.commit(request, left_s)
            except PenstockError as error:
                again = error.code is ErrorCode.STALE_MEMBER_EPOCH and identity.member_id
                if again and loop_time_s() < deadline:
                    await self._member.newer_epoch(identity.member_epoch, left_s)
                    if self._member.identity().member_epoch != identity.member_epoch:
                        continue
                if error.lost is Lost.MEMBERSHIP:
                    self._member.fenced(error.code)
                raise
            refused = self._note(sent, answer)
            newer = await self._in_newer_epoch(sent, refused) if identity.member_id else {}
            if newer:
                refused = {w: error for w, error in refused.items() if w not in newer}
                refused |= await self._ask(newer, deadline)
            return refused | _left(offsets.keys() - sent.keys())

    async def _in_newer_epoch(
        self, offsets: Offsets, refused: Mapping[TopicPartition, PenstockError]
    ) -> Offsets:
        """Those of a member that were refused because the group has a later rewind epoch, in that
        epoch, if they continue what is committed there.

        Only their owner commits a member's partitions. So a commit of this consumer that it took
        for lost was stored, or that of a former owner, after this one had asked where to begin.
        """
        behind = {
            where: offsets[where].topic_id
            for where, error in refused.items()
            if error.code is ErrorCode.OFFSET_WENT_BACK and offsets[where].rewind_epoch
        }
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        with suppress(PenstockError):  # then the next commit asks again
            found = await self.fetch(behind, repeat=False)
        newer = {}
        for where, committed in found.items():
            epoch = offsets[where].rewind_epoch
            if committed is None or committed.rewind_epoch <= epoch:
                continue
            known = self._assignment.committed(where, committed)
            if known and offsets[where].offset >= committed.offset:
                newer[where] = replace(offsets[where], rewind_epoch=committed.rewind_epoch)
        return newer

    def _note(
        self, offsets: Offsets, answer: pb.CommitOffsetsResponse
    ) -> dict[TopicPartition, PenstockError]:
        refused: dict[TopicPartition, PenstockError] = {}
        now_s = loop_time_s()
        for result in answer.results:
            where = TopicPartition(result.topic, result.partition)
            self._answered_s[where] = now_s
            if not result.HasField("error"):
                self._assignment.committed(where, offsets[where])
                continue
            seen = error_from_wire(result.error)
            refused[where] = ClusterError(f"{where}: {seen.message}", seen.code)
        return refused

    def _named(self, offsets: Offsets) -> Offsets:
        """With the topics that they count in, by what is known when they are committed: by the time
        that they are sent, a topic may have been deleted and created again."""
        return {
            where: offset if offset.topic_id else replace(offset, topic_id=self._topic_id(where))
            for where, offset in offsets.items()
        }

    def _topic_id(self, where: TopicPartition) -> str:
        state = self._assignment.states.get(where)
        if state is not None:
            return state.topic_id
        topic = self._cluster.view.topics.get(where.topic)
        return topic.topic_id if topic is not None else ""


def _call_soon(
    callback: Callable[[PenstockError | None], None], error: PenstockError | None
) -> None:
    """Not at once: an exception of the user's function must not end the commits after it."""
    asyncio.get_running_loop().call_soon(callback, error)


def _left(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PenstockError]:
    return {
        where: ClusterError(
            f"{where}: the partition left this consumer before the commit could be sent, which "
            "goes back behind what is committed, or is of a topic that was deleted: nothing was "
            "stored; whoever has the partition reads from the committed offset",
            ErrorCode.OFFSET_WENT_BACK,
        )
        for where in partitions
    }


def _closed() -> ClusterError:
    return ClusterError(
        "the client was closed, or the call was cancelled, before a commit was answered: it is "
        "unknown whether it was stored",
        ErrorCode.CLOSED,
    )
