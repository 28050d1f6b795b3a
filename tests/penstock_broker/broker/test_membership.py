"""What a broker tells controllers of itself."""

from pathlib import Path

from support.local_broker import local_broker

from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub


async def test_a_broker_registers_with_what_its_journal_has_promised(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        identity = broker.process.membership._identity
        assert identity().promised_controller_epoch == 0
        request = pb.PromiseJournalRequest(cluster_id="cluster", controller_epoch=7)
        await JournalServiceStub(broker.channel).PromiseJournal(request)
        assert identity().promised_controller_epoch == 7
        assert broker.process.membership.controller_epoch < 7, "nobody was active at it"
