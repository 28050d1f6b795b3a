"""What drivers and worker processes see of a real cluster, and through which clients."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Admin, Producer
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.spark import cluster as cluster_module
from penstock.spark import exactly_once, ranges, sink
from penstock.spark.batch import BatchReader
from penstock.spark.cluster import cluster_of
from penstock.spark.options import SourceOptions, parse
from penstock.spark.sink_options import parse_sink

NEW, OLD = TopicPartition("ev-new", 0), TopicPartition("ev-old", 0)


def test_one_broker_that_is_behind_hides_no_topic_that_was_read_before(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", brokers=2) as cluster:
        ahead, behind = cluster.brokers[0], cluster.brokers[1]
        cluster.create_topic("ev-old", assignment=[[0]])
        with Admin(cluster.bootstrap) as admin:
            behind.pause()
            wait_until(
                lambda: [b.broker_id for b in admin.describe_cluster().brokers if b.alive] == [0],
                what="the paused broker counts as dead",
            )
            admin.create_topic("ev-new", 1, 1)
        cluster.controller.pause()
        behind.resume()
        wait_until(lambda: cluster.topic("ev-old", 1) is not None, what="it answers again")
        assert cluster.topic("ev-new", 1) is None, "and has not learned of the new topic"
        bootstrap = f"{behind.address},{ahead.address}"
        for selection in (
            {"subscribePattern": "ev-.*"},
            {"subscribe": "ev-new,ev-old,ev-gone"},
            {"assign": '{"ev-new": [0], "ev-old": [0], "ev-gone": [0]}'},
        ):
            options = parse({"penstock.bootstrap.servers": bootstrap} | selection)
            view = cluster_of(options).view({"ev-new", "other"})
            cluster_module.forget_clients(options.client)
            assert view.ends == {NEW: 0, OLD: 0}, selection
            assert view.topic_ids.keys() == {"ev-new", "ev-old"}
        cluster.controller.resume()


class Front:
    """An address that passes connections on to `port`, as a Service does to another cluster."""

    def __init__(self) -> None:
        self.port = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []
        self._run(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):  # the other side has closed it
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)
        for end in self._ends:
            end.close()

    def _run(self, target: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                here, _ = self._listener.accept()
                self._ends.append(here)
                try:
                    there = socket.create_connection(("127.0.0.1", self.port), 20)
                except OSError:
                    here.shutdown(socket.SHUT_RDWR)
                    continue
                self._ends.append(there)
                self._run(self._pass_on, here, there)
                self._run(self._pass_on, there, here)

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def front() -> Iterator[Front]:
    with Front() as front:
        yield front
    while cluster_module._admins:
        cluster_module.forget_clients(next(iter(cluster_module._admins))[1])
    ranges._readers.clear()
    for producers in (sink._producers, exactly_once._producers):
        while producers:
            producers.popitem()[1].close(0)


def read(options: SourceOptions) -> int:
    reader = BatchReader(options)
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


def test_clients_of_a_cluster_that_was_replaced_at_its_address_are_replaced(
    tmp_path: Path, front: Front
) -> None:
    given = {"penstock.bootstrap.servers": front.address, "penstock.request.timeout.ms": "5000"}
    options = parse(given | {"subscribe": "t", "fetchOffset.numRetries": "1"})
    sinking = parse_sink(given | {"topic": "t", "penstock.delivery.timeout.ms": "1500"})

    def write() -> int:
        return sink.write_rows(sinking, iter([pa.record_batch({"value": [b"w"]})])).rows

    for number in (1, 2):
        with Cluster(tmp_path / f"cluster-{number}", brokers=1) as cluster:
            front.port = cluster.brokers[0].port
            cluster.create_topic("t", partitions=1)
            with Producer(cluster.bootstrap) as producer:
                delivery = producer.send_columns("t", [b"a", b"b"])
                producer.flush(30)
                delivery.result(30)
            if number == 2:
                with pytest.raises(PenstockError):
                    write()
            assert write() == 1
            assert read(options) == 3, f"cluster {number}"


def test_a_cluster_that_was_named_is_not_replaced_without_a_word(
    tmp_path: Path, front: Front
) -> None:
    with Cluster(tmp_path / "cluster", brokers=1) as cluster:
        front.port = cluster.brokers[0].port
        cluster.create_topic("t", partitions=1)
        with Admin(cluster.bootstrap) as admin:
            cluster_id = admin.describe_cluster().cluster_id
        given = {"penstock.bootstrap.servers": front.address, "subscribe": "t"}
        options = parse(given | {"penstock.cluster.id": cluster_id})
        assert read(options) == 0
    with Cluster(tmp_path / "another", brokers=1) as cluster:
        front.port = cluster.brokers[0].port
        for _ in range(2):
            with pytest.raises(ClusterError) as refused:
                read(options)
            assert refused.value.code is ErrorCode.CLUSTER_ID_MISMATCH
