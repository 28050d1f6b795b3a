"""A follower's log that is not its leader's is found, although both read well; an equal one never
is."""

from pathlib import Path

import pytest
from support.compared_logs import BATCHES, END, KEY, LEADER, batch, compared_logs

from penstock.core.replication.contract_leader import LogStartMoved
from penstock.core.replication.digests import RANGE_OFFSETS, LogDigest, OffsetRange
from penstock.core.types import BrokerId, Offset
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.durable_files import DurableFile
from penstock_broker.maintenance import comparing, scrub_record
from penstock_broker.maintenance.comparing import LogDifference
from penstock_broker.store.interface import PartitionWrite

FIRST = OffsetRange(Offset(0), Offset(RANGE_OFFSETS))
SECOND = f"{RANGE_OFFSETS}-{2 * RANGE_OFFSETS - 1}"


async def test_equal_logs_are_compared_range_by_range_and_nothing_is_found() -> None:
    async with compared_logs() as logs:
        await logs.compare(0, 5 * 4096)
        assert logs.leader.asked == [FIRST]
        await logs.compare(5 * 4096)
        assert [str(one) for one in logs.leader.asked[1:]] == [SECOND, f"32768-{END - 1}"]
        assert logs.comparison.compared_ranges == 3 == logs.counted("scrub_compared_ranges_total")
        assert (logs.found(), logs.counted("differing_replicas")) == ([], 0)


async def test_another_sound_batch_is_found_in_its_range_until_it_is_as_the_leaders() -> None:
    async with compared_logs() as logs:
        logs.store(batch(5, b"another"))
        await logs.compare()
        assert logs.found() == [SECOND]
        assert logs.counted("differing_replicas") == 1
        (found,) = (one for _, one in logs.comparison.here())
        assert (found.leader, found.own.batches, found.leaders.batches) == (LEADER, 4, 4)
        assert found.own.crc != found.leaders.crc
        assert (
            logs.comparison.says(KEY) == f"offsets {SECOND} are not as those of broker 1, which led"
        )
        assert logs.here.replicas.damage.found == {}, "it reads well"
        assert logs.replica.machine.error is None
        await logs.compare()
        assert [one for _, one in logs.comparison.here()] == [found], (
            "found when it was found first"
        )
        logs.store(BATCHES[5])
        await logs.compare()
        assert (logs.found(), logs.counted("differing_replicas")) == ([], 0)
        assert logs.comparison.says(KEY) == ""


async def test_what_retention_has_removed_on_either_side_is_not_compared() -> None:
    async with compared_logs() as logs:
        there = logs.there.replicas.by_key[KEY]
        logs.there.replicas.handle(there, LogStartMoved(Offset(4096)))
        await logs.compare()
        assert logs.leader.not_comparable == ["the log starts at offset 4096"]
        assert (logs.comparison.compared_ranges, logs.found()) == (2, [])


async def test_a_part_that_retention_removes_is_forgotten_and_so_is_a_log_that_goes() -> None:
    async with compared_logs() as logs:
        logs.store(batch(1, b"another"), batch(5, b"another"))
        await logs.compare()
        assert logs.found() == [str(FIRST), SECOND]
        logs.replica.machine._log.log_start_offset = Offset(RANGE_OFFSETS)
        logs.replica.machine._marks = None
        logs.comparison.keep({KEY})
        assert logs.found() == [SECOND]
        logs.comparison.keep(set())
        assert logs.comparison.found == {}


async def test_only_what_is_committed_is_compared_and_only_by_a_member_of_the_isr() -> None:
    async with compared_logs() as logs:
        logs.replica.machine._log.high_watermark = Offset(4096)
        logs.replica.machine._marks = None
        await logs.compare()
        assert [str(one) for one in logs.leader.asked] == ["0-4095"]
        logs.here.isr, logs.here.replica_list = (LEADER,), (LEADER, 0)
        await logs.here.lead(LEADER, 3)
        await logs.compare()
        assert len(logs.leader.asked) == 1


async def test_a_compacted_topic_is_not_compared_nor_what_compaction_left() -> None:
    async with compared_logs() as logs:
        logs.there.topics_config = {"cleanup.policy": "compact"}
        await logs.there.lead(0, 2)
        await logs.compare()
        assert set(logs.leader.not_comparable) == {"each replica compacts it for itself"}
        logs.here.topics_config = {"cleanup.policy": "compact"}
        await logs.here.lead(LEADER, 3)
        await logs.compare()
        assert len(logs.leader.asked) == 3, "no more than before"
        assert logs.comparison.compared_ranges == 0


async def test_a_leader_of_another_epoch_compares_nothing() -> None:
    async with compared_logs() as logs:
        logs.store(batch(5, b"another"))
        await logs.there.lead(0, 3)
        await logs.compare()
        assert set(logs.leader.not_comparable) == {"broker 0 does not lead it in epoch 2"}
        assert (logs.comparison.compared_ranges, logs.found()) == (0, [])


@pytest.mark.parametrize("code", [ErrorCode.UNREACHABLE, ErrorCode.INVALID_REQUEST])
async def test_a_leader_that_does_not_answer_or_know_is_no_finding_and_is_left_alone(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(comparing, "monotonic", lambda: now_s[0])
    async with compared_logs() as logs:
        logs.store(batch(5, b"another"))
        logs.leader.fails = ClusterError("no", code)
        await logs.compare()
        assert (len(logs.leader.asked), logs.found()) == (1, [])
        logs.leader.fails = None
        now_s[0] += 60
        await logs.compare()
        assert logs.found() == [SECOND]


async def test_who_leads_compares_nothing_and_leaves_the_word_to_its_followers() -> None:
    async with compared_logs() as logs:
        logs.store(batch(5, b"another"))
        await logs.compare()
        await logs.here.lead(0, 3)
        assert logs.found() == [SECOND], "known until the next pass"
        await logs.compare()
        assert (len(logs.leader.asked), logs.found()) == (3, [])


async def test_a_log_that_differs_everywhere_is_not_compared_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparing, "DIFFERENCES_MAX", 2)
    async with compared_logs() as logs:
        logs.store(*(batch(number, b"another") for number in range(10)))
        await logs.compare()
        assert logs.found() == [str(FIRST), SECOND]
        assert len(logs.leader.asked) == 2
        assert logs.comparison.says(KEY).startswith(f"offsets {FIRST} and 1 more ranges are not")
        logs.store(BATCHES[0], *BATCHES[1:4])
        await logs.compare()
        assert logs.found() == [SECOND, f"32768-{END - 1}"], "known ones are looked at again"


async def test_what_is_truncated_meanwhile_is_not_reported() -> None:
    async with compared_logs() as logs:
        logs.store(batch(1, b"another"))
        answer = logs.leader.answer

        async def truncating(*args: object) -> object:
            logs.replica.truncations += 1
            return await answer(*args)  # type: ignore[arg-type]

        logs.leader.answer = truncating  # type: ignore[assignment, method-assign]
        await logs.compare()
        assert (logs.leader.asked[0], logs.found()) == (FIRST, [])


async def test_a_leader_reads_headers_only_and_few_offsets_at_once() -> None:
    async with compared_logs() as logs:
        logs.there.store.damaged_reads = True
        answer = await logs.leader.answer(2, FIRST)
        assert answer.digest.batches == 4
        for wrong in (OffsetRange(Offset(0), Offset(RANGE_OFFSETS + 1)), OffsetRange(END, END)):
            with pytest.raises(ClusterError, match="it must be 1 to 16384 of them") as caught:
                await logs.leader.answer(2, wrong)
            assert caught.value.code is ErrorCode.INVALID_REQUEST
        gone = await logs.leader.answer(2, FIRST, KEY._replace(partition=7))
        assert gone.not_comparable == "broker 0 does not lead it in epoch 2"


async def test_a_batch_that_was_given_up_is_not_compared() -> None:
    async with compared_logs() as logs:
        there = logs.there.replicas.by_key[KEY]
        lost = PartitionWrite(there.slot, lost=[BATCHES[5].header])
        logs.there.store.write([lost], sync=True)
        await logs.compare()
        assert logs.leader.not_comparable == [
            "compaction has rewritten batches of it, or a loss is accepted"
        ]
        assert (logs.comparison.compared_ranges, logs.found()) == (2, [])


def test_what_differs_outlives_a_restart_and_an_older_record_has_none(tmp_path: Path) -> None:
    found = LogDifference(FIRST, BrokerId(LEADER), LogDigest(4, 2**32 - 1), LogDigest(3, 5), 1_000)
    record = scrub_record.Record({}, {KEY: {0: found}})
    file = DurableFile(tmp_path / "scrub.json")
    scrub_record.save(file, record)
    assert scrub_record.load(file) == record
    file.replace(b'{"format": 1, "logs": []}')
    assert scrub_record.load(file) == scrub_record.Record()
