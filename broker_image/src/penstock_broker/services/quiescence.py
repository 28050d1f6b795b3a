"""Whether this broker could stop now, all at once with the others, and nothing would be lacking.

    fsync all that is stored ─▶ look at every replica, in one turn of the loop ─▶ quiet, or why not

What it leads is quiet once every replica is in sync and the log ends at the high watermark: then
all of them have written all of it. That they have fsynced it, they say themselves: each broker
fsyncs before it answers, and what it stores did not grow meanwhile. A follower may have received
more after its answer than before the leader's; so whoever asks does so twice, of all brokers, and
compares the ends of the logs (`log_ends`).
"""

from collections.abc import Iterator
from typing import Final

from penstock.core.types import ReplicaKey
from penstock.proto.v1 import admin_pb2 as pb
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter

FLUSH_S: Final = 5.0
"""How long an answer waits for the fsync; a disk that takes longer is not quiet."""
_NAMED_MAX: Final = 5
_NAME_CHARS: Final = 300


class Quiescence:
    """Of one broker."""

    def __init__(self, view: ClusterView, replicas: ReplicaSet, writer: LogWriter) -> None:
        self._view = view
        self._replicas = replicas
        self._writer = writer

    async def describe(self) -> pb.DescribeQuiescenceResponse:
        """Fsyncs only while the cluster hibernates: else it is not quiet for long."""
        before = flushed = None
        if self._view.hibernating:
            before = self._log_ends()
            self._writer.sync()
            flushed = await self._writer.drained(FLUSH_S)
        log_ends = self._log_ends()
        waits = []
        if not self._view.hibernating:
            waits.append("this broker has not heard that the cluster hibernates")
        elif not flushed:
            waits.append(f"writes that were not fsynced within {FLUSH_S:.0f} s")
        elif before != log_ends:
            waits.append("writes that came while it fsynced")
        waits += self._unquiet()
        more = len(waits) - _NAMED_MAX
        named = [wait[:_NAME_CHARS] for wait in waits[:_NAMED_MAX]]
        return pb.DescribeQuiescenceResponse(
            broker_id=self._replicas.broker_id,
            hibernating=self._view.hibernating,
            metadata_version=self._view.metadata_version,
            quiet=not waits,
            waiting_for=[*named, f"{more} more"] if more > 0 else named,
            log_ends=log_ends,
        )

    def _log_ends(self) -> int:
        here = self._replicas.by_key.values()
        return sum(one.marks.log_end_offset for one in here if not self._copies(one))

    def _copies(self, replica: Replica) -> bool:
        """Whether nothing relies on it yet: a copy goes on after the wake, and no switch ends it
        before."""
        state = self._view.state(replica.key)
        return state is not None and self._replicas.broker_id in state.adding

    def _unquiet(self) -> list[str]:
        found = [self._lacks(replica) for replica in self._replicas.by_key.values()]
        return [*filter(None, found), *self._without_leader()]

    def _lacks(self, replica: Replica) -> str:
        """What a replica led here lacks, or one that is broken; empty: nothing, or others say."""
        if replica.machine.error is not None:
            return f"{replica}: its replica here has stopped: {replica.machine.error}"
        marks, state = replica.marks, self._view.state(replica.key)
        if not marks.is_leader or state is None:
            return ""
        away = sorted(set(state.replicas) - set(marks.isr))
        if away:
            return f"{replica}: replicas {away} are not in sync"
        if state.damaged:
            return f"{replica}: it has a damaged replica"
        missing = marks.log_end_offset - marks.high_watermark
        return f"{replica}: {missing} records are not on all replicas yet" if missing else ""

    def _without_leader(self) -> Iterator[str]:
        """Said by every broker, or by the one that is to lead and does not: nobody else speaks for
        these."""
        for topic in self._view.topics.values():
            for index, state in enumerate(topic.partitions):
                if state.leader < 0:
                    yield f"{topic.name}/{index}: it has no leader"
                elif state.leader == self._replicas.broker_id:
                    replica = self._replicas.by_key.get(ReplicaKey(topic.topic_id, index))
                    if replica is None or not replica.marks.is_leader:
                        yield f"{topic.name}/{index}: its leader does not lead it yet"
