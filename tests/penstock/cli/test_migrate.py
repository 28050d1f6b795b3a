"""`penstock import` with a real Kafka, as on docs/kafka.md."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)
from support import stopping_child
from support.documents import ROOT
from support.kafka_copies import (
    TIMEOUT_S,
    everything,
    make,
    produce,
    running_kafka,
    while_it_runs,
    written,
)
from support.processes import wait_stopped
from support.waiting import wait_until

from benchmarks.kafka_peer import Peer
from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.migration.kafka import Kafka
from penstock.migration.own import Penstock
from penstock.migration.reading import up_to
from tools.snippets.page import How, read_page
from tools.snippets.shell import commands

if TYPE_CHECKING:
    from .conftest import Program


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with running_kafka() as running:
        yield running


EMPTY = ("-c", "max.message.bytes=1050000", "-c", "retention.ms=-1")
"""Settings of a topic that somebody made for a copy."""


@pytest.fixture(scope="module")
def bootstrap(penstock: "Program") -> str:
    brokers = json.loads(penstock.ok("cluster", "describe", "-o", "json"))["brokers"]
    return str(brokers[0]["address"])


def from_kafka(peer: Peer, topics: str, *more: object) -> list[object]:
    return ["import", "--from", f"kafka://{peer.bootstrap}", "--topics", topics, *more]


def imported(penstock: "Program", peer: Peer, topics: str, *more: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(penstock.ok(*from_kafka(peer, topics, "-o", "json", *more)))
    return found


class TestImport:
    def test_everything_arrives_where_it_was(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        make(peer, "orders", 6, segment_ms="1000000")
        produce(peer, "orders", 1_000, partitioner="murmur2_random")
        (plan,) = json.loads(penstock.ok(*from_kafka(peer, "orders", "--dry-run", "-o", "json")))[
            "topics"
        ]
        assert (plan["action"], plan["records"]) == ("create", 1_000)
        assert "does not exist" in penstock.fails("topic", "describe", "orders")
        found = imported(penstock, peer, "orders")
        assert found["complete"]
        assert {each["checksum"] for each in found["partitions"]} == {"same"}
        assert sum(each["found"] for each in found["partitions"]) == 1_000
        assert found["settings"] == [
            {
                "topic": "orders",
                "dropped": "segment.ms=1000000",
                "because": "logs have no segments; retention works batch by batch",
            }
        ]
        seen = everything(bootstrap, "orders", 1_000)
        assert sorted(each[3] for each in seen) == [1_700_000_000_000 + i for i in range(1_000)]  # type: ignore[type-var]
        for partition, key, value, at_ms, headers in seen:
            assert isinstance(key, bytes)
            assert isinstance(at_ms, int)
            index = at_ms - 1_700_000_000_000
            assert partition == partition_for_key(key, 6, KeyHash.MURMUR2)
            assert value == (None if index % 50 == 49 else b"value %d" % index)
            expected = (("h", b"%d" % index), ("null", None)) if index % 7 == 0 else ()
            assert headers == expected

    def test_producers_here_go_on_where_kafkas_wrote(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        make(peer, "cut-over", 6)
        produce(peer, "cut-over", 200, partitioner="murmur2_random")
        found = imported(penstock, peer, "cut-over")
        assert found["topics"][0]["settings"]["partitioner"] == "murmur2"
        penstock.ok(
            "produce", "cut-over", "-K", ":", stdin="".join(f"key-{i}:x\n" for i in range(100))
        )
        places: dict[object, set[object]] = {}
        for partition, key, *_ in everything(bootstrap, "cut-over", 300):
            places.setdefault(key, set()).add(partition)
        assert len(places) == 100
        assert all(len(partitions) == 1 for partitions in places.values())

    def test_aborted_records_are_left_out_and_groups_count_records(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        make(peer, "tx", 1)
        producer = ck.Producer({"bootstrap.servers": peer.bootstrap, "transactional.id": "tests"})
        producer.init_transactions(TIMEOUT_S)
        for number in range(6):
            producer.begin_transaction()
            for index in range(5):
                producer.produce("tx", b"%d-%d" % (number, index), timestamp=1_700_000_000_000)
            producer.flush(TIMEOUT_S)
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        # Five records and a marker each: 0 to 5 aborted, 6 to 11 committed, 12 to 17 aborted, …
        Kafka(peer.bootstrap, {}).set_group("billing", {TopicPartition("tx", 0): 20})
        found = imported(penstock, peer, "tx", "--groups", "billing")
        assert [each["found"] for each in found["partitions"]] == [15]
        assert found["groups"] == [
            {
                "group": "billing",
                "partition": "tx/0",
                "source_offset": 20,
                "target_offset": 7,
                "left": "",
            }
        ]
        values = [each[2] for each in everything(bootstrap, "tx", 15)]
        assert values == [b"%d-%d" % (number, index) for number in (1, 3, 5) for index in range(5)]
        assert values[7] == b"3-2"
        described = json.loads(penstock.ok("group", "describe", "billing", "-o", "json"))
        assert "7" in json.dumps(described)

    def test_a_group_with_members_here_keeps_no_other_from_its_offsets(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        make(peer, "grouped", 1)
        produce(peer, "grouped", 10)
        for group in ("reads-here", "moves"):
            Kafka(peer.bootstrap, {}).set_group(group, {TopicPartition("grouped", 0): 7})
        imported(penstock, peer, "grouped")
        words = from_kafka(peer, "grouped", "--groups", "reads-here,moves", "-o", "json")
        with Consumer(bootstrap, group_id="reads-here") as consumer:
            consumer.subscribe(["grouped"])
            consumer.poll(TIMEOUT_S)
            done = penstock.run(*words)
        found = json.loads(done.stdout)
        assert (done.returncode, found["complete"]) == (1, True)
        moved, left = found["groups"]
        assert (moved["group"], moved["target_offset"]) == ("moves", 7)
        assert (left["group"], left["target_offset"]) == ("reads-here", None)
        assert "groups were not moved: reads-here: " in done.stderr
        assert left["left"] in done.stderr

    def test_an_open_transaction_is_left_to_the_next_run(
        self, penstock: "Program", peer: Peer
    ) -> None:
        make(peer, "open", 1)
        produce(peer, "open", 10)
        producer = ck.Producer({"bootstrap.servers": peer.bootstrap, "transactional.id": "open"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("open", b"later", timestamp=1_700_000_000_000)
        producer.flush(TIMEOUT_S)
        produce(peer, "open", 5, first=10)  # acknowledged, and not visible
        Kafka(peer.bootstrap, {}).set_group("ahead", {TopicPartition("open", 0): 16})
        done = penstock.run(*from_kafka(peer, "open", "--groups", "ahead", "-o", "json"))
        assert done.returncode == 1
        assert "copy not complete: 6 offsets of open/0 wait behind an open tr" in done.stderr
        found = json.loads(done.stdout)
        assert not found["complete"]
        assert [each["found"] for each in found["partitions"]] == [10]
        producer.commit_transaction()
        found = imported(penstock, peer, "open", "--groups", "ahead")
        assert found["complete"]
        assert [each["found"] for each in found["partitions"]] == [16]
        Kafka(peer.bootstrap, {}).set_group("ahead", {TopicPartition("open", 0): 99})
        done = penstock.run(*from_kafka(peer, "open", "--groups", "ahead"))
        assert done.returncode == 1
        assert "further in the source than the copy: ahead in open/0" in done.stderr

    def test_what_waits_is_none_without_a_transaction(
        self, peer: Peer, bootstrap: str, penstock: "Program"
    ) -> None:
        """At both ends; and an open one here counts."""
        make(peer, "plain", 2)
        produce(peer, "plain", 10)
        wheres = [TopicPartition("plain", index) for index in range(2)]
        assert Kafka(peer.bootstrap, {}).waiting(wheres) == {}
        penstock.ok("topic", "create", "plain", "-p", "2", "-c", "retention.ms=-1")
        with (
            Penstock(bootstrap, {}) as own,
            Producer(bootstrap, transactional_id="open-here") as producer,
        ):
            assert own.waiting(wheres) == {}
            transaction = producer.transaction()
            transaction.begin()
            transaction.send("plain", b"open", partition=1).result()
            assert own.waiting(wheres) == {wheres[1]: 1}
            transaction.abort()

    def test_what_kafka_has_compacted_leaves_no_gaps_and_offsets_mean_the_same_records(
        self, penstock: "Program", peer: Peer
    ) -> None:
        compact_often(peer)
        where = TopicPartition("compacted", 0)
        # A segment ends when the next batch is later than that.
        make(peer, "compacted", 1, cleanup_policy="compact", segment_ms="100",
             min_cleanable_dirty_ratio="0.01")  # fmt: skip
        for first in range(0, 2_000, 200):
            produce(peer, "compacted", 200, first=first)
        kafka = Kafka(peer.bootstrap, {})

        def left() -> list[int]:
            found: list[int] = []
            for _, rows in up_to(kafka.read({where: 0}), {where: 2_000}):
                found += rows.offsets
            return found

        wait_until(lambda: len(left()) < 1_000, what="a compacted log", timeout_s=90)
        wanted = {f"compacted-{at}": at for at in (0, left()[3], 1_999, 2_000)}
        for group, at in wanted.items():
            kafka.set_group(group, {where: at})
        found = imported(penstock, peer, "compacted", "--groups", ",".join(wanted))
        assert {each["checksum"] for each in found["partitions"]} == {"same"}
        # The target is held while it is copied, and compacted afterwards: settings are Kafka's.
        settings = json.loads(penstock.ok("topic", "describe", "compacted", "-o", "json"))
        assert "1000000000000000" not in json.dumps(settings)
        at_start, fourth, before_end, at_end = found["groups"]
        copied = found["partitions"][0]["copied"]
        assert (at_start["target_offset"], fourth["target_offset"]) == (0, 3)
        assert (before_end["target_offset"], at_end["target_offset"]) == (copied - 1, copied)
        assert copied < 1_000

    def test_a_record_that_does_not_fit_is_refused_before_the_start(
        self, penstock: "Program", peer: Peer
    ) -> None:
        """Kafka's limit was lowered after the record was written."""
        make(peer, "large", 2, max_message_bytes="3000000")
        producer = ck.Producer(
            {"bootstrap.servers": peer.bootstrap, "message.max.bytes": 3_000_000}
        )
        for value in (b"small", b"x" * 2_500_000, b"small"):
            producer.produce("large", value, partition=1, timestamp=1_700_000_000_000)
        assert producer.flush(TIMEOUT_S) == 0
        limit(peer, "large", 1_048_588)
        said = penstock.fails(*from_kafka(peer, "large"))
        assert "topic 'large': record large/1, offset 1: it needs 2500" in said
        assert "max.message.bytes of the target's topic is 1049612; set that to 2500" in said
        assert "does not exist" in penstock.fails("topic", "describe", "large")
        dry = penstock.run(*from_kafka(peer, "large", "--dry-run"))
        assert (dry.returncode, "record large/1, offset 1" in dry.stdout) == (1, True)
        unseen = penstock.run(*from_kafka(peer, "large", "--no-scan"))
        assert unseen.returncode == 1
        assert "record large/1, offset 1: it needs 2500" in unseen.stderr
        assert "then the same command continues" in unseen.stderr
        penstock.ok("topic", "alter", "large", "--set", "max.message.bytes=2600000")
        found = imported(penstock, peer, "large")
        assert [each["found"] for each in found["partitions"]] == [0, 3]
        assert {each["checksum"] for each in found["partitions"]} == {"same"}

    def test_a_topic_that_spreads_keys_otherwise_is_refused(
        self, penstock: "Program", peer: Peer
    ) -> None:
        make(peer, "spread", 6)
        produce(peer, "spread", 100, partitioner="murmur2_random")
        penstock.ok("topic", "create", "spread", "-p", "6", *EMPTY)
        said = penstock.fails(*from_kafka(peer, "spread"))
        assert "has partitioner=crc32c, and the source's keys lie by murmur2" in said
        way_out = said.partition("`penstock ")[2].partition("`")[0]
        penstock.ok(*way_out.split())
        assert imported(penstock, peer, "spread")["complete"]

    @pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
    def test_an_import_that_was_ended_continues(
        self, penstock: "Program", peer: Peer, bootstrap: str, way: signal.Signals
    ) -> None:
        """Nothing comes twice and nothing is missing."""
        name, count = f"ended-{way.name.lower()}", 60_000
        make(peer, name, 3)
        produce(peer, name, count)
        began = penstock.start(*from_kafka(peer, name), python=stopping_child.WORDS)
        try:
            wait_stopped(began)
            with Admin(bootstrap) as admin:
                assert 0 < written(admin, name) < count
            began.send_signal(way)
            began.send_signal(signal.SIGCONT)
            began.communicate(timeout=TIMEOUT_S)
        finally:
            began.kill()
        found = imported(penstock, peer, name)
        assert {each["checksum"] for each in found["partitions"]} == {"same"}
        assert sum(each["found"] for each in found["partitions"]) == count
        with Admin(bootstrap) as admin:
            assert written(admin, name) == count

    def test_followed_records_arrive_until_it_is_interrupted(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        make(peer, "followed", 2)
        produce(peer, "followed", 10)
        began = penstock.start(*from_kafka(peer, "followed", "--follow", "-o", "json"))
        try:
            with Admin(bootstrap) as admin:
                while_it_runs(began, lambda: written(admin, "followed") == 10, "ten records")
                produce(peer, "followed", 15)
                while_it_runs(began, lambda: written(admin, "followed") == 25, "25 records")
            began.send_signal(signal.SIGINT)
            out, error = began.communicate(timeout=TIMEOUT_S)
        finally:
            began.kill()
        assert began.returncode == 0, error
        assert sum(each["found"] for each in json.loads(out)["partitions"]) == 25

    def test_a_topic_that_was_created_again_is_refused(
        self, penstock: "Program", peer: Peer
    ) -> None:
        make(peer, "again", 1)
        produce(peer, "again", 10)
        imported(penstock, peer, "again")
        admin = AdminClient({"bootstrap.servers": peer.bootstrap})
        admin.delete_topics(["again"])["again"].result(TIMEOUT_S)
        there = Kafka(peer.bootstrap, {})
        wait_until(lambda: "again" not in there.names(), what="Kafka has deleted it")
        make(peer, "again", 1)
        produce(peer, "again", 20)
        said = penstock.fails(*from_kafka(peer, "again"))
        assert "topic 'again': the source's topic was deleted and created again" in said

    def test_partitions_that_are_added_while_it_follows_are_said(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        make(peer, "grows", 1)
        produce(peer, "grows", 10)
        began = penstock.start(*from_kafka(peer, "grows", "--follow"))
        try:
            with Admin(bootstrap) as admin:
                while_it_runs(began, lambda: written(admin, "grows") == 10, "ten records")
            change = AdminClient({"bootstrap.servers": peer.bootstrap})
            change.create_partitions([NewPartitions("grows", 3)])["grows"].result(TIMEOUT_S)
            _, error = began.communicate(timeout=TIMEOUT_S)
        finally:
            began.kill()
        assert began.returncode == 1
        assert b"copy not complete: grows has 3 partitions" in error
        penstock.ok("topic", "alter", "grows", "--partitions", 3)
        assert len(imported(penstock, peer, "grows")["partitions"]) == 3

    def test_a_topic_that_others_write_to_is_refused(self, penstock: "Program", peer: Peer) -> None:
        make(peer, "foreign", 1)
        produce(peer, "foreign", 3)
        penstock.ok("topic", "create", "foreign", "-p", "1", "-c", "max.message.bytes=1050000")
        penstock.ok("produce", "foreign", stdin="mine\n")
        assert "has records, and no copy from this source" in penstock.fails(
            *from_kafka(peer, "foreign")
        )
        dry = penstock.run(*from_kafka(peer, "foreign", "--dry-run"))
        assert dry.returncode == 1
        assert "refused" in dry.stdout

    def test_wrong_words_are_one_line(
        self, penstock: "Program", peer: Peer, tmp_path: Path
    ) -> None:
        fails = penstock.fails
        assert "has no topic 'nope'; it has: " in fails(*from_kafka(peer, "nope"))
        assert "--topics is empty" in fails(*from_kafka(peer, " , "), code=2)
        assert "No such file" in fails(*from_kafka(peer, "t", "--kafka-config", tmp_path / "none"))
        (tmp_path / "wrong").write_text("# yes\nsasl.password: hunter2\n")
        wrong = fails(*from_kafka(peer, "t", "--kafka-config", tmp_path / "wrong"))
        assert "wrong:2: the line is not name=value" in wrong
        assert "hunter2" not in wrong
        make(peer, "ungrouped", 1)
        assert "group 'nobody' has no committed offsets" in fails(
            *from_kafka(peer, "ungrouped", "--groups", "nobody")
        )

    def test_what_the_broker_keeps_for_ever_is_kept_here(
        self, penstock: "Program", peer: Peer, bootstrap: str
    ) -> None:
        """The topic itself has no retention.ms; records are from long ago."""
        broker_setting(peer, "log.retention.ms", "-1")
        try:
            make(peer, "inherits", 1, retention_bytes="-1")
            topic_setting_unset(peer, "inherits", "retention.ms")
            produce(peer, "inherits", 10)
            found = imported(penstock, peer, "inherits")
        finally:
            broker_setting(peer, "log.retention.ms", None)
        assert found["topics"][0]["settings"]["retention.ms"] == "-1"
        with Admin(bootstrap) as admin:
            described = admin.describe_topics(["inherits"])["inherits"]
        assert described.configs["retention.ms"] == "-1"
        assert "retention.ms" not in described.inherited


def broker_setting(peer: Peer, name: str, value: str | None) -> None:
    how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    resource.add_incremental_config(ConfigEntry(name, value or "", incremental_operation=how))
    change(peer, resource)


def topic_setting_unset(peer: Peer, topic: str, name: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry(name, "", incremental_operation=AlterConfigOpType.DELETE)
    )
    change(peer, resource)


def compact_often(peer: Peer) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    resource.add_incremental_config(
        ConfigEntry("log.cleaner.backoff.ms", "200", incremental_operation=AlterConfigOpType.SET)
    )
    change(peer, resource)


def limit(peer: Peer, topic: str, max_message_bytes: int) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entry = ConfigEntry(
        "max.message.bytes", str(max_message_bytes), incremental_operation=AlterConfigOpType.SET
    )
    resource.add_incremental_config(entry)
    change(peer, resource)


def change(peer: Peer, resource: ConfigResource) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_the_commands_of_docs_kafka_md_copy_topics_and_groups(
    penstock: "Program", peer: Peer, bootstrap: str
) -> None:
    make(peer, "orders-eu", 1)
    produce(peer, "orders-eu", 20)
    orders = TopicPartition("orders-eu", 0)
    Kafka(peer.bootstrap, {}).set_group("billing", {orders: 7})
    shown = [
        words
        for snippet in read_page(ROOT, "docs/kafka.md")
        if snippet.how is How.ELSEWHERE
        for words in commands(snippet.text)
    ]
    assert [words[1] for words in shown] == ["import", "import"]
    for words in shown:
        penstock.ok(*[word.replace("kafka:9092", peer.bootstrap) for word in words[1:]])
    with Admin(bootstrap) as admin:
        assert admin.group_lag("billing")[orders].records == 13
