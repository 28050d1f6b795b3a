"""Both ends of a copy with a real Kafka: what the copy relies on, and `penstock export`."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.copied import MemoryEnd, row, rows_of
from support.kafka_copies import running_kafka
from support.waiting import wait_until

from benchmarks.kafka_peer import Peer
from penstock.client import Producer, TopicPartition
from penstock.migration.kafka import Kafka
from penstock.migration.model import MARKS_MAX, Bounds, Progress, Rows, Topic
from penstock.migration.own import Penstock

if TYPE_CHECKING:
    from .conftest import Program


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with running_kafka() as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(penstock: "Program") -> str:
    brokers = json.loads(penstock.ok("cluster", "describe", "-o", "json"))["brokers"]
    return str(brokers[0]["address"])


class TestBothEnds:
    """What the copy relies on; the end in memory passes it too, so it may stand for both."""

    @pytest.fixture(params=["memory", "penstock", "kafka"])
    def end(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        if request.param == "memory":
            yield MemoryEnd()
        elif request.param == "kafka":
            made = Kafka(request.getfixturevalue("peer").bootstrap, {}, "copy-of-a-test")
            yield made
        else:
            with Penstock(request.getfixturevalue("bootstrap"), {}, "copy-of-a-test") as own:
                yield own

    def test_rows_come_back_as_they_were_appended(self, end: Any) -> None:
        topic = Topic(name="both-ends", partitions=2, replicas=1)
        assert end.find(topic.name) is None
        end.create(topic)
        found = end.find(topic.name)
        assert (found.name, found.partitions, found.replicas) == ("both-ends", 2, 1)
        first, second = TopicPartition(topic.name, 0), TopicPartition(topic.name, 1)
        assert end.bounds([first, second]) == {first: Bounds(0, 0), second: Bounds(0, 0)}
        rows = rows_of(
            0,
            row("a", b"k"),
            (None, None, 5, None),
            (b"", b"", 1_700_000_000_001, [("h", b"1"), ("h", None), ("", b"")]),
            row("d"),
        )
        assert end.append(first, rows.cut(0, 3)).base_offset() == 0
        assert end.append(first, rows.cut(3, 4)).base_offset() == 3
        assert end.bounds([first])[first] == Bounds(0, 4)
        for start in (0, 2):
            reader = end.read({first: start, second: 0})
            seen = Rows(0)

            def more(reader: Any = reader, seen: Rows = seen) -> bool:
                for where, part in reader.poll(0.2):
                    assert where == first or not part
                    for column in ("offsets", "keys", "values", "timestamps_ms", "headers"):
                        getattr(seen, column).extend(getattr(part, column))
                    if where == first:
                        seen.next_offset = part.next_offset
                return bool(reader.at_end(first) and reader.at_end(second))

            wait_until(more, what="the ends")
            reader.close()
            expected = rows.cut(start, 4)
            plain = [tuple(each or ()) for each in expected.headers]
            assert [tuple(each or ()) for each in seen.headers] == plain
            seen.headers = expected.headers
            assert seen == expected

    def test_progress_is_kept(self, end: Any) -> None:
        end.create(Topic(name="kept", partitions=2, replicas=1))
        first, second = TopicPartition("kept", 0), TopicPartition("kept", 1)
        assert end.progress([first, second]) == {first: None, second: None}
        largest = 2**63 - 1
        reached = Progress(
            source_first=3,
            source_next=largest,
            target_first=0,
            target_next=0,
            digest=2**32 - 1,
            topic_id="x" * 36,
            last_offset=largest,
            last_digest=2**32 - 1,
            marks=((10**15, 10**15),) * MARKS_MAX,
        )
        end.store({first: reached})
        assert end.progress([first, second]) == {first: reached, second: None}

    def test_settings_are_set_and_unset(self, end: Any) -> None:
        end.create(Topic(name="altered", partitions=1, replicas=1,
                         configs={"retention.ms": "5000000"}))  # fmt: skip
        end.alter("altered", {"retention.ms": None, "min.compaction.lag.ms": "7"})
        assert end.find("altered").configs == {"min.compaction.lag.ms": "7"}

    def test_offsets_of_a_group_are_set_and_seen(self, end: Any) -> None:
        end.create(Topic(name="grouped", partitions=2, replicas=1))
        first = TopicPartition("grouped", 0)
        end.append(first, rows_of(0, row("a"), row("b"))).base_offset()
        end.set_group("readers-of-a-test", {first: 1})
        assert end.group_offsets("readers-of-a-test", ["grouped"]) == {first: 1}
        assert end.group_offsets("readers-of-a-test", ["kept"]) == {}
        assert end.group_offsets("nobody-yet", ["grouped"]) == {}


class TestExport:
    def test_batches_and_records_are_as_large_as_topics_take(
        self, penstock: "Program", peer: Peer
    ) -> None:
        penstock.ok("topic", "create", "narrow", "-p", "1", "-c", "max.message.bytes=20000")
        penstock.ok("topic", "create", "wide", "-p", "1", "-c", "max.message.bytes=3000000")
        penstock.ok("produce", "narrow", stdin="v\n" * 20_000)
        penstock.ok("produce", "wide", stdin="x" * 2_900_000 + "\n")
        export = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics", "narrow,wide"]
        found = json.loads(penstock.ok(*export, "-o", "json"))
        assert [each["found"] for each in found["partitions"]] == [20_000, 1]
        assert {each["checksum"] for each in found["partitions"]} == {"same"}

    def test_a_dry_run_makes_nothing(self, penstock: "Program", peer: Peer) -> None:
        penstock.ok("topic", "create", "dry", "-p", "2", "-c", "retention.ms=-1")
        penstock.ok("produce", "dry", stdin="v\n" * 10)
        export = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics", "dry", "--dry-run"]
        (plan,) = json.loads(penstock.ok(*export, "-o", "json"))["topics"]
        assert (plan["topic"], plan["partitions"], plan["records"]) == ("dry", 2, 10)
        assert (plan["action"], plan["reason"]) == ("create", "")
        there = Kafka(peer.bootstrap, {})
        assert there.find("dry") is None

    def test_a_log_that_ends_with_a_marker_is_copied_to_its_end(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        penstock.ok("topic", "create", "marked", "-p", "1", "-c", "retention.ms=-1")
        with Producer(bootstrap, transactional_id="marks") as producer:
            with producer.transaction() as transaction:
                for index in range(5):
                    transaction.send("marked", b"%d" % index)
            aborted = producer.transaction()
            aborted.begin()
            aborted.send("marked", b"aborted")
            aborted.abort()
        export = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics", "marked"]
        found = json.loads(penstock.ok(*export, "-o", "json"))
        assert found["complete"]
        assert [(each["found"], each["checksum"]) for each in found["partitions"]] == [(5, "same")]

    def test_times_of_appending_stay(self, penstock: "Program", peer: Peer) -> None:
        setting = "message.timestamp.type"
        penstock.ok("topic", "create", "stamped", "-p", "1", "-c", f"{setting}=LogAppendTime")
        penstock.ok("produce", "stamped", stdin="v\n" * 10)
        export = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics", "stamped"]
        found = json.loads(penstock.ok(*export, "-o", "json"))
        assert [(each["found"], each["checksum"]) for each in found["partitions"]] == [(10, "same")]
        there = Kafka(peer.bootstrap, {}).find("stamped")
        assert there is not None
        assert there.configs[setting] == "LogAppendTime"
        said = penstock.fails(*export)
        assert "the target's topic has message.timestamp.type=LogAppendTime" in said

    def test_names_that_collide_in_kafka_are_refused_before(
        self, penstock: "Program", peer: Peer
    ) -> None:
        for name in ("col.lides", "col_lides"):
            penstock.ok("topic", "create", name, "-p", "1", "-c", "retention.ms=-1")
        export = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics"]
        said = penstock.fails(*export, "col?lides")
        assert "its name collides with 'col.lides'" in said
        assert "col.lides" not in Kafka(peer.bootstrap, {}).names()
        penstock.ok(*export, "col.lides")
        said = penstock.fails(*export, "col_lides")
        assert "collides with existing topic" in said

    def test_the_way_back(self, penstock: "Program", peer: Peer) -> None:
        penstock.ok("topic", "create", "back", "-p", "3", "-c", "retention.ms=-1")
        export = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics", "back", "-o", "json"]
        total = 0
        for count in (30, 5):
            total += count
            penstock.ok(
                "produce", "back", "-K", ":", stdin="".join(f"{i}:v\n" for i in range(count))
            )
            found = json.loads(penstock.ok(*export))
            assert {each["checksum"] for each in found["partitions"]} == {"same"}
            assert sum(each["found"] for each in found["partitions"]) == total
        there = Kafka(peer.bootstrap, {})
        assert there.find("back") is not None
        assert there.find("back").configs["retention.ms"] == "-1"  # type: ignore[union-attr]
