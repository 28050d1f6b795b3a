"""A replica has another batch than its leader, and both read well: brokers find it, say so, and
leave all the rest to a person (I3)."""

import json
from functools import partial
from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.differing import replace_batch
from support.metrics import scrape
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import (
    Admin,
    Consumer,
    OffsetSpan,
    Producer,
    ReplicaMove,
    ScrubDescription,
    TopicPartition,
)

TOPIC = "flights"
WHERE = TopicPartition(TOPIC, 0)
RECORDS = 60
ODD = 1
"""The broker whose log is changed."""


def values() -> list[bytes]:
    return [b"record %d" % number for number in range(RECORDS)]


def filled(cluster: Cluster) -> None:
    """A topic with a batch per record, committed on all three brokers."""
    cluster.create_topic(TOPIC, assignment=[[0, 1, 2]], configs={"min.insync.replicas": "2"})
    with Producer(cluster.bootstrap, linger_ms=0, batch_bytes=1) as producer:
        for value in values():
            producer.send(TOPIC, value, partition=0).result(30)


def scrubbed(cluster: Cluster) -> dict[int, ScrubDescription]:
    """What each broker says once all have read what is committed."""
    with Admin(cluster.bootstrap) as admin:

        def committed() -> bool:
            logs = [log for broker in admin.describe_logs([TOPIC]) for log in broker.logs]
            return [log.high_watermark for log in logs] == [RECORDS] * 3

        wait_until(committed, what="every replica knows what is committed")
        assert admin.start_scrub(TOPIC) == 3
        wait_until(
            lambda: not any(one.due or one.reading for one in admin.describe_scrub()),
            what="all is read",
        )
        return {one.broker_id: one for one in admin.describe_scrub()}


def told(cluster: Cluster, *command: str) -> str:
    """What a command says."""
    done = CliRunner().invoke(app, [*command, "--bootstrap", cluster.bootstrap])
    assert done.exit_code in {0, 1}, done.output
    return done.stdout


def read(cluster: Cluster) -> list[bytes]:
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([WHERE])

        def passed() -> bool:
            polled = consumer.poll(0.5)
            seen.extend(record.value or b"" for batch in polled for record in batch.records())
            return len(seen) >= RECORDS

        wait_until(passed, what="the reader has everything")
    return seen


def moved(cluster: Cluster, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    with Admin(cluster.bootstrap) as admin:
        move = ReplicaMove(WHERE, expected=before, target=after)
        (outcome,) = admin.alter_replicas([move], change_factor=True)
        assert outcome.error is None
        wait_until(
            lambda: set(cluster.partition(TOPIC, 0).replicas) == set(after), what="it has moved"
        )
        cluster.wait_in_sync(TOPIC)


def test_a_sound_log_that_differs_is_found_said_and_left_alone(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        filled(cluster)
        healthy = scrubbed(cluster)
        assert [healthy[one].compared_ranges for one in (0, 1, 2)] == [0, 1, 1]
        assert not any(one.differences for one in healthy.values())

        replace_batch(cluster, ODD, TOPIC, 30)
        found = scrubbed(cluster)
        (differing,) = found[ODD].differences
        assert (differing.where, differing.offsets) == (WHERE, OffsetSpan(0, RECORDS - 1))
        assert (differing.leader, cluster.leader(TOPIC)) == (0, 0)
        assert differing.own.endswith(f"of {RECORDS} batches")
        assert differing.own != differing.leaders
        assert not found[0].differences
        assert not found[2].differences
        assert [one.damage_found for one in found.values()] == [0, 0, 0], "it reads well"
        assert scrape(cluster.metrics_ports[ODD])["penstock_differing_replicas"] == 1
        assert "both read well" in cluster.brokers[ODD].log_text()
        _check_said(cluster, differing.own, differing.leaders)

        assert set(cluster.partition(TOPIC, 0).isr) == {0, 1, 2}, "it keeps its seat"
        assert read(cluster) == values()
        assert cluster.brokers[ODD].stop() == 0
        cluster.brokers[ODD].start()
        cluster.wait_in_sync(TOPIC)
        with Admin(cluster.bootstrap) as admin:
            wait_until(
                partial(_says, admin, differing.own), what="it is still known after a restart"
            )

        moved(cluster, (0, 1, 2), (0, 2))
        moved(cluster, (0, 2), (0, 2, 1))
        copied = scrubbed(cluster)
        assert not any(one.differences for one in copied.values())
        assert copied[ODD].compared_ranges == 1


def _says(admin: Admin, own: str) -> bool:
    return [one.own for said in admin.describe_scrub() for one in said.differences] == [own]


def _check_said(cluster: Cluster, own: str, leaders: str) -> None:
    status = told(cluster, "scrub", "status")
    assert "flights/0" in status
    assert "0-59" in status
    assert own in status
    assert leaders in status
    rows = json.loads(told(cluster, "scrub", "status", "-o", "json"))
    (row,) = [found for one in rows for found in one["differences"]]
    assert (row["broker"], row["partition"], row["digest"]) == (ODD, "flights/0", own)
    (finding,) = json.loads(told(cluster, "top", "--once", "-o", "json"))["why"]["findings"]
    assert finding["code"] == "logs-differ"
    assert "offsets 0-59 are not as those of broker 0" in finding["what"]
