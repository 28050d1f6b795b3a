"""Metadata and producer ids: calls that every broker answers, leader or not.

Metadata is the applied image, as the controller sent it; before the first image the answer is
LEADER_NOT_AVAILABLE, which clients retry. Producer ids come in blocks that the controller gives to
one broker only, so that no id is ever assigned twice.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.core.authorization import Kind, Operation
from penstock.core.authorization.producers import check_producer_id, owned_producer_id
from penstock.core.types import BrokerId, ProducerId, is_transactional_producer
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import controller_pb2
from penstock.rpc.errors import error_from_wire, error_to_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.session import ControllerSession
from penstock_broker.services.limits import PARTITIONS_MAX, begins_slice, check_count
from penstock_broker.serving.callers import Role, caller
from penstock_broker.serving.listener import for_caller

_EPOCH_MAX: Final = 2**15 - 1
"""As in Kafka, which counts producer epochs in 16 bits; after that, a new id is assigned."""


async def describe(view: ClusterView, request: pb.MetadataRequest) -> pb.MetadataResponse:
    """Topics are as of the version in the answer, or later: others have turns between many of them.

    Raises ClusterError: LEADER_NOT_AVAILABLE before the first image, or INVALID_REQUEST.
    """
    check_count("topics", len(request.topics), PARTITIONS_MAX)
    if not view.complete:
        raise ClusterError(
            "this broker has no metadata yet: it is waiting for its first controller session; "
            "try again, or ask another broker",
            ErrorCode.LEADER_NOT_AVAILABLE,
        )
    answer = pb.MetadataResponse(
        cluster_id=view.cluster_id,
        controller_epoch=view.controller_epoch,
        metadata_version=view.metadata_version,
        brokers=map(for_caller, view.brokers.values()),
    )
    if not request.no_topics:
        await _add_topics(view, request.topics, answer)
    return answer


async def _add_topics(view: ClusterView, names: Sequence[str], answer: pb.MetadataResponse) -> None:
    """Those that are named, each once, with its error if it has one; or all that the caller may
    see. A name takes a few bytes of the request, what is said of it up to some 100 KB."""
    if not names:
        view.access.check_ready(caller())
    for index, name in enumerate(dict.fromkeys(names) or sorted(view.names)):
        if begins_slice(index):
            await asyncio.sleep(0)
        if not names and not _is_shown(view, name):
            continue
        try:
            view.access.check(Operation.DESCRIBE, Kind.TOPIC, name)
            answer.topics.append(view.topic(name).wire)
        except PenstockError as error:
            answer.topics.add(topic=name, error=error_to_wire(error))


def _is_shown(view: ClusterView, name: str) -> bool:
    """It may be gone since the listing began."""
    return name in view.names and view.access.allows(Operation.DESCRIBE, Kind.TOPIC, name)


def next_identity(producer_id: ProducerId, producer_epoch: int) -> tuple[ProducerId, int] | None:
    """The next identity of a non-transactional producer with this id and epoch; None: a new id.

    Only coordinators assign ids of transactional producers: otherwise anyone could fence their
    owner here. Raises ClusterError(INVALID_REQUEST).
    """
    if is_transactional_producer(producer_id):
        raise ClusterError(
            f"producer id {producer_id} belongs to a transactional id: set transactional_id "
            "in the request",
            ErrorCode.INVALID_REQUEST,
        )
    if producer_id >= 0 and 0 <= producer_epoch < _EPOCH_MAX:
        return producer_id, producer_epoch + 1
    return None


class ProducerIds:
    """Hands out producer ids from blocks of the controller."""

    def __init__(self, session: ControllerSession, view: ClusterView, broker_id: BrokerId) -> None:
        self._session = session
        self._view = view
        self._broker_id = broker_id
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def init(self, request: pb.InitProducerRequest) -> pb.InitProducerResponse:
        """A new id with epoch 0, or the next epoch of the given one."""
        try:
            who = caller()
            owner = who.principal if who.role is Role.USER else ""
            if request.producer_id >= 0:
                check_producer_id(request.producer_id, owner)
            known = next_identity(ProducerId(request.producer_id), request.producer_epoch)
            producer_id, epoch = known or (owned_producer_id(await self.take(), owner), 0)
        except PenstockError as error:
            return _refused(error)
        return pb.InitProducerResponse(producer_id=producer_id, producer_epoch=epoch)

    async def take(self) -> int:
        """A new id, never used before. Raises PenstockError."""
        async with self._lock:
            if self._next >= self._end:
                await self._refill()
            taken = self._next
            self._next += 1
            return taken

    async def _refill(self) -> None:
        connection = self._session.connection()
        answer = await self._session.call(
            "producer ids",
            connection.controller.AllocateProducerIds(
                controller_pb2.AllocateProducerIdsRequest(
                    cluster_id=self._view.cluster_id,
                    broker_id=self._broker_id,
                    broker_session=connection.broker_session,
                )
            ),
        )
        if answer.HasField("error"):
            raise error_from_wire(answer.error)
        self._next, self._end = answer.first, answer.first + answer.count


def _refused(error: PenstockError) -> pb.InitProducerResponse:
    return pb.InitProducerResponse(error=error_to_wire(error), producer_id=-1, producer_epoch=-1)
