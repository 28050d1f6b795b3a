"""What a broker tells controllers of itself."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_broker import local_broker, topic_info

from penstock.errors import ClusterError, ErrorCode, StaleDataDirectoryError
from penstock.proto.v1 import controller_pb2
from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock_broker.durable_files import DurableFile


async def test_a_broker_registers_with_what_its_journal_has_promised(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        identity = broker.process.membership._identity
        assert identity().promised_controller_epoch == 0
        request = pb.PromiseJournalRequest(cluster_id="cluster", controller_epoch=7)
        await JournalServiceStub(broker.channel).PromiseJournal(request)
        assert identity().promised_controller_epoch == 7
        assert broker.process.membership.controller_epoch < 7, "nobody was active at it"


def full(_file: DurableFile, _content: bytes) -> None:
    raise OSError("no space left on device")


def no_space(_file: DurableFile, _content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_broker_notes_its_stop_before_it_leaves(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        membership = broker.process.membership
        (opened,) = membership._identity().generations
        assert membership.session._newest_generation() == opened
        assert not await membership.leave(0.01), "there is no controller"
        before, stop = membership._identity().generations
        assert (before, membership.session._newest_generation()) == (opened, stop)


async def test_a_broker_whose_disk_is_full_leaves_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_broker(tmp_path) as broker:
        membership = broker.process.membership
        known = membership._identity().generations
        with monkeypatch.context() as patch:
            patch.setattr(DurableFile, "replace", full)
            assert not await membership.leave(0.01), "there is no controller"
        assert membership._identity().generations == known
        assert membership.session._stopping


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_broker_that_is_refused_prepares_its_next_run_and_says_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    async with local_broker(tmp_path) as broker:
        membership = broker.process.membership
        membership._directory.registration_accepted()
        known = membership._identity()
        assert known.data_intact
        with monkeypatch.context() as patch:
            if is_full:
                patch.setattr(DurableFile, "replace", full)
            told = await membership._distrust(StaleDataDirectoryError("It is older", "newest"))
        assert told.generation == "newest"
        assert str(told) == (
            f"It is older. What was acknowledged may be missing in {membership._directory.path}, "
            "so nothing of it is trusted: this run ends, and the next one gives up its seats in "
            "ISRs and copies what is missing from the other brokers"
        )
        now = membership._identity()
        if is_full:
            assert now == known, "the next run is refused, too, and tries again"
        else:
            assert (now.data_intact, now.generations) == (False, ("newest",))


async def test_an_image_that_cannot_be_noted_ends_the_session_and_not_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk it could not start again."""
    async with local_broker(tmp_path) as broker:
        membership = broker.process.membership
        await broker.apply(topic_info())
        accepted = controller_pb2.Registered(controller_epoch=1, cluster_id="cluster")
        with monkeypatch.context() as patch:
            patch.setattr(DurableFile, "replace", no_space)
            with pytest.raises(ClusterError, match="cannot be noted") as refused:
                await broker.apply(topic_info(version=2))
            assert refused.value.code is ErrorCode.DISK_FULL
            membership._directory._meta = replace(membership._directory._meta, data_lost=True)
            with pytest.raises(ClusterError, match="cannot be noted"):
                await membership.registered(accepted)
        await broker.apply(topic_info(version=2))
        await membership.registered(accepted)
        assert membership.metadata_version == broker.version


async def test_a_broker_whose_first_image_failed_serves_after_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would lead partitions, and never be ready."""
    async with local_broker(tmp_path) as broker:
        membership = broker.process.membership
        served: list[str] = []

        async def serving() -> None:
            served.append("ready")

        async def failing(_keys: object) -> None:
            raise ClusterError("Input/output error", ErrorCode.STORAGE_FAILED)

        monkeypatch.setattr(membership, "_serving", serving)
        with monkeypatch.context() as patch:
            patch.setattr(broker.process._replication.writer, "open", failing)
            with pytest.raises(ClusterError, match="Input/output"):
                await broker.apply(topic_info())
        assert served == []
        await broker.apply(topic_info())
        await broker.apply(topic_info(version=2))
        assert served == ["ready"]
