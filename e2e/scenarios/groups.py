"""Consumer groups: members in pods under a recorded load, and the ConsumerGroup resource."""

import json
import time
from typing import Any

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import restore, rolled, uids
from e2e.scenarios.pods import delete_all_brokers
from e2e.scenarios.resources import API, TOPICS, topic
from penstock.core.groups.config import OFFSETS_PARTITIONS, OFFSETS_TOPIC, coordinator_partition

GROUPS = "consumergroups.penstock.dev"
RECORDS = 300
COMMITS = 200
"""Records in a group's partition: some fifteen seconds of three members."""
RECORD_BYTES = 150
"""Less than a committed offset takes in a log: the header of its batch alone has 72 bytes."""


def group(name: str, **spec: object) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"cluster": "flights", **spec},
    }


@scenario("A group keeps reading while its coordinator is killed and brokers restart", short=True)
def group_through_a_roll(stage: Stage) -> None:
    """Every record is delivered; commits never go back (I17-I19), as the history shows."""
    penstock, load = stage.penstock, stage.load(group="e2e-readers", members=3)
    with stage.workload(load) as running:
        running.started()
        described = json.loads(penstock.cli("group", "describe", "e2e-readers", "-o", "json"))
        stage.say(f"coordinator: broker {described['coordinator']}")
        penstock.kill_pod(penstock.pod(int(described["coordinator"])))
        penstock.wait_brokers(3)
        penstock.wait_in_sync(load.topic)
        before = uids(stage)
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 43_000_000}}}
        )
        wait_until("brokers restarted", lambda: rolled(stage, before), 300.0)
        running.goes_on()
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


@scenario("A ConsumerGroup shows its lag, is reset once by its resource, and deleted")
def group_resource(stage: Stage) -> None:
    penstock, streams = stage.penstock, stage.penstock.streams
    streams.apply(topic("queue", deletionPolicy="Delete"))
    streams.wait_condition(TOPICS, "queue")
    penstock.produce_numbers("queue", RECORDS)
    read = penstock.cli("consume", "queue", "-g", "readers", "-o", "beginning", "-e")
    stage.expect(len(read.split()) == RECORDS, f"{len(read.split())} records were read")
    streams.apply(group("readers", deletionPolicy="Delete"))
    streams.wait_condition(GROUPS, "readers")
    _wait_lag(stage, 0)
    penstock.produce_numbers("queue", RECORDS)
    _wait_lag(stage, RECORDS)
    streams.patch(GROUPS, "readers", {"spec": {"offsetReset": {"id": "again", "to": "earliest"}}})
    wait_until("reset", lambda: _status(stage).get("lastReset", {}).get("id") == "again", 60.0)
    stage.say(str(_status(stage)["lastReset"]["message"]))
    _wait_lag(stage, 2 * RECORDS)
    shown = streams.call("get", "consumergroups").decode()
    stage.expect("readers" in shown and "Empty" in shown, shown)
    streams.delete(GROUPS, "readers")
    left = penstock.cli("group", "list", "-o", "json")
    stage.expect('"readers"' not in left, f"the group is still there: {left}")
    streams.delete(TOPICS, "queue")


@scenario("__consumer_offsets is compacted and all brokers die: committed offsets are right")
def offsets_compacted(stage: Stage) -> None:
    """Checked with the records of the group's own partition; offsets are never reassigned."""
    penstock, load = stage.penstock, stage.load(group="e2e-commits", members=3)
    place = coordinator_partition(load.group, OFFSETS_PARTITIONS)
    with stage.workload(load) as running:
        running.started()
        wanted = _ever_written(stage, place) + COMMITS
        wait_until("many commits", lambda: _ever_written(stage, place) >= wanted, 120.0)
        running.finish()
        written = _ever_written(stage, place)
        kept = wait_until("compacted", lambda: _kept(stage, place, written // 4), 60.0)
        assert kept is not None
        stage.measure(f"kept of {written} records in the group's partition", kept, "bytes")
        before = _committed(stage, load.group)
        stage.expect(len(before) == load.partitions, f"committed: {before}")
        began = time.monotonic()
        delete_all_brokers(stage)
        wait_until("a coordinator answers", lambda: _committed(stage, load.group), 60.0)
        stage.measure("from the loss of all brokers to an answer", time.monotonic() - began)
        after = _committed(stage, load.group)
        stage.expect(after == before, f"committed were {before}, now {after}")
        penstock.wait_in_sync(load.topic)
        penstock.produce_numbers(load.topic, RECORDS)
        read = penstock.cli("consume", load.topic, "-g", load.group, "-e").split()
        stage.expect(
            sorted(map(int, read)) == list(range(1, RECORDS + 1)),
            f"the group went on with {len(read)} records, {RECORDS} were new",
        )
    penstock.cli("group", "delete", load.group, "--yes")
    penstock.wait_ready()


def _ever_written(stage: Stage, place: int) -> int:
    """Records of a partition of the internal topic, also those that are gone."""
    return _log(stage, place)[0]


def _kept(stage: Stage, place: int, most: int) -> int | None:
    """Its size in bytes now, if that is too little for more than `most` records."""
    size_bytes = _log(stage, place)[1]
    return size_bytes if 0 < size_bytes <= most * RECORD_BYTES else None


def _log(stage: Stage, place: int) -> tuple[int, int]:
    """Where a partition of the internal topic ends, and its size in bytes; clients cannot read it,
    so its leader is asked."""
    penstock = stage.penstock
    script = (
        "from penstock.client import Admin\n"
        f"with Admin({penstock.bootstrap!r}) as admin:\n"
        f"    (held,) = admin.describe_logs([{OFFSETS_TOPIC!r}], "
        f"broker_ids=[{penstock.leader(OFFSETS_TOPIC, place)}])\n"
        f"    (log,) = [log for log in held.logs if log.partition == {place}]\n"
        "    print(log.log_end_offset, log.size_bytes)\n"
    )
    shown = penstock.exec("python", "-c", script)
    end, size_bytes = map(int, shown.split())
    return end, size_bytes


def _committed(stage: Stage, name: str) -> dict[int, int]:
    """A group's offsets by partition; it has one topic."""
    rows = json.loads(stage.penstock.cli("group", "offsets", name, "-o", "json"))
    return {row["partition"]: row["offset"] for row in rows}


def _status(stage: Stage) -> dict[str, Any]:
    status: dict[str, Any] = stage.penstock.streams.get(GROUPS, "readers").get("status", {})
    return status


def _wait_lag(stage: Stage, records: int) -> None:
    wait_until(
        f"the status says a lag of {records}",
        lambda: _status(stage).get("lag", {}).get("records") == records,
        60.0,
    )
