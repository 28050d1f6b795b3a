"""The admin's calls about damage that brokers find in their logs."""

from collections.abc import Iterable, Mapping

from penstock.client.admin.asking import Asking, checked
from penstock.client.admin.damage_model import LogDifference, ScrubbedLog, ScrubDescription
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.leaders import Answers, ask_leaders
from penstock.client.model import OffsetSpan
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.errors import error_from_wire


async def start_scrub(asking: Asking, topic: str | None, partition: int | None) -> int:
    """See `AsyncAdmin.start_scrub`."""
    if partition is not None and topic is None:
        raise MisuseError(f"partition {partition} of which topic? Name the topic as well")
    request = pb.StartScrubRequest(
        cluster_id=await asking.cluster_id(), topic=topic or "", partition=partition
    )
    replicas = await asking.each(
        lambda connection: connection.admin.StartScrub,
        request,
        lambda answer: checked(answer).replicas,
    )
    return sum(replicas.values())


async def describe_scrub(
    asking: Asking, broker_ids: Iterable[int] | None = None
) -> list[ScrubDescription]:
    """See `AsyncAdmin.describe_scrub`."""
    request = pb.DescribeScrubRequest(cluster_id=await asking.cluster_id())
    found = await asking.each(
        lambda connection: connection.admin.DescribeScrub,
        request,
        lambda answer: _from_wire(checked(answer)),
        broker_ids,
    )
    return list(found.values())


async def accept_loss(
    asking: Asking,
    where: TopicPartition,
    offsets: OffsetSpan,
    without: Iterable[int],
    *,
    validate_only: bool,
) -> tuple[OffsetSpan, ...]:
    """See `AsyncAdmin.accept_loss`."""
    cluster_id, silent = await asking.cluster_id(), list(without)

    async def call(
        connection: Connection, part: Mapping[TopicPartition, OffsetSpan], timeout_s: float
    ) -> Answers[tuple[OffsetSpan, ...]]:
        answers: dict[TopicPartition, tuple[OffsetSpan, ...] | PenstockError] = {}
        for one, asked in part.items():
            request = pb.AcceptLossRequest(
                cluster_id=cluster_id,
                topic=one.topic,
                partition=one.partition,
                offsets=pb.OffsetSpan(first=asked.first, last=asked.last),
                without=silent,
                validate_only=validate_only,
            )
            answer = await connection.call(connection.admin.AcceptLoss, request, timeout_s)
            answers[one] = (
                error_from_wire(answer.error)
                if answer.HasField("error")
                else tuple(OffsetSpan(lost.first, lost.last) for lost in answer.lost)
            )
        return answers

    # A successor would say that nothing is lost if this leader has given it up meanwhile.
    answers = await ask_leaders(
        asking.cluster, {where: offsets}, call, asking.timeout_s, patient=True
    )
    return answers[where]


def _from_wire(answer: pb.DescribeScrubResponse) -> ScrubDescription:
    reading = answer.reading if answer.HasField("reading") else None
    return ScrubDescription(
        broker_id=answer.broker_id,
        replicas=answer.replicas,
        due=answer.due,
        damaged=answer.damaged,
        reading=None
        if reading is None
        else ScrubbedLog(
            TopicPartition(reading.topic, reading.partition),
            reading.offset,
            reading.end_offset,
            reading.bytes_per_second,
        ),
        oldest_ms=answer.oldest_ms,
        read_bytes=answer.read_bytes,
        damage_found=answer.damage_found,
        waits=answer.waits,
        compared_ranges=answer.compared_ranges,
        differences=tuple(
            LogDifference(
                TopicPartition(one.topic, one.partition),
                OffsetSpan(one.offsets.first, one.offsets.last),
                one.leader,
                one.own,
                one.leaders,
                one.found_ms,
            )
            for one in answer.differences
        ),
    )
