"""The call that deletes logs which belong to no topic of the cluster: a person names them (I22).

    DropOrphans ─▶ informed? ─▶ per log, under `changing`: an orphan, and in no topic? ─▶ dropped

A topic whose deletion the controller has forgotten leaves such logs on a broker that did not run
then, and no image will ever say that they may go. The lock is taken for each log, so that images
are not held up by many; what an image has brought meanwhile counts for the logs after it.
"""

from typing import Protocol

from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.errors import error_to_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.serving.callers import caller

_events = EventLog("orphans")


class Informed(Protocol):
    """Whether the newest image is of a controller that this broker is connected to
    (`metadata.session`)."""

    @property
    def is_informed(self) -> bool:
        """See there."""
        ...


class Orphans:
    """Answers for this broker alone: clients ask the one whose disk it is."""

    def __init__(
        self,
        broker_id: BrokerId,
        view: ClusterView,
        session: Informed,
        assignment: ReplicaAssignment,
    ) -> None:
        self._broker_id = broker_id
        self._view = view
        self._session = session
        self._assignment = assignment

    async def drop(self, request: pb.DropOrphansRequest) -> pb.DropOrphansResponse:
        """One result per log, in order; as a whole it is refused only by who is not informed.

        If the caller leaves in the middle, a log may be listed whose data is gone: dropping it
        again is no error.
        """
        try:
            self._check_informed()
        except PenstockError as error:
            return pb.DropOrphansResponse(error=error_to_wire(error))
        results: list[pb.OrphanResult] = []
        dropped: list[ReplicaKey] = []
        try:
            for log in request.logs:
                key = ReplicaKey(TopicId(log.topic_id), log.partition)
                result = pb.OrphanResult(topic_id=key.topic_id, partition=key.partition)
                try:
                    await self._drop(key, validate_only=request.validate_only)
                except PenstockError as error:
                    result.error.CopyFrom(error_to_wire(error))
                else:
                    dropped.append(key)
                results.append(result)
        finally:
            if dropped and not request.validate_only:
                _events.warning(
                    "orphans dropped",
                    by=caller().principal,
                    count=len(dropped),
                    topics=sorted({key.topic_id for key in dropped}),
                )
        return pb.DropOrphansResponse(results=results)

    async def _drop(self, key: ReplicaKey, *, validate_only: bool) -> None:
        async with self._assignment.changing:
            self._check_informed()
            topic = self._view.topics.get(key.topic_id)
            if topic is not None:
                raise ClusterError(
                    f"topic {topic.name!r} has {key}: only logs of topics that the cluster does "
                    "not know are dropped",
                    ErrorCode.INVALID_REQUEST,
                )
            if not self._assignment.is_orphan(key):
                raise ClusterError(
                    f"{key} is not an orphan on broker {self._broker_id}; it may have been dropped "
                    "before",
                    ErrorCode.INVALID_REQUEST,
                )
            if not validate_only:
                await self._assignment.drop_orphan(key)

    def _check_informed(self) -> None:
        """Raises ClusterError(CONTROLLER_UNAVAILABLE)."""
        if not (self._session.is_informed and self._view.complete):
            raise ClusterError(
                f"broker {self._broker_id} has not heard from a controller in a session that lasts "
                "which topics there are: it cannot tell orphans from what is to come back, and "
                "drops nothing; try again",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            )
