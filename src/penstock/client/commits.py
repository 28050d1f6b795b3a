"""Stores and reads a group's offsets for a consumer: one commit at a time, in order.

    Assignment.to_commit ──▶ CommitOffsets at the coordinator ──▶ Assignment.committed
                                 │ STALE_MEMBER_EPOCH: wait for the newer epoch, commit again
                                 └ UNKNOWN_MEMBER, FENCED_INSTANCE_ID: out of the group

One at a time, so that an older commit never arrives behind a newer one: committed offsets do not
go back (I18). An automatic commit covers only what an earlier poll handed out; a failed one is
logged and covered by the next.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final, NamedTuple, Protocol

from penstock.client.assignment import Assignment
from penstock.client.cluster import Cluster
from penstock.client.config import ConsumerConfig
from penstock.client.coordinator import Coordinator
from penstock.client.group_model import OffsetAndMetadata
from penstock.client.group_wire import commit_to_wire, committed_from_wire
from penstock.client.leaders import known_partition, list_offsets
from penstock.client.membership_contract import FENCED
from penstock.client.model import LATEST
from penstock.core.limits import COMMIT_METADATA_MAX_BYTES
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc.errors import error_from_wire

AUTO_COMMIT_S: Final = 5.0
"""How long an automatic commit tries: shorter than a user's, because others wait their turn."""
Offsets = Mapping[TopicPartition, OffsetAndMetadata]

_log = logging.getLogger("penstock.client")


class Identity(NamedTuple):
    """Who commits. A consumer without membership: no member id, epoch -1."""

    member_id: str = ""
    member_epoch: int = -1


class Member(Protocol):
    """The consumer's membership as commits see it."""

    def identity(self) -> Identity:
        """Who commits now."""

    async def newer_epoch(self, than: int, timeout_s: float) -> None:
        """Waits until the member has another epoch, or the time is over."""

    def fenced(self, code: ErrorCode) -> None:
        """A commit was refused: this is no member any more."""


class Committer:
    """One per consumer with a group id."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        config: ConsumerConfig,
        assignment: Assignment,
        member: Member,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._config = config
        self._assignment = assignment
        self._member = member
        self._turn = asyncio.Lock()
        self._timeout_s = config.request_timeout_ms / 1000

    async def commit(self, offsets: Offsets | None = None, timeout_s: float | None = None) -> None:
        """Stores `offsets`; None = everything handed out so far. Nothing to store is no call.

        Raises ClusterError: the first partition's refusal (the others may be stored), or what
        the coordinator said to all.
        """
        async with self._turn:
            wanted = self._assignment.to_commit(only_done=False) if offsets is None else offsets
            await self._store(wanted, self._timeout_s if timeout_s is None else timeout_s)

    async def commit_for(
        self, offsets: Offsets, callback: Callable[[PenstockError | None], None] | None
    ) -> None:
        """As `commit`; the outcome goes to `callback`, or an error to the log."""
        try:
            await self.commit(offsets)
        except PenstockError as error:
            if callback is None:
                _log.warning("group %s: a commit failed: %s", self._coordinator.group_id, error)
            else:
                callback(error)
        else:
            if callback is not None:
                callback(None)

    async def commit_done(
        self, timeout_s: float, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """The automatic commit: what an earlier poll handed out. Failures are logged."""
        only = None if partitions is None else set(partitions)
        async with self._turn:
            wanted = {
                where: offset
                for where, offset in self._assignment.to_commit(only_done=True).items()
                if only is None or where in only
            }
            try:
                await self._store(wanted, timeout_s)
            except PenstockError as error:
                _log.warning(
                    "group %s: automatic commit failed, the next one covers it: %s",
                    self._coordinator.group_id,
                    error,
                )

    async def run(self) -> None:
        """Commits automatically every `auto_commit_interval_ms`, until cancelled."""
        while True:
            await asyncio.sleep(self._config.auto_commit_interval_ms / 1000)
            await self.commit_done(AUTO_COMMIT_S)

    async def fetch(
        self, partitions: Mapping[TopicPartition, str], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is committed for these partitions of topics with these ids; None = nothing."""
        request = pb.FetchOffsetsRequest(
            group_id=self._coordinator.group_id,
            partitions=[
                pb.OffsetPartition(topic=where.topic, topic_id=topic_id, partition=where.partition)
                for where, topic_id in partitions.items()
            ],
        )
        if not partitions:
            return {}
        answer: pb.FetchOffsetsResponse = await self._coordinator.call(
            lambda stub: stub.FetchOffsets,
            request,
            self._timeout_s if timeout_s is None else timeout_s,
        )
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for seen in answer.offsets:
            if seen.HasField("error"):
                raise error_from_wire(seen.error)
            found[TopicPartition(seen.topic, seen.partition)] = committed_from_wire(seen)
        return found

    async def checked(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The user's offsets as they can be stored; raises MisuseError for what makes no sense."""
        wanted = {
            where: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for where, offset in offsets.items()
        }
        for where, offset in wanted.items():
            await known_partition(self._cluster, where)
            if not 0 <= offset.offset < 2**63:
                raise MisuseError(f"{where}: cannot commit {offset.offset}; offsets begin at 0")
            size = len(offset.metadata.encode())
            if size > COMMIT_METADATA_MAX_BYTES:
                raise MisuseError(
                    f"{where}: metadata of {size} bytes; "
                    f"at most {COMMIT_METADATA_MAX_BYTES} are kept"
                )
        await self._check_ends({where: offset.offset for where, offset in wanted.items()})
        return wanted

    # ------------------------------------------------------------ inside

    async def _check_ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Asks the leaders about offsets this consumer has not come to; the coordinator cannot."""
        states = self._assignment.states
        asked = {
            where: LATEST
            for where, offset in offsets.items()
            if where not in states or offset > (states[where].position or 0)
        }
        ends = await list_offsets(self._cluster, asked, self._timeout_s)
        for where, end in ends.items():
            if offsets[where] > end.offset:
                raise MisuseError(
                    f"{where}: cannot commit {offsets[where]}, the log ends at {end.offset}",
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                )

    async def _store(self, offsets: Offsets, timeout_s: float) -> None:
        if not offsets:
            return
        deadline = monotonic() + timeout_s
        while True:
            identity = self._member.identity()
            request = pb.CommitOffsetsRequest(
                group_id=self._coordinator.group_id,
                member_id=identity.member_id,
                member_epoch=identity.member_epoch,
                instance_id=self._config.group_instance_id if identity.member_id else "",
                partitions=commit_to_wire(offsets, self._topic_id),
            )
            left_s = max(deadline - monotonic(), 0.1)
            try:
                answer: pb.CommitOffsetsResponse = await self._coordinator.call(
                    lambda stub: stub.CommitOffsets, request, left_s
                )
            except PenstockError as error:
                again = error.code is ErrorCode.STALE_MEMBER_EPOCH and identity.member_id
                if again and monotonic() < deadline:
                    await self._member.newer_epoch(identity.member_epoch, left_s)
                    if self._member.identity().member_epoch != identity.member_epoch:
                        continue
                if error.code in FENCED:
                    self._member.fenced(error.code)
                raise
            self._note(offsets, answer)
            return

    def _note(self, offsets: Offsets, answer: pb.CommitOffsetsResponse) -> None:
        refused: PenstockError | None = None
        for result in answer.results:
            where = TopicPartition(result.topic, result.partition)
            if not result.HasField("error"):
                self._assignment.committed(where, offsets[where].offset)
                continue
            seen = error_from_wire(result.error)
            refused = refused or ClusterError(f"{where}: {seen.message}", seen.code)
        if refused is not None:
            raise refused

    def _topic_id(self, where: TopicPartition) -> str:
        state = self._assignment.states.get(where)
        if state is not None:
            return state.topic_id
        topic = self._cluster.view.topics.get(where.topic)
        return topic.topic_id if topic is not None else ""
