"""Turns the names in a request into a replica led here, or the error that names the leader.

Every data-plane call names topic and partition, and optionally topic id and leader epoch; the
checks and their errors are the same for all calls (guarantees: I21). Whether the caller may do it
is asked first: what is denied tells nothing about the topic.
"""

from penstock.core.authorization import Kind, Operation
from penstock.core.replication.contract import Marks
from penstock.core.types import ReplicaKey
from penstock.errors import (
    TRAITS,
    ClusterError,
    CurrentLeader,
    ErrorCode,
    NotLeaderError,
    PenstockError,
)
from penstock_broker.metadata.image import ClusterView, Topic
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.serving.callers import Caller


class Locator:
    """Finds replicas for requests."""

    def __init__(self, view: ClusterView, replicas: ReplicaSet) -> None:
        self._view = view
        self._replicas = replicas
        self.access = view.access

    def replica(
        self,
        topic: str,
        topic_id: str,
        partition: int,
        operation: Operation,
        who: Caller | None = None,
    ) -> tuple[Topic, Replica]:
        """A replica stored here, leader or not, for an operation on its topic.

        `who` None: the caller of the call that is being handled. Raises ClusterError: as
        `Access.check`, as `ClusterView.partition`, or NotLeaderError if none is stored here.
        """
        self.access.check(operation, Kind.TOPIC, topic, who)
        found, state = self._view.partition(topic, topic_id, partition)
        replica = self._replicas.by_key.get(ReplicaKey(found.topic_id, partition))
        if replica is None:
            raise NotLeaderError(
                f"broker {self._replicas.broker_id} has no replica of {topic}/{partition}; "
                f"broker {state.leader} leads it in epoch {state.leader_epoch}",
                leader=self._view.current_leader(state),
            )
        return found, replica

    def led(
        self, topic: str, topic_id: str, partition: int, epoch: int, operation: Operation
    ) -> tuple[Replica, Marks]:
        """A replica led here, in the epoch that the client names (0: any).

        Raises as `replica`, and NotLeaderError with NOT_LEADER, FENCED_LEADER_EPOCH or
        UNKNOWN_LEADER_EPOCH; or as a machine that stopped itself says (`client_error`).
        """
        _, replica = self.replica(topic, topic_id, partition, operation)
        marks = replica.marks
        stopped = replica.machine.client_error
        if stopped is not None:
            raise self.explained(replica, stopped)
        if not marks.is_leader:
            raise NotLeaderError(
                f"broker {self._replicas.broker_id} does not lead {replica}; broker "
                f"{marks.leader} does in epoch {marks.leader_epoch}",
                leader=self._leader(replica),
            )
        if epoch not in {0, marks.leader_epoch}:
            older = epoch < marks.leader_epoch
            raise NotLeaderError(
                f"the request names leader epoch {epoch} of {replica}, but the broker is in "
                f"epoch {marks.leader_epoch}: " + ("refresh metadata" if older else "try again"),
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
                self._leader(replica),
            )
        return replica, marks

    def assigned(self, topic: str, topic_id: str, partition: int, operation: Operation) -> Replica:
        """A replica that is to lead, by the newest image, whether or not its machine runs.

        Raises as `replica`, and NotLeaderError if another one is.
        """
        _, replica = self.replica(topic, topic_id, partition, operation)
        state = self._view.state(replica.key)
        if state is None or state.leader != self._replicas.broker_id:
            leader = None if state is None else state.leader
            raise NotLeaderError(
                f"broker {self._replicas.broker_id} does not lead {replica}; broker {leader} does",
                leader=self._leader(replica),
            )
        return replica

    def explained(self, replica: Replica, error: PenstockError) -> PenstockError:
        """Adds the leader's address, which a machine does not know, to its error."""
        if TRAITS[error.code].names_leader:
            return NotLeaderError(error.message, error.code, self._leader(replica))
        return error

    def _leader(self, replica: Replica) -> CurrentLeader | None:
        state = self._view.state(replica.key)
        return None if state is None else self._view.current_leader(state)


def unknown_outcome(what: str) -> ClusterError:
    """For requests cut short, when it is unknown whether they took effect."""
    return ClusterError(what, ErrorCode.REQUEST_TIMED_OUT)
