"""The calls about this broker's scrub: read logs now, and how far it is."""

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.errors import error_to_wire
from penstock_broker.maintenance.scrub import Scrub
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.replica import Replica


class Scrubbing:
    """Answers for this broker alone: clients ask each one."""

    def __init__(self, view: ClusterView, scrub: Scrub, broker_id: int) -> None:
        self._view = view
        self._scrub = scrub
        self._broker_id = broker_id

    def start(self, request: pb.StartScrubRequest) -> pb.StartScrubResponse:
        """Has the replicas read that the request names."""
        try:
            self._check_exists(request)
        except PenstockError as error:
            return pb.StartScrubResponse(error=error_to_wire(error))

        def wanted(replica: Replica) -> bool:
            of_topic = request.topic in {"", replica.topic}
            return of_topic and (
                not request.HasField("partition") or request.partition == replica.key.partition
            )

        return pb.StartScrubResponse(replicas=self._scrub.start(wanted))

    def _check_exists(self, request: pb.StartScrubRequest) -> None:
        """Raises ClusterError."""
        if not request.topic:
            if request.HasField("partition"):
                raise ClusterError(
                    f"partition {request.partition} of which topic? The request names none",
                    ErrorCode.INVALID_REQUEST,
                )
            return
        topic = self._view.topic(request.topic)
        if request.HasField("partition") and request.partition >= len(topic.partitions):
            raise ClusterError(
                f"topic {request.topic} has partitions 0 to {len(topic.partitions) - 1}, not "
                f"{request.partition}",
                ErrorCode.UNKNOWN_PARTITION,
            )

    def describe(self) -> pb.DescribeScrubResponse:
        """How far it is now."""
        status = self._scrub.status()
        reading = status.reading
        return pb.DescribeScrubResponse(
            broker_id=self._broker_id,
            replicas=status.replicas,
            due=status.due,
            damaged=status.damaged,
            reading=None
            if reading is None
            else pb.ScrubbedLog(
                topic=reading.topic,
                partition=reading.key.partition,
                offset=status.offset,
                end_offset=status.end_offset,
                bytes_per_second=status.bytes_per_second,
            ),
            oldest_ms=max(0, status.oldest_ms),
            read_bytes=status.read_bytes,
            damage_found=status.damage_found,
            waits=status.waits,
            compared_ranges=status.compared_ranges,
            differences=[
                pb.LogDifference(
                    topic=replica.topic,
                    partition=replica.key.partition,
                    offsets=pb.OffsetSpan(first=one.within.start, last=one.within.end - 1),
                    leader=one.leader,
                    own=str(one.own),
                    leaders=str(one.leaders),
                    found_ms=one.found_ms,
                )
                for replica, one in status.differences
            ],
        )
