"""Imports and exports on bad days: whatever dies in mid-copy, each record arrives once.

A copy has stopped itself while the other process is killed, so that both are where the test wants
them: some records are there, and some are not.
"""

import json
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from subprocess import Popen
from typing import TYPE_CHECKING, Any

import pytest
from support import stopping_child
from support.kafka_copies import (
    TIMEOUT_S,
    make,
    produce,
    running_kafka,
    while_it_runs,
    written,
)
from support.local import write_manifest
from support.processes import wait_stopped

from benchmarks.kafka_peer import Peer
from penstock.client import Admin, Producer, TopicPartition
from penstock.migration.kafka import Kafka
from penstock_broker.local import LocalCluster

if TYPE_CHECKING:
    from .conftest import Program

COUNT = 60_000
PARTITIONS = 3
READ_LITTLE_AHEAD = """
queued.min.messages=100
fetch.message.max.bytes=20000
fetch.queue.backoff.ms=60
reconnect.backoff.max.ms=500
"""


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with running_kafka() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("faults")
    manifest = write_manifest(folder, brokers=3, patient=True)
    with LocalCluster.from_manifest(manifest, data_dir=folder / "data") as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as made:
        yield made


class Copying:
    """A topic in Kafka with records, one here with a replica on each broker, and the command."""

    def __init__(
        self, program: "Program", peer: Peer, cluster: LocalCluster, admin: Admin, name: str
    ) -> None:
        self._program = program
        self._admin = admin
        self.name = name
        self._settings = program.folder / "kafka.properties"
        # Little is read ahead, so that a copy whose source has died ends soon to have records.
        self._settings.write_text(READ_LITTLE_AHEAD)
        self._words = ["import", "--from", f"kafka://{peer.bootstrap}", "--topics", name]
        self._words += ["--bootstrap", cluster.bootstrap, "-o", "json"]
        make(peer, name, PARTITIONS)
        produce(peer, name, COUNT, partitioner="murmur2_random")
        configs = {"max.message.bytes": "1050000", "partitioner": "murmur2", "retention.ms": "-1"}
        admin.create_topic(name, PARTITIONS, 3, configs)

    @contextmanager
    def begun(self, *more: object) -> Iterator["Popen[bytes]"]:
        words = (*self._words, "--kafka-config", self._settings, *more)
        self._before = self.written
        process = self._program.start(*words, python=stopping_child.WORDS)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def stopped_in_mid_copy(self, process: "Popen[bytes]") -> Iterator[None]:
        """It goes on when the block ends."""
        wait_stopped(process)
        assert self._before < self.written < COUNT
        yield
        process.send_signal(signal.SIGCONT)

    @property
    def written(self) -> int:
        return written(self._admin, self.name)

    def leader(self, partition: int = 0) -> int:
        return self._admin.describe_topics([self.name])[self.name].partitions[partition].leader

    def again(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._program.ok(*self._words))
        return found

    def judge(self, found: dict[str, Any], count: int = COUNT) -> None:
        judge(found, count)
        assert self.written == count


def ended(process: "Popen[bytes]") -> dict[str, Any]:
    """What it says at its end, which must be a good one."""
    out, error = process.communicate(timeout=2 * TIMEOUT_S)
    assert process.returncode == 0, error.decode()
    assert b"Traceback" not in error, error.decode()
    found: dict[str, Any] = json.loads(out)
    return found


def judge(found: dict[str, Any], count: int) -> None:
    """Nothing came twice and nothing is missing."""
    assert found["complete"]
    assert [each["checksum"] for each in found["partitions"]] == ["same"] * PARTITIONS
    assert sum(each["found"] for each in found["partitions"]) == count


@pytest.fixture
def copying(
    program: "Program",
    peer: Peer,
    cluster: LocalCluster,
    admin: Admin,
    request: pytest.FixtureRequest,
) -> Copying:
    return Copying(program, peer, cluster, admin, re.sub(r"\W|_", "-", request.node.name))


def test_the_source_is_killed_and_comes_back(copying: Copying, peer: Peer) -> None:
    with copying.begun() as process:
        with copying.stopped_in_mid_copy(process):
            peer.kill()
        peer.start()
        copying.judge(ended(process))


def test_the_leader_that_is_written_to_is_killed(copying: Copying, cluster: LocalCluster) -> None:
    with copying.begun() as process:
        with copying.stopped_in_mid_copy(process):
            leader = copying.leader()
            cluster.kill(leader)
        try:
            copying.judge(ended(process))
        finally:
            cluster.start_broker(leader)


def test_the_controller_is_killed(copying: Copying, cluster: LocalCluster) -> None:
    with copying.begun() as process:
        with copying.stopped_in_mid_copy(process):
            cluster.kill("controller")
        try:
            copying.judge(ended(process))
        finally:
            cluster.start_broker("controller")


@pytest.mark.parametrize("presses", [1, 2])
def test_it_is_interrupted_twice_and_run_again(copying: Copying, presses: int) -> None:
    """The second Ctrl-C of a run ends it at once."""
    for _ in range(2):
        with copying.begun() as process:
            with copying.stopped_in_mid_copy(process):
                before = copying.written
                process.send_signal(signal.SIGINT)
            if presses == 2:  # signals of a kind that come while it is stopped are one
                process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=TIMEOUT_S)
            # -2: the second one met a program that had nothing more to do than to exit.
            codes = {1: {130}, 2: {130, -signal.SIGINT}}[presses]
            assert process.returncode in codes, error.decode()
        assert before <= copying.written < COUNT
    copying.judge(copying.again())


def test_what_is_followed_is_killed_and_comes_back(copying: Copying, peer: Peer) -> None:
    with copying.begun("--follow") as process:
        with copying.stopped_in_mid_copy(process):
            peer.kill()
        peer.start()
        while_it_runs(process, lambda: copying.written == COUNT, "all records")
        peer.kill()
        peer.start()
        produce(peer, copying.name, 50, partitioner="murmur2_random")
        while_it_runs(process, lambda: copying.written == COUNT + 50, "new records")
        process.send_signal(signal.SIGINT)
        copying.judge(ended(process), COUNT + 50)


@contextmanager
def being_written(bootstrap: str, topic: str) -> Iterator[list[int]]:
    """Records are written, a hundred at a time, while the block runs; how many, once it has ended.

    A copy that follows has always some on their way then, however fast it is.
    """
    ends, counts = threading.Event(), [0]

    def write() -> None:
        with Producer(bootstrap) as producer:
            while not ends.wait(0.01):
                values = [b"value %d" % index for index in range(counts[0], counts[0] + 100)]
                producer.send_columns(topic, values, values).result()
                counts[0] += len(values)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield counts
        finally:
            ends.set()
            writing.result()


def test_the_target_of_an_export_is_killed_and_comes_back(
    program: "Program", peer: Peer, cluster: LocalCluster, admin: Admin
) -> None:
    name = "exported"
    admin.create_topic(name, PARTITIONS, 3, {"max.message.bytes": "20000"})
    there = Kafka(peer.bootstrap, {})
    wheres = [TopicPartition(name, index) for index in range(PARTITIONS)]
    make(peer, name, PARTITIONS, max_message_bytes="21000")

    def exported() -> int:
        return sum(each.end for each in there.bounds(wheres).values())

    words = ["export", "--to", f"kafka://{peer.bootstrap}", "--topics", name, "--follow"]
    process = program.start(*words, "--bootstrap", cluster.bootstrap, "-o", "json")
    try:
        with being_written(cluster.bootstrap, name) as counts:
            while_it_runs(process, lambda: exported() > 0, "the first records")
            peer.kill()
            peer.start()
            before = exported()
            while_it_runs(process, lambda: exported() > before, "records after the kill")
        while_it_runs(process, lambda: exported() == counts[0], "all records")
        process.send_signal(signal.SIGINT)
        judge(ended(process), counts[0])
    finally:
        process.kill()
        process.communicate()
    assert exported() == counts[0]
