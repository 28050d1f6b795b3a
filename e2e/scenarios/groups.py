"""Consumer groups: members in pods under a recorded load, and the ConsumerGroup resource."""

import json
from typing import Any

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import restore, rolled, uids
from e2e.scenarios.resources import API, TOPICS, topic

GROUPS = "consumergroups.penstock.dev"
RECORDS = 300


def group(name: str, **spec: object) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"cluster": "flights", **spec},
    }


@scenario("A group reads on while its coordinator is killed and brokers are restarted")
def group_through_a_roll(stage: Stage) -> None:
    """Every record is delivered; commits never go back (I17-I19), judged from the history."""
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


@scenario("A ConsumerGroup tells its lag, is reset once by its resource, and forgotten")
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


def _status(stage: Stage) -> dict[str, Any]:
    status: dict[str, Any] = stage.penstock.streams.get(GROUPS, "readers").get("status", {})
    return status


def _wait_lag(stage: Stage, records: int) -> None:
    wait_until(
        f"the status says a lag of {records}",
        lambda: _status(stage).get("lag", {}).get("records") == records,
        60.0,
    )
