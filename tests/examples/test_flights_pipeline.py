"""The demo's transformer on real brokers: killed with a transaction open, and started again."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from examples.flights import kills
from examples.flights.enrich import Names
from examples.flights.jobs import Job, transformer
from examples.flights.kills import kill_with_open_transaction
from examples.flights.live import Board
from examples.flights.readback import read_topic, settle
from examples.flights.verdict import (
    nothing_left_open_visible,
    only_aborted_hidden,
)
from examples.flights.workers import Transactions
from penstock.client import Admin, Producer

SOURCE, TARGET = "demo-flights", "demo-enriched"
CHUNK = 50
FIELDS = pa.schema([("n", pa.int64()), ("airline", pa.string())])


@pytest.fixture
def board(shared_cluster: Cluster) -> Iterator[Board]:
    """As the demo shows it: with what brokers tell of transactions."""
    ports = shared_cluster.metrics_ports
    made = Board(0)
    watching = Transactions(lambda: {b: f"127.0.0.1:{port}" for b, port in ports.items()}, made)
    watching.thread.start()
    yield made
    watching.stop()
    watching.thread.join(30)


@pytest.fixture
def enriching(shared_cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    for topic in (SOURCE, TARGET):
        shared_cluster.create_topic(topic, partitions=2)
    job = transformer(shared_cluster.bootstrap, tmp_path, SOURCE, TARGET)
    job.start()
    yield job
    job.stop()


def test_a_killed_transformer_leaves_nothing_that_is_seen_and_loses_nothing(
    shared_cluster: Cluster, enriching: Job, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The demo kills it between transactions in the end; here it has to be in one.
    monkeypatch.setattr(kills, "LOOK_SECONDS", 300.0)
    bootstrap, sent = shared_cluster.bootstrap, 0
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:

        def send() -> None:
            nonlocal sent
            for number in range(sent, sent + CHUNK):
                flight = b'{"n":%d,"carrier":"UA","dest":"MIA","tailnum":"N14228"}' % number
                producer.send(SOURCE, flight, b"%d" % (number % 7))
            producer.flush(120)
            sent += CHUNK

        def some_are_in() -> bool:
            enriching.check()
            send()
            return not read_topic(bootstrap, TARGET, "read_committed", FIELDS).empty

        wait_until(some_are_in, what="flights are enriched")
        left = kill_with_open_transaction(enriching, TARGET, admin, board, send)
        assert left, board.events
        assert not enriching.alive()
        send()
        enriching.start()

        def all_are_in() -> bool:
            enriching.check()
            return len(read_topic(bootstrap, TARGET, "read_committed", FIELDS)) >= sent

        wait_until(all_are_in, what="all flights are enriched")
        settle(admin, TARGET)
    seen = read_topic(bootstrap, TARGET, "read_committed", FIELDS)
    stored = read_topic(bootstrap, TARGET, "read_uncommitted", FIELDS)
    assert sorted(seen["n"]) == list(range(sent))
    assert set(seen["airline"]) == {"United Air Lines Inc."}
    assert len(stored) > len(seen), "the killed one's records are there"
    assert only_aborted_hidden(TARGET, seen, stored, ["n"]) == []
    assert nothing_left_open_visible(TARGET, seen, left) == []
    wait_until(lambda: board.transactions_ended.keys() > {"commit"}, what="both kinds are shown")


def test_what_is_not_known_of_a_flight_is_null() -> None:
    names = Names.load()
    value = b'{"carrier":"UA","dest":"XXX","tailnum":null}'
    assert names.enriched(value) == (
        b'{"carrier":"UA","dest":"XXX","tailnum":null,'
        b'"airline":"United Air Lines Inc.","dest_name":null,"seats":null}'
    )
