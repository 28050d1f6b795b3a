"""Which replicas this broker has: opened and removed as the controller's images say.

    image ─▶ assign ────────▶ logs that are new here are opened; every machine gets its state
          ├▶ drop_former ───▶ what the image wants gone from here is deleted ─▶ dropped: reported
          ├▶ drop_topics ───▶ so are partitions of deleted topics
          └▶ retire_unknown ▶ what a full image does not name stops; its data stays (I22)
    person ─▶ drop_orphan ───▶ data that no image will ever name is deleted

That an image does not name a partition deletes nothing: only an explicit wish does, of the
controller, or of a person (`services.orphans`). What cannot be deleted now stays an orphan
(`ReplicaSet.orphans`) until the next full image asks for it again. A log that is missing is never
taken for an empty one: `_is_lost` looks for it before a machine begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable

from penstock.core.replication.contract import MISSING, LogDamaged, RecoveredLog
from penstock.core.types import NO_EPOCH, PartitionState, ReplicaKey, TopicId
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.metadata.image import Topic
from penstock_broker.observability import EventLog
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter
from penstock_broker.store.interface import Slot

_events = EventLog("replicas")


class ReplicaAssignment:
    """See the module. Call everything but `report_orphans` under `changing`."""

    def __init__(
        self, replicas: ReplicaSet, writer: LogWriter, *, data_intact: bool = True
    ) -> None:
        """`data_intact`: what this run says when it registers first. Else no controller relies on
        what it has, and an empty log outside the ISR is no news."""
        self.changing = asyncio.Lock()
        """Held by who opens or removes replicas, because that takes awaits."""
        self.dropped: dict[ReplicaKey, int] = {}
        """Partitions of which nothing is here any more, because this version asks for that."""
        self._replicas = replicas
        self._writer = writer
        self._data_intact = data_intact

    async def assign(self, topics: Iterable[Topic], *, emptied: ReplicaKey | None = None) -> None:
        """Opens replicas that are new here and gives every machine its partition's state.

        `emptied`: its log has just been dropped to be copied again, because nobody relies on it.
        """
        replicas = self._replicas
        wanted: list[tuple[Topic, ReplicaKey, PartitionState]] = []
        for topic in topics:
            for index, state in enumerate(topic.partitions):
                key = ReplicaKey(topic.topic_id, index)
                member = replicas.broker_id in state.replicas or replicas.broker_id in state.adding
                if member or key in replicas.by_key:
                    wanted.append((topic, key, state))
        missing = [key for _, key, _ in wanted if key not in replicas.by_key]
        opened = await self._writer.open(missing) if missing else {}
        lost = {
            opened[key][0]: state.leader_epoch
            for _, key, state in wanted
            if key in opened and key != emptied and self._is_lost(state, opened[key][1])
        }
        voided = await self._writer.void(lost) if lost else {}
        for topic, key, state in wanted:
            replica = replicas.by_key.get(key)
            if replica is None:
                slot, log = opened[key]
                replica = replicas.add(key, topic.name, slot, voided.get(slot, log))
                if isinstance(log, ClusterError):
                    replicas.found_damaged(replica, LogDamaged(log, unopened=True))
                if slot in voided:
                    _events.error("the log of a replica is missing", replica=replica)
                    replicas.damage.note_missing(key, state.leader_epoch)
            replicas.assigned(replica, topic, state)

    def _is_lost(self, state: PartitionState, log: RecoveredLog | ClusterError) -> bool:
        """Nothing is in the log, but who is eligible to lead must have stored some of it (I22).

        Those are the ISR, and others that no image shows: a controller, which knows them, is asked
        about every replica. In its first epoch a partition is new.
        """
        if not isinstance(log, RecoveredLog) or state.leader_epoch <= 1:
            return False
        eligible = state.replicas if self._data_intact else state.isr
        return self._replicas.broker_id in eligible and _never_stored(log)

    async def drop_topics(self, topic_ids: Iterable[TopicId]) -> None:
        """Removes replicas of topics that the controller says were deleted, with their data."""
        doomed = frozenset(topic_ids)
        self.dropped = {k: v for k, v in self.dropped.items() if k.topic_id not in doomed}
        for replica in [r for r in self._replicas.by_key.values() if r.key.topic_id in doomed]:
            error = ClusterError(f"topic {replica.topic!r} was deleted", ErrorCode.UNKNOWN_TOPIC)
            self._replicas.remove(replica, error)
        slots = await self._drop([key for key in self._replicas.orphans if key.topic_id in doomed])
        if slots:
            _events.info("replicas dropped: topics deleted", topics=sorted(doomed), slots=slots)

    async def drop_former(self, topics: Iterable[Topic]) -> None:
        """Removes replicas that the controller says are to go from here, with their data.

        The version of the image must be stored: no image before it is applied again, in which this
        broker had the partition. So `member_version` is enough to tell an old wish from a new one.
        """
        gone: dict[ReplicaKey, int] = {}
        for topic in topics:
            for index, state in enumerate(topic.partitions):
                key = ReplicaKey(topic.topic_id, index)
                self.dropped.pop(key, None)
                replica = self._replicas.by_key.get(key)
                known = 0 if replica is None else replica.machine.member_version
                if self._replicas.broker_id not in state.dropping or state.version <= known:
                    continue
                gone[key] = state.version
                if replica is not None:
                    where = f"{replica} is on the brokers {listed(state.replicas)} now"
                    self._replicas.remove(replica, ClusterError(where, ErrorCode.NOT_LEADER))
        slots = await self._drop(gone)
        self.dropped |= gone
        if slots:
            _events.info("replicas dropped: not wanted here", count=len(slots), slots=slots)

    def is_orphan(self, key: ReplicaKey) -> bool:
        """There is a log here that belongs to no replica."""
        return key in self._replicas.orphans

    async def drop_orphan(self, key: ReplicaKey) -> None:
        """Deletes an orphan's log, durably: no topic of the newest image has it, and a person wants
        that. Raises what the store raises; the orphan stays then."""
        await self._drop([key])

    async def _drop(self, keys: Iterable[ReplicaKey]) -> list[Slot]:
        """Deletes logs that belong to no replica any more; returns those that were there.

        Raises what the store raises, for example if the disk is full: what is not deleted then
        stays an orphan, and is deleted when the next full image asks for it again.
        """
        slots = []
        for key in keys:
            slot = self._replicas.orphans.get(key)
            if slot is not None:
                await self._writer.drop(slot)
                del self._replicas.orphans[key]
                self._replicas.removals += 1
                slots.append(slot)
        return slots

    def retire_unknown(self, known: Container[TopicId]) -> None:
        """Stops replicas of topics that are not in a full image; their data stays (I22)."""
        for replica in [r for r in self._replicas.by_key.values() if r.key.topic_id not in known]:
            error = ClusterError(
                f"topic {replica.topic!r} is not in the cluster's metadata any more",
                ErrorCode.UNKNOWN_TOPIC,
            )
            self._replicas.remove(replica, error)

    def report_orphans(self) -> None:
        """Logs partitions whose data is here but unknown to the cluster: kept, never deleted
        (I22)."""
        orphans = self._replicas.orphans
        if orphans:
            _events.warning(
                "data of unknown partitions is kept until penstock broker drop-orphans",
                count=len(orphans),
                first=[str(key) for key in list(orphans)[:5]],
            )

    async def reopen(self, replica: Replica, topic: Topic, *, empty: bool) -> None:
        """Replaces a replica that has stopped by one on what is stored of its log, as a start does.

        `empty`: nothing of it is kept; the new one copies the log from the leader.
        """
        if empty:
            await self._writer.drop(replica.slot)
            self._replicas.removals += 1
        again = ClusterError(f"{replica} is opened again; try again", ErrorCode.NOT_LEADER)
        self._replicas.remove(replica, again, keeps_log=not empty)
        await self.assign([topic], emptied=replica.key if empty else None)


def _never_stored(log: RecoveredLog) -> bool:
    """Not even the first epoch; or a former run found that (`void`), and has followed nobody."""
    checkpoint = log.checkpoint
    return checkpoint.leader_epoch == NO_EPOCH or checkpoint.high_watermark == MISSING
