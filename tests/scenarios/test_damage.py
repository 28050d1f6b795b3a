"""Bytes change on the disks of brokers: nothing damaged is served, what can be had again comes
back from other replicas, and nothing that was acknowledged is lost (I7, I22, I33)."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.commands_of_pages import commands_with, told
from support.processes import ServerProcess
from support.waiting import unwatch, wait_until

from penstock.client import (
    Admin,
    Consumer,
    OffsetSpan,
    Producer,
    ReplicaMove,
    TopicPartition,
)
from penstock.errors import ClusterError, ErrorCode, PenstockError

RECORDS = 300


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, brokers=3, controller_config=PATIENT) as cluster:
        yield cluster


def value_of(topic: str, number: int) -> bytes:
    """2 KB that no other record has: a batch of its own in a blob file."""
    return f"<{topic}-{number:07}>".encode() * 100


def filled(cluster: Cluster, topic: str, *replicas: int) -> list[bytes]:
    """A topic of one partition on these brokers, the first leads; the values in it."""
    least = {"min.insync.replicas": str(len(replicas) // 2 + 1)}
    cluster.create_topic(topic, assignment=[list(replicas)], configs=least)
    values = [value_of(topic, number) for number in range(RECORDS)]
    write(cluster, topic, values)
    return values


def write(cluster: Cluster, topic: str, values: list[bytes], partition: int = 0) -> None:
    """Each in a batch of its own, so that the index has an entry for each."""
    with Producer(cluster.bootstrap, linger_ms=0, batch_bytes=1024) as producer:
        for value in values:
            producer.send(topic, value, partition=partition).result(30)


def read(
    cluster: Cluster, topic: str, count: int, *, start: int = 0, up_to: int = RECORDS
) -> list[bytes]:
    """The values of a topic from an offset on, at least so many, if no more are asked for."""
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), start)

        def passed() -> bool:
            polled = consumer.poll(0.5, max_records=up_to)
            seen.extend(record.value or b"" for batch in polled for record in batch.records())
            return len(seen) >= count

        wait_until(passed, what="the reader has passed everything", timeout_s=60)
    return seen


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def flip_batch(cluster: Cluster, broker: int, topic: str, number: int) -> None:
    """In the value of a record, in whatever blob file has it; once more, and it is as it was."""
    wanted = value_of(topic, number)[:600]
    flipped = 0
    for path in cluster.data_dir(broker).rglob("*.blob"):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            flip(path, at + 900)
            flipped += 1
    assert flipped, f"broker {broker} has record {number} in no blob file"


def flip_small(cluster: Cluster, broker: int, value: bytes) -> None:
    """In a batch too small for a blob file: in whatever table has it."""
    for path in cluster.data_dir(broker).rglob("*.sst"):
        at = path.read_bytes().find(value)
        if at >= 0:
            flip(path, at + len(value) // 2)
            return
    raise AssertionError(f"broker {broker} has {value!r} in no table")


def scrub(cluster: Cluster, topic: str, *brokers: int) -> None:
    """Until the scrubs of these brokers have found damage: nobody else reads a follower's log."""

    def has_found(broker: int) -> bool:
        lines = cluster.brokers[broker].log_text().splitlines()
        return any("the scrub has found damage" in line and f"{topic}/0" in line for line in lines)

    with Admin(cluster.bootstrap) as admin:
        assert admin.start_scrub(topic, 0) >= len(brokers)
    for broker in brokers:
        wait_until(partial(has_found, broker), what=f"broker {broker} finds damage")


def flip_index(cluster: Cluster, broker: int, not_with: bytes = b"no table has this") -> None:
    """In the middle of the largest table of the index: entries of this test's topic. Tables with
    `not_with` are no tables of the index."""
    tables = cluster.data_dir(broker).rglob("*.sst")
    index = [path for path in tables if not_with not in path.read_bytes()]
    largest = max(index, key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2)


def to_disk(cluster: Cluster, broker: int) -> None:
    """A stop brings what is in memory into tables and blob files."""
    assert cluster.brokers[broker].stop() == 0


def lead(cluster: Cluster, topic: str, broker: int) -> None:
    """The preferred leader leads."""
    with Admin(cluster.bootstrap) as admin:

        def leads() -> bool:
            if cluster.leader(topic) == broker:
                return True
            with suppress(PenstockError):
                admin.elect_leaders([TopicPartition(topic, 0)])
            return False

        wait_until(leads, what=f"broker {broker} leads {topic}")


def wait_well(cluster: Cluster, topic: str) -> None:
    """All replicas are in sync, and none is marked as damaged."""
    cluster.wait_in_sync(topic)
    with Admin(cluster.bootstrap) as admin:
        wait_until(
            lambda: not any(move.damaged for move in admin.describe_moves([topic]).moves),
            what="no replica is marked",
        )


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_a_leader_with_a_flipped_bit_is_mended(cluster: Cluster, running: bool) -> None:
    topic = f"flipped-{running}"
    values = filled(cluster, topic, 0, 1, 2)
    to_disk(cluster, 0)
    if not running:
        flip_batch(cluster, 0, topic, 100)
    cluster.brokers[0].start()
    cluster.wait_in_sync(topic)
    lead(cluster, topic, 0)
    if running:
        flip_batch(cluster, 0, topic, 100)
    assert read(cluster, topic, RECORDS) == values, "whoever leads by then"
    wait_until(lambda: "batch mended" in cluster.brokers[0].log_text(), what="it is mended")
    wait_well(cluster, topic)
    lead(cluster, topic, 0)
    assert read(cluster, topic, RECORDS) == values, "from the mended log"
    write(cluster, topic, [b"more"])


def test_a_leader_that_lacks_a_file_copies_what_was_in_it(cluster: Cluster) -> None:
    topic = "lacks"
    values = filled(cluster, topic, 0, 1, 2)
    to_disk(cluster, 0)
    files = list(cluster.data_dir(0).rglob("*.blob"))
    lost = [file for file in files if values[100] in file.read_bytes()]
    assert lost
    for file in lost:
        file.unlink()
    cluster.brokers[0].start()
    cluster.wait_in_sync(topic)
    lead(cluster, topic, 0)
    assert read(cluster, topic, RECORDS) == values, "whoever leads by then"
    wait_well(cluster, topic)
    lead(cluster, topic, 0)
    assert read(cluster, topic, RECORDS) == values, "from the log that was copied again"
    write(cluster, topic, [b"more"])


def test_what_only_one_broker_had_is_an_error_that_names_it_and_nothing_is_invented(
    cluster: Cluster,
) -> None:
    topic = "alone"
    values = filled(cluster, topic, 0)
    to_disk(cluster, 0)
    flip_batch(cluster, 0, topic, 100)
    cluster.brokers[0].start()
    cluster.wait_leader(topic, 0, 0)
    with pytest.raises(ClusterError, match="offset 100") as caught:
        read(cluster, topic, RECORDS)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    log = cluster.brokers[0].log_text
    wait_until(lambda: "nobody has a damaged batch now" in log(), what="it has asked")
    assert read(cluster, topic, 100, up_to=100) == values[:100]
    assert read(cluster, topic, RECORDS - 101, start=101) == values[101:]
    write(cluster, topic, [b"more"])
    flip_batch(cluster, 0, topic, 100)
    wait_until(lambda: "replica mended" in log(), what="what can be read again is sound")
    assert read(cluster, topic, RECORDS) == values


def test_a_log_with_a_damaged_index_is_copied_from_the_leader(tmp_path: Path) -> None:
    """In a cluster of its own: the damaged table has no other topic's index."""
    topic = "index"
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        values = filled(cluster, topic, 0, 1, 2)
        to_disk(cluster, 0)
        flip_index(cluster, 0)
        cluster.brokers[0].start()
        lead(cluster, topic, 0)
        assert read(cluster, topic, RECORDS) == values, "whoever leads by then"
        log = cluster.brokers[0].log_text
        wait_until(lambda: "replica is copied again" in log(), what="it is rebuilt")
        wait_well(cluster, topic)
        lead(cluster, topic, 0)
        assert read(cluster, topic, RECORDS) == values


def test_a_damaged_index_that_retention_meets_costs_one_replica_and_not_its_broker(
    tmp_path: Path,
) -> None:
    """In a cluster of its own: the damaged table has no other topic's index."""
    topic, start = "retained", RECORDS - 20
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        values = filled(cluster, topic, 0, 1, 2)
        to_disk(cluster, 0)
        flip_index(cluster, 0)
        cluster.brokers[0].start()
        lead(cluster, topic, 0)
        running = cluster.brokers[0].pid
        with Admin(cluster.bootstrap) as admin:
            admin.delete_records({TopicPartition(topic, 0): start})
        log = cluster.brokers[0].log_text
        wait_until(lambda: "replica damaged" in log(), what="the damage is found")
        write(cluster, topic, [b"after"])
        wait_until(lambda: "replica is copied again" in log(), what="it is rebuilt")
        wait_well(cluster, topic)
        assert read(cluster, topic, 21, start=start) == [*values[start:], b"after"]
        assert cluster.brokers[0].pid == running, "it goes on"


def test_a_scrub_finds_a_flipped_bit_of_a_follower(cluster: Cluster) -> None:
    topic = "follower-blob"
    values = filled(cluster, topic, 0, 1, 2)
    to_disk(cluster, 1)
    cluster.brokers[1].start()
    cluster.wait_in_sync(topic)
    flip_batch(cluster, 1, topic, 100)
    scrub(cluster, topic, 1)
    log = cluster.brokers[1].log_text
    wait_until(lambda: "replica mended" in log(), what="it is mended")
    wait_well(cluster, topic)
    lead(cluster, topic, 0)
    cluster.brokers[0].kill()
    assert read(cluster, topic, RECORDS) == values, "whoever leads by then"
    cluster.brokers[0].start()
    with Admin(cluster.bootstrap) as admin:
        wait_until(
            lambda: not any(one.due or one.reading for one in admin.describe_scrub()),
            what="what was mended is read once more, and sound",
        )


def test_a_scrub_finds_damage_in_tables_of_followers(tmp_path: Path) -> None:
    """In a cluster of its own: damaged tables have no other topic's batches, and stay."""
    topic = "follower-tables"
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        cluster.create_topic(topic, assignment=[[0, 1, 2]], configs={"min.insync.replicas": "2"})
        values = [b"<small-%07d>" % number * 8 for number in range(RECORDS)]
        write(cluster, topic, values)
        for broker in (1, 2):
            to_disk(cluster, broker)
            cluster.brokers[broker].start()
        cluster.wait_in_sync(topic)
        flip_small(cluster, 1, values[100])
        flip_index(cluster, 2, not_with=b"<small-")
        scrub(cluster, topic, 1, 2)
        log = cluster.brokers[2].log_text
        wait_until(lambda: "replica is copied again" in log(), what="it is rebuilt")
        wait_well(cluster, topic)
        cluster.brokers[0].kill()
        assert read(cluster, topic, RECORDS) == values, "whoever leads by then"


def lost_at(cluster: Cluster, topic: str) -> list[str]:
    """The offsets that the leader's broker shows as lost; none while a broker is away."""
    leader, found = cluster.leader(topic), list[str]()
    with Admin(cluster.bootstrap) as admin, suppress(PenstockError):
        for broker in admin.describe_logs([topic]):
            if broker.broker_id == leader:
                found = [str(span) for log in broker.logs for span in log.lost]
    return found


def test_a_loss_that_is_accepted_is_passed_by_readers_and_copies(cluster: Cluster) -> None:
    topic = "accepted"
    values = filled(cluster, topic, 0)
    to_disk(cluster, 0)
    flip_batch(cluster, 0, topic, 100)
    cluster.brokers[0].start()
    cluster.wait_leader(topic, 0, 0)
    with Admin(cluster.bootstrap) as admin:
        assert admin.accept_loss(TopicPartition(topic, 0), OffsetSpan(100, 100)) == ()
        scrub(cluster, topic, 0)
        wait_until(lambda: lost_at(cluster, topic) == ["100-100"], what="it is shown as lost")
        given_up = admin.accept_loss(
            TopicPartition(topic, 0), OffsetSpan(90, 110), validate_only=True
        )
        assert given_up == (OffsetSpan(100, 100),)
        wait_until(lambda: lost_at(cluster, topic) == ["100-100"], what="it is shown as lost still")
        assert admin.accept_loss(TopicPartition(topic, 0), OffsetSpan(90, 110)) == given_up
        assert admin.accept_loss(TopicPartition(topic, 0), OffsetSpan(90, 110)) == ()
        wait_well(cluster, topic)
        del values[100]
        assert read(cluster, topic, RECORDS - 1) == values
        admin.alter_replicas([ReplicaMove(TopicPartition(topic, 0), expected=(0,), target=(1,))])
        cluster.wait_leader(topic, 0, 1)
        assert read(cluster, topic, RECORDS - 1) == values, "from the copy"
    write(cluster, topic, [b"more"])


def test_the_commands_of_the_page_find_and_accept_a_loss(cluster: Cluster) -> None:
    """Those of docs/operations.md, as they stand there."""
    topic = "flights"
    cluster.create_topic(topic, assignment=[[0]] * 4)
    values = [value_of(topic, number) for number in range(110)]
    write(cluster, topic, values[:100], partition=3)
    with Producer(cluster.bootstrap) as producer:
        producer.send_columns(topic, None, values[100:], partition=3).result(30)
    to_disk(cluster, 0)
    flip_batch(cluster, 0, topic, 100)
    cluster.brokers[0].start()
    cluster.wait_leader(topic, 3, 0)
    with Admin(cluster.bootstrap) as admin:
        admin.start_scrub(topic, 3)
    wait_until(lambda: lost_at(cluster, topic) == ["100-109"], what="it is shown as lost")
    look, plan, accept = commands_with("docs/operations.md", "accept-loss")
    assert "penstock partitions accept-loss flights/3 --offsets 100-109" in told(cluster, look)
    assert "100-109" in told(cluster, plan)
    assert lost_at(cluster, topic) == ["100-109"]
    assert "offsets 100-109 of flights/3 are given up" in told(cluster, accept)
    assert not told(cluster, look), "nothing is lost any more"


def test_a_loss_on_all_replicas_is_accepted_once_for_all_of_them(tmp_path: Path) -> None:
    """While another replica has the batch, or does not say that it lacks it, nothing is given
    up."""
    topic = "nobody"
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        values = filled(cluster, topic, 0, 1, 2)
        for broker in range(3):
            to_disk(cluster, broker)
        for broker in range(3):
            flip_batch(cluster, broker, topic, 100)
            cluster.brokers[broker].start(wait=False)
        wait_until(
            lambda: all("replica damaged" in one.log_text() for one in cluster.brokers.values()),
            what="all have found the damage",
        )
        wait_until(lambda: lost_at(cluster, topic) == ["100-100"], what="it is shown as lost")
        leader = cluster.leader(topic)
        away = (leader + 1) % 3
        cluster.brokers[away].kill()
        with Admin(cluster.bootstrap, request_timeout_ms=20_000) as admin:
            with pytest.raises(ClusterError, match=f"--without {away}"):
                admin.accept_loss(TopicPartition(topic, 0), OffsetSpan(100, 100))
            cluster.brokers[away].start()

            def given_up() -> bool:
                with suppress(ClusterError):
                    return bool(admin.accept_loss(TopicPartition(topic, 0), OffsetSpan(100, 100)))
                return False

            wait_until(given_up, what="all have said that they lack it", timeout_s=60)
        wait_well(cluster, topic)
        del values[100]
        assert read(cluster, topic, RECORDS - 1) == values
        cluster.brokers[leader].kill()
        assert read(cluster, topic, RECORDS - 1) == values, "whoever leads by then"
        copied = [
            cluster.brokers[one].log_text().count("replica is copied again") for one in range(3)
        ]
        assert copied == [0, 0, 0], "nobody copied the log for one batch"


def start_or_end(broker: ServerProcess) -> None:
    """Until it serves, or has ended by itself."""
    before = broker.log_text().count('"event": "serving"')
    broker.start(wait=False)
    unwatch(broker)
    wait_until(
        lambda: not broker.is_running or broker.log_text().count('"event": "serving"') > before,
        what="it serves, or has ended",
    )


def test_a_damaged_table_that_a_merge_meets_ends_its_broker_once(tmp_path: Path) -> None:
    """In a cluster of its own: the table stays. Each stop leaves one, and four are merged."""
    topic, most = "merged", 8
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        cluster.create_topic(topic, assignment=[[0, 1, 2]], configs={"min.insync.replicas": "2"})
        values = [b"<small-%07d>" % number * 8 for number in range(RECORDS)]
        write(cluster, topic, values)
        broker = cluster.brokers[0]
        to_disk(cluster, 0)
        flip_index(cluster, 0, not_with=b"<small-")
        for _ in range(most):
            start_or_end(broker)
            values.append(b"<small-after>")
            write(cluster, topic, values[-1:])
            if broker.stop() != 0:
                break
        assert "Corruption" in broker.log_text(), "a merge has met it"
        for _ in range(most):
            broker.start()
            wait_well(cluster, topic)
            values.append(b"<small-then>")
            write(cluster, topic, values[-1:])
            to_disk(cluster, 0)
        broker.start()
        wait_well(cluster, topic)
        lead(cluster, topic, 0)
        assert read(cluster, topic, len(values), up_to=len(values)) == values
        assert "is not merged" in broker.log_text()
