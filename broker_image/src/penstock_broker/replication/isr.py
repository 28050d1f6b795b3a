"""ISR changes, sent to the controller as compare-and-swaps, many partitions in one call.

    IsrProposal ─▶ [ latest per partition ] ─▶ AlterIsr (one call at a time) ─▶ its image
        ─▶ IsrAnswered

An answer waits for the image of its metadata version. Only images name the runs of brokers: with
the answer alone, a machine would propose again on the newest version, and count what the former run
of a broker acknowledged that has come back without its data (decision 7).

No answer means that the outcome is unknown: the machine gets `IsrAnswered(None)` and asks again, or
learns the outcome from the next image. While there is no controller, the machine gets the same
answer after a pause, so that nothing spins.
"""

import asyncio
from typing import Final

from penstock.core.replication.contract_leader import IsrAnswered, IsrProposal
from penstock.errors import PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.rpc.errors import error_from_wire
from penstock_broker.metadata.image import ClusterView, partition_from_wire
from penstock_broker.metadata.session import ControllerConnection, ControllerSession
from penstock_broker.observability import EventLog
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_RETRY_PAUSE_S: Final = 0.5
_CHANGES_PER_CALL: Final = 5_000
_events = EventLog("isr")


class IsrChanges:
    """Sends proposals; one call is in flight at a time, the newest proposal per partition wins."""

    def __init__(self, replicas: ReplicaSet, session: ControllerSession, view: ClusterView) -> None:
        self._replicas = replicas
        self._session = session
        self._view = view
        self._waiting: dict[Replica, IsrProposal] = {}
        self._wake = asyncio.Event()
        self._answers = True

    def propose(self, replica: Replica, proposal: IsrProposal) -> None:
        """Queues a proposal; the replica's machine gets `IsrAnswered` in any case."""
        self._waiting[replica] = proposal
        self._wake.set()

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = dict(list(self._waiting.items())[:_CHANGES_PER_CALL])
                for replica in batch:
                    del self._waiting[replica]
                await self._send(batch)

    async def _send(self, batch: dict[Replica, IsrProposal]) -> None:
        try:
            connection = self._session.connection()
            answer = await self._session.call(
                "ISR change", connection.controller.AlterIsr(self._request(connection, batch))
            )
            self._session.check_follows(connection)
            if answer.HasField("error"):
                raise error_from_wire(answer.error)
            self._session.saw(answer.metadata_version)
            await self._session.call("ISR change", self._image_of(answer.metadata_version))
            self._session.check_follows(connection)
        except PenstockError as error:
            if self._answers:
                # Log an unavailable controller once, even if it stays unavailable for an hour.
                _events.warning("isr changes wait", partitions=len(batch), reason=str(error))
            self._answers = False
            await asyncio.sleep(_RETRY_PAUSE_S)
            for replica in batch:
                self._answered(replica, IsrAnswered(None, error))
            return
        self._answers = True
        for (replica, proposal), result in zip(batch.items(), answer.results, strict=True):
            error_seen = error_from_wire(result.error) if result.HasField("error") else None
            state = partition_from_wire(result.partition) if result.HasField("partition") else None
            _events.info(
                "isr change refused" if error_seen else "isr changed",
                partition=str(replica),
                isr=list(proposal.isr),
                based_on_version=proposal.version,
                reason=str(error_seen) if error_seen else None,
            )
            self._answered(replica, IsrAnswered(state, error_seen))

    async def _image_of(self, metadata_version: int) -> None:
        while self._view.metadata_version < metadata_version:
            await self._view.next_image()

    def _answered(self, replica: Replica, event: IsrAnswered) -> None:
        if self._replicas.by_key.get(replica.key) is replica:
            self._replicas.handle(replica, event)

    def _request(
        self, connection: ControllerConnection, batch: dict[Replica, IsrProposal]
    ) -> pb.AlterIsrRequest:
        return pb.AlterIsrRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._replicas.broker_id,
            broker_session=connection.broker_session,
            controller_epoch=connection.controller_epoch,
            changes=[
                pb.IsrChange(
                    topic_id=replica.key.topic_id,
                    partition=replica.key.partition,
                    leader_epoch=proposal.leader_epoch,
                    version=proposal.version,
                    isr=list(proposal.isr),
                )
                for replica, proposal in batch.items()
            ],
        )
