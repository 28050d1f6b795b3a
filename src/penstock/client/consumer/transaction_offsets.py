"""A consumer's offsets in a producer's transaction: they take effect only if it commits.

    what is in hand ──▶ CommitOffsets(transactional id, producer id, epoch; member id, epoch)
       │                     │ loading, moved, other transactions: asked again
       │                     └ STALE_MEMBER_EPOCH: again, while the partitions never left
       └ given up, or partitions that left meanwhile ──▶ the transaction fails

Each commit is a separate call, besides the stream of the others: it may wait for the transaction's
coordinator, and no other commit should wait behind it. If a partition left this member and came
back, others have read it in the meantime, so its records may be in their transactions: the new
epoch must not validate the old records (I15). The same holds if it comes back with the same epoch,
as when the coordinator never noticed: its start offset was looked up before these offsets were
stored.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.clock import loop_time_s
from penstock.client.config import ConsumerConfig
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import Member
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.commit_queue import Offsets, in_parts
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.wire import commit_to_wire
from penstock.core.types import ProducerIdentity, TopicPartition
from penstock.errors import ClusterError, ErrorCode, Lost, MisuseError, PenstockError
from penstock.proto.v1 import group_pb2 as pb


class Scope(NamedTuple):
    """The transaction that the offsets belong to."""

    transactional_id: str
    identity: ProducerIdentity


def check_source(config: ConsumerConfig, cluster_id: str, of_transaction: str) -> None:
    """Raises MisuseError if this consumer's offsets cannot be committed in a transaction of the
    cluster `of_transaction`."""
    if config.enable_auto_commit:
        raise MisuseError(
            "commit_offsets needs a consumer with enable_auto_commit=False: automatic "
            "commits take effect even if the transaction aborts"
        )
    if cluster_id != of_transaction:
        raise MisuseError(
            f"the consumer reads cluster {cluster_id}, but the transaction belongs to cluster "
            f"{of_transaction}: offsets can only be committed in a transaction of the same cluster"
        )


class TransactionOffsets:
    """Of one consumer with a group id. Owned by its event loop."""

    def __init__(
        self,
        coordinator: GroupCalls,
        config: ConsumerConfig,
        assignment: Assignment,
        member: Member,
    ) -> None:
        self._coordinator = coordinator
        self._config = config
        self._assignment = assignment
        self._member = member

    async def store(self, scope: Scope, offsets: Offsets, topic_ids: Mapping[str, str]) -> None:
        """Returns when the group's coordinator has stored all of them as pending.

        `topic_ids`: for offsets of partitions that are not assigned. Raises PenstockError: at least
        one was refused, or there was no answer within `request_timeout_ms`; the others may take
        effect if the transaction commits, so it must not.
        """
        states = self._assignment.states
        held = {where: states.get(where) for where in offsets}
        deadline = loop_time_s() + self._config.request_timeout_ms / 1000
        for part in in_parts(offsets):
            await self._store_part(scope, part, held, topic_ids, deadline)
        if not self._never_left(held):
            raise ClusterError(
                f"partitions of group {self._coordinator.group_id!r} were taken from this member "
                "while their offsets were being stored, so other members may have started at "
                "older offsets: the transaction must not commit",
                ErrorCode.STALE_MEMBER_EPOCH,
            )

    # ------------------------------------------------------------ inside

    async def _store_part(
        self,
        scope: Scope,
        offsets: Offsets,
        held: Mapping[TopicPartition, FetchState | None],
        ids: Mapping[str, str],
        deadline: float,
    ) -> None:
        """One call, again with a newer epoch of the member. `held`: all partitions."""
        while True:
            who = self._member.identity()
            request = pb.CommitOffsetsRequest(
                group_id=self._coordinator.group_id,
                member_id=who.member_id,
                member_epoch=who.member_epoch,
                instance_id=self._config.group_instance_id if who.member_id else "",
                partitions=commit_to_wire(offsets, lambda where: ids.get(where.topic, "")),
                transactional_id=scope.transactional_id,
                producer_id=scope.identity.producer_id,
                producer_epoch=scope.identity.epoch,
            )
            left_s = max(deadline - loop_time_s(), 0.1)
            try:
                await self._coordinator.commit_within(request, left_s)
            except PenstockError as error:
                again = error.code is ErrorCode.STALE_MEMBER_EPOCH and who.member_id
                if again and loop_time_s() < deadline:
                    await self._member.newer_epoch(who.member_epoch, left_s)
                    if self._kept(held, who.member_id, who.member_epoch):
                        continue
                if error.lost is Lost.MEMBERSHIP and not again:
                    self._member.fenced(error.code)
                raise
            else:
                return

    def _kept(
        self,
        held: Mapping[TopicPartition, FetchState | None],
        member_id: str,
        member_epoch: int,
    ) -> bool:
        """The member has a new epoch, and none of these partitions was revoked in the meantime."""
        now = self._member.identity()
        return (
            now.member_id == member_id
            and now.member_epoch not in (0, member_epoch)
            and self._never_left(held)
        )

    def _never_left(self, held: Mapping[TopicPartition, FetchState | None]) -> bool:
        self._member.catch_up()
        return all(self._assignment.states.get(where) is state for where, state in held.items())
