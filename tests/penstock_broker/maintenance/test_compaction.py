"""Real brokers compact real logs: newest values, same offsets, sequences still known."""

import random
import shutil
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest
from support.cluster import PATIENT, Cluster
from support.waiting import wait_until
from support.wire import Wire, now_ms

from penstock.client import Admin, Consumer, Producer, ReplicaMove, TopicPartition
from penstock.core.batch import Batch
from penstock.core.columns import Record
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import ProducerId
from penstock.errors import ErrorCode, NotLeaderError, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire

MakeCluster = Callable[..., Cluster]
QUICK = {"log.cleaner.backoff.ms": "100"}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def keyed(
    pairs: Sequence[tuple[bytes | None, bytes | None]], *, producer: int = -1, sequence: int = -1
) -> Batch:
    keys, values = zip(*pairs, strict=True)
    return build_batch(
        encode_columns(list(values), list(keys), timestamps_ms=now_ms()),
        producer_id=ProducerId(producer),
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
    )


def records(wire: Wire, topic: str, offset: int = 0) -> list[Record]:
    """All that can be read from `offset` on; whole batches, so also what lies before it."""
    found: list[Record] = []
    while batches := wire.fetch(topic, offset).batches:
        for message in batches:
            batch = batch_from_wire(message)
            assert batch.base_offset <= offset < batch.next_offset, "no gaps between batches"
            found += decode_batch(batch).records()
            offset = batch.next_offset
    return found


def newest(wire: Wire, topic: str) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records(wire, topic)}


def metric(cluster: Cluster, name: str, broker: int = 0) -> float:
    url = f"http://127.0.0.1:{cluster.metrics_ports[broker]}/metrics"
    with urllib.request.urlopen(url, timeout=120) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def leads(wire: Wire) -> bool:
    """As the broker has it itself."""
    return wire.log("t").is_leader


def wait_records(wire: Wire, topic: str, count: int) -> None:
    wait_until(
        lambda: len(records(wire, topic)) == count, what=f"{count} records of {topic} are left"
    )


def test_a_consumer_reads_the_newest_values_alone_also_after_kill_9(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(broker_config=QUICK, controller_config=PATIENT)
    cluster.create_topic("t", configs=COMPACT)
    with Producer(cluster.bootstrap) as producer:
        for version in range(3):
            for key in range(200):
                producer.send("t", value=b"%d.%d" % (key, version), key=b"%d" % key)
            producer.flush()
    expected = [(400 + key, b"%d" % key, b"%d.2" % key) for key in range(200)]

    def consumed() -> list[tuple[int, bytes | None, bytes | None]]:
        where = TopicPartition("t", 0)
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign([where])
            found: list[tuple[int, bytes | None, bytes | None]] = []
            while consumer.position(where) < 600:
                for batch in consumer.poll(10):
                    found += [(r.offset, r.key, r.value) for r in batch.records()]
            return found

    wait_until(lambda: consumed() == expected, what="the newest versions are left")

    def is_counted() -> bool:
        removed = metric(cluster, "penstock_compaction_records_removed_total")
        return (removed, metric(cluster, "penstock_compaction_waiting_seconds")) == (400, 0)

    wait_until(is_counted, what="all that was removed is counted, and nothing waits")
    wait_until(lambda: "log compacted" in cluster.brokers[0].log_text(), what="it says so")
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    cluster.wait_leaders("t")
    assert consumed() == expected
    with Wire(cluster.brokers[0].address) as wire:
        assert wire.latest("t") == 600
        assert wire.offsets("t", earliest=pb.Earliest()).offset == 0
        assert wire.offsets("t", timestamp_ms=1).offset == 400


def test_null_values_go_when_their_time_has_come(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(broker_config=QUICK, controller_config=PATIENT)
    cluster.create_topic("t", configs={**COMPACT, "delete.retention.ms": "3600000"})
    with Wire(cluster.brokers[0].address) as wire:
        wire.produce("t", keyed([(b"a", b"1"), (b"b", b"1")]))
        wire.produce("t", keyed([(b"a", None)]))
        wait_until(lambda: len(records(wire, "t")) == 2, what="the old value is gone")
        assert newest(wire, "t") == {b"a": None, b"b": b"1"}
        soon = admin_pb2.AlterConfigsRequest(topic="t", set={"delete.retention.ms": "1"})
        assert not wire.call(wire.admin.AlterConfigs, soon).HasField("error")
        wait_until(lambda: newest(wire, "t") == {b"b": b"1"}, what="the null value is gone")


def test_null_values_stay_while_a_copy_does_not_have_them(make_cluster: MakeCluster) -> None:
    held = {**QUICK, "replica.copy.bytes.per.second": "1"}
    cluster = make_cluster(brokers=2, broker_config=held, controller_config=PATIENT)
    settings = {**COMPACT, "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1"}
    cluster.create_topic("moved", configs=settings, assignment=[[0]])
    cluster.create_topic("still", configs=settings, assignment=[[0]])
    chance = random.Random(1)
    with Wire(cluster.brokers[0].address) as wire, Admin(cluster.bootstrap) as admin:
        for first in range(0, 3_000, 500):
            batch = [(b"%d" % at, chance.randbytes(1_000)) for at in range(first, first + 500)]
            wire.produce("moved", keyed(batch))
        move = ReplicaMove(TopicPartition("moved", 0), target=(1,), expected=(0,))
        assert admin.alter_replicas([move])[0].error is None
        wait_until(
            lambda: any(one.copies for one in admin.describe_moves().moves), what="it is copied"
        )
        for topic in ("moved", "still"):
            wire.produce(topic, keyed([(b"a", None)]))
        for turn in range(5):
            wire.produce("moved", keyed([(b"more", b"%d" % turn)]))
            wire.produce("still", keyed([(b"a", None), (b"b", b"%d" % turn)]))
            wait_until(lambda: b"a" not in newest(wire, "still"), what="the null value is gone")
            assert newest(wire, "moved")[b"a"] is None, turn
        admin.alter_throttle(0)
    with Wire(cluster.brokers[1].address) as wire:
        wait_until(lambda: takes(wire, keyed([(b"more", b"last")])), what="the move has ended")
        wait_until(lambda: b"a" not in newest(wire, "moved"), what="it is gone after the move")


def takes(wire: Wire, batch: Batch) -> bool:
    """Whether this broker leads now: it hears of it later than others."""
    try:
        wire.produce("moved", batch)
    except NotLeaderError:
        return False
    return True


def test_records_without_a_key_are_refused_by_a_compacted_topic_alone(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", configs={"cleanup.policy": "compact,delete"})
    cluster.create_topic("plain")
    with Wire(cluster.brokers[0].address) as wire:
        for pairs in ([(None, b"v")], [(b"k", b"v"), (None, b"v")]):
            with pytest.raises(
                PenstockError, match=r"t/0 has no key.*cleanup.policy=compact"
            ) as no:
                wire.produce("t", keyed(pairs))
            assert no.value.code is ErrorCode.INVALID_RECORD
            assert not no.value.retriable
            wire.produce("plain", keyed(pairs))
        wire.produce("t", keyed([(b"", b"v")]))
        assert wire.latest("t") == 1


def test_sequences_are_judged_as_before_after_compaction_and_a_copy_from_scratch(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=3, broker_config=QUICK, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 2, 1]], configs=COMPACT)
    sent = [keyed([(b"k", b"%d" % n)], producer=77, sequence=n) for n in range(12)]
    with Wire(cluster.brokers[0].address) as wire:
        wire.produce("t", keyed([(b"other", b"x")] * 3))
        for batch in sent:
            wire.produce("t", batch)
        wait_records(wire, "t", 2)
    cluster.brokers[2].kill()
    shutil.rmtree(cluster.data_dir(2))
    cluster.brokers[2].start()
    cluster.wait_in_sync("t")
    cluster.brokers[0].kill()
    leader = cluster.wait_leader_is_not("t", 0, 0)
    assert leader == 2, "the one that copied a compacted log"
    with Wire(cluster.brokers[2].address) as wire:
        wait_until(partial(leads, wire), what="it leads")
        assert [r.offset for r in records(wire, "t")] == [2, 14]
        again = [wire.produce("t", batch) for batch in sent[-5:]]
        assert [(r.duplicate, r.base_offset) for r in again] == [(True, n) for n in range(10, 15)]
        gap = keyed([(b"k", b"gap")], producer=77, sequence=13)
        with pytest.raises(PenstockError) as refused:
            wire.produce("t", gap)
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE
        next_one = wire.produce("t", keyed([(b"k", b"new")], producer=77, sequence=12))
        assert (next_one.duplicate, next_one.base_offset) == (False, 15)


def test_a_follower_whose_log_ends_inside_a_merged_batch_goes_on_behind_it(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=3, broker_config=QUICK, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 1, 2]], configs=COMPACT)
    with Wire(cluster.brokers[0].address) as wire:
        for n in range(5):
            wire.produce("t", keyed([(b"only-%d" % n, b"v"), (b"k", b"%d" % n)]))
        cluster.brokers[2].kill()
        for n in range(5, 40):
            wire.produce("t", keyed([(b"k", b"%d" % n), (b"l", b"%d" % n)]))
        wait_records(wire, "t", 7)
        inside = [m for m in wire.fetch("t", 10).batches if m.base_offset < 10]
        assert inside, "the leader merged what the follower has with what it lacks"
        cluster.brokers[2].start()
        cluster.wait_in_sync("t")
        expected = records(wire, "t")
    cluster.brokers[0].kill()
    cluster.wait_leader_is_not("t", 0, 0)
    cluster.brokers[1].kill()
    with Wire(cluster.brokers[2].address) as wire:
        wait_until(partial(leads, wire), what="the follower leads")
        wait_until(lambda: records(wire, "t") == expected, what="it has the same newest values")


@pytest.mark.parametrize("configs", [{}, COMPACT], ids=["plain", "compacted"])
def test_a_new_follower_copies_a_log_that_begins_inside_a_batch(
    make_cluster: MakeCluster, configs: dict[str, str]
) -> None:
    """Records were deleted up to there; the batch was never merged, and is copied whole."""
    cluster = make_cluster(brokers=3, broker_config=QUICK, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 1, 2]], configs=configs)
    with Wire(cluster.brokers[0].address) as wire:
        for sequence in (0, 4):
            pairs = [(b"%d" % n, b"v") for n in range(sequence, sequence + 4)]
            wire.produce("t", keyed(pairs, producer=77, sequence=sequence))
        cluster.brokers[2].kill()
        shutil.rmtree(cluster.data_dir(2))
        wire.admin.DeleteRecords(admin_pb2.DeleteRecordsRequest(topic="t", before_offset=2))
        cluster.brokers[2].start()
        cluster.wait_in_sync("t")
    cluster.brokers[0].kill()
    cluster.wait_leader_is_not("t", 0, 0)
    cluster.brokers[1].kill()
    with Wire(cluster.brokers[2].address) as wire:
        wait_until(partial(leads, wire), what="the follower leads")
        wait_until(lambda: len(records(wire, "t", 2)) >= 6, what="it has what was not deleted")
        assert [record.key for record in records(wire, "t", 2)][-6:] == [
            b"%d" % n for n in range(2, 8)
        ]


def test_what_is_young_is_not_compacted_and_deleting_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        broker_config={**QUICK, "log.retention.check.interval.ms": "100"},
        controller_config=PATIENT,
    )
    cluster.create_topic("young", configs={**COMPACT, "min.compaction.lag.ms": "3600000"})
    cluster.create_topic(
        "both",
        configs={**COMPACT, "cleanup.policy": "compact,delete", "retention.bytes": "400"},
    )
    cluster.create_topic("kept", configs={**COMPACT, "retention.bytes": "1"})
    with Wire(cluster.brokers[0].address) as wire:
        for n in range(20):
            for topic in ("young", "both", "kept"):
                wire.produce(topic, keyed([(b"%d" % (n // 2), b"v" * 50)]))
        wait_records(wire, "kept", 10)
        newer = count()

        def oldest_deleted() -> bool:
            """More comes than may stay. What was merged into one batch goes once others follow."""
            wire.produce("both", keyed([(b"new %d" % next(newer), b"v" * 50)]))
            return wire.offsets("both", earliest=pb.Earliest()).offset >= 20

        wait_until(oldest_deleted, what="the oldest values are deleted")
        assert len(records(wire, "young")) == 20
        assert wire.offsets("kept", earliest=pb.Earliest()).offset == 0


def test_leaders_killed_while_logs_are_compacted_lose_no_newest_value(
    make_cluster: MakeCluster, rng: random.Random
) -> None:
    eager = {"log.cleaner.backoff.ms": "20"}
    cluster = make_cluster(brokers=3, broker_config=eager, controller_config=PATIENT)
    cluster.create_topic("t", assignment=[[0, 1, 2]], configs=COMPACT)
    newest_sent: dict[bytes | None, bytes | None] = {}
    sent = 0
    with Producer(cluster.bootstrap, linger_ms=1) as producer:
        for _ in range(3):
            leader = cluster.leader("t")
            for part in range(40):
                for _ in range(rng.randrange(1, 30)):
                    key = b"%d" % rng.randrange(60)
                    newest_sent[key] = b"%d" % sent
                    producer.send("t", value=newest_sent[key], key=key)
                    sent += 1
                if part == 20:
                    cluster.brokers[leader].kill()
                elif part < 20:
                    producer.flush()
            producer.flush()
            cluster.brokers[leader].start()
            cluster.wait_in_sync("t")
    with Wire(cluster.brokers[cluster.leader("t")].address) as wire:
        assert wire.latest("t") == sent, "each record landed once"
        assert newest(wire, "t") == newest_sent
        wait_records(wire, "t", len(newest_sent))
        assert newest(wire, "t") == newest_sent
    for broker in cluster.brokers.values():

        def has_compacted(log: Callable[[], str] = broker.log_text) -> bool:
            return "log compacted" in log()

        wait_until(has_compacted, what=f"{broker.name} compacts too")
        assert "invariant" not in broker.log_text()
