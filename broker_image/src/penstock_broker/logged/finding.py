"""Finds the partition of an internal topic that holds a key, and its leader; creates the topic.

Every broker knows this from the image; the first broker that is asked has the topic created. What
happens in the partition is up to its host (`hosts`).
"""

import asyncio
from typing import Final

from penstock.core.types import BrokerId, PartitionState, ReplicaKey, TopicId
from penstock.errors import ClusterError, CurrentLeader, ErrorCode
from penstock_broker.clock import Clock
from penstock_broker.logged.topic import InternalTopic, Session, create_topic
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog

_TOPIC_WAIT_S: Final = 10.0
_CLUSTER_START_MS: Final = 30_000
_events = EventLog("logged")


class Finder:
    """See the module."""

    def __init__(
        self, topic: InternalTopic, view: ClusterView, session: Session, clock: Clock
    ) -> None:
        self.topic = topic
        self._view = view
        self._session = session
        self._clock = clock
        self._creating = asyncio.Lock()
        self._started_ms = clock.now_ms()

    @property
    def topic_id(self) -> TopicId | None:
        """None: the topic does not exist yet, or is not in this broker's image."""
        return self._view.names.get(self.topic.name)

    def partition_of(self, key: str) -> int:
        """The partition that holds `key`.

        Raises ClusterError: INVALID_REQUEST, NOT_COORDINATOR while there is no topic.
        """
        self.topic.check_key(key)
        topic_id = self.topic_id
        if topic_id is None:
            raise ClusterError(
                f"this cluster has stored no {self.topic.keeps} yet; ask {self.topic.find_call} "
                "first",
                ErrorCode.NOT_COORDINATOR,
            )
        return self.topic.place(key, len(self._view.topics[topic_id].partitions))

    def state(self, partition: int) -> PartitionState | None:
        """The controller's state of a partition; None: not in the image."""
        topic_id = self.topic_id
        return None if topic_id is None else self._view.state(ReplicaKey(topic_id, partition))

    def leader(self, key: str) -> BrokerId | None:
        """Leader of the partition that holds `key`; None: it has none. Raises as `partition_of`."""
        partition, topic_id = self.partition_of(key), self.topic_id
        assert topic_id is not None, "partition_of raises without a topic"
        return self._view.leader(ReplicaKey(topic_id, partition))

    def leaders(self) -> list[BrokerId | None]:
        """Leaders of all partitions, in order; [] = the topic does not exist, or not in the
        image."""
        topic_id = self.topic_id
        if topic_id is None:
            return []
        count = len(self._view.topics[topic_id].partitions)
        return [self._view.leader(ReplicaKey(topic_id, partition)) for partition in range(count)]

    def elsewhere(self, partition: int, broker_id: int) -> ClusterError:
        """The error for calls about a partition that this broker does not lead."""
        state = self.state(partition)
        leader = -1 if state is None else state.leader
        return ClusterError(
            f"broker {broker_id} does not coordinate {self.topic.name}/{partition}; "
            + (f"broker {leader} does" if leader >= 0 else "nobody does at the moment")
            + f": ask {self.topic.find_call} again",
            ErrorCode.NOT_COORDINATOR,
        )

    async def locate(self, key: str) -> tuple[int, CurrentLeader]:
        """The key's partition and its leader's address; creates the topic if necessary.

        Raises PenstockError: INVALID_REQUEST, LEADER_NOT_AVAILABLE, or the controller's error.
        """
        self.topic.check_key(key)
        if self.topic_id is None:
            await self._create()
        topic = self._view.topic(self.topic.name)
        partition = self.topic.place(key, len(topic.partitions))
        state = topic.partitions[partition]
        if self._view.leader(ReplicaKey(topic.topic_id, partition)) is None:
            raise ClusterError(
                f"nobody leads {self.topic.name}/{partition}, which holds {self.topic.keeps} "
                f"{key!r}; try again",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return partition, self._view.current_leader(state)

    async def _create(self) -> None:
        async with self._creating:
            if not self._view.complete or self.topic_id is not None:
                return
            up_ms = self._clock.now_ms() - self._started_ms
            settled = up_ms >= _CLUSTER_START_MS
            await create_topic(self.topic, self._session, self._view, settled=settled)
            _events.info("internal topic created", topic=self.topic.name)
            try:
                async with self._clock.timeout(_TOPIC_WAIT_S):
                    while self.topic_id is None:
                        await self._view.next_image()
            except TimeoutError:
                raise ClusterError(
                    f"{self.topic.name} was created and is not in this broker's metadata yet; "
                    "try again",
                    ErrorCode.LEADER_NOT_AVAILABLE,
                ) from None
