"""A Cluster sleeps under load, nothing of it runs, and it wakes with all that it had."""

import json
import time
from contextlib import ExitStack, suppress

from e2e.harness.penstock import CLUSTERS, condition
from e2e.harness.plugin import STREAMS_CLUSTER, plugin
from e2e.harness.process import E2EError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.resources import TOPICS, topic

RECORDS = 500
GROUP = "sleepers"
SLEEP_S = 240.0
ISR_S = 60.0


@scenario("A Cluster hibernates under load, nodes reboot: everything is there at wake")
def hibernated(stage: Stage) -> None:
    """No pod of it is left meanwhile. The limit: ISRs are full a minute after the wake, and no
    error reaches a client."""
    penstock, load = stage.penstock, stage.load()
    streams = penstock.streams
    with suppress(E2EError):  # a play that failed has left it
        penstock.cli("topic", "delete", "slept", "--yes")
    streams.apply(topic("slept"))
    streams.wait_condition(TOPICS, "slept")
    penstock.produce_numbers("slept", RECORDS)
    read = ("consume", "slept", "--group", GROUP, "--count", str(RECORDS // 2))
    penstock.cli(*read)
    committed = _offsets(stage)
    stage.expect(bool(committed), "the group has committed nothing")
    whole = _isrs(stage)
    with ExitStack() as stack:
        with stage.nodes.cordoned(*stage.nodes.workers()):  # the load's node does not reboot
            running = stack.enter_context(stage.workload(load))
            running.started()
        awake = {"spec": {"hibernate": None}}
        stack.callback(streams.patch, CLUSTERS, penstock.cluster, awake)  # if anything fails
        began = time.monotonic()
        plugin("hibernate", *STREAMS_CLUSTER, "--wait", timeout_s=SLEEP_S)
        stage.measure("asleep", time.monotonic() - began)
        wait_until("no pod is left", lambda: not _pods(stage), 60.0)
        found = streams.get(CLUSTERS, penstock.cluster)
        stage.expect(found["status"]["phase"] == "Hibernated", f"phase: {found['status']['phase']}")
        stage.expect(
            condition(found, "Stalled").get("status") == "False",
            f"it is stuck: {condition(found, 'Stalled').get('message')}",
        )
        streams.wait(
            TOPICS, "slept", lambda one: condition(one, "Ready").get("reason") == "Hibernated"
        )
        claims = {each["metadata"]["name"] for each in streams.list("pvc")}
        lost = {f"data-{penstock.cluster}-broker-{number}" for number in range(3)} - claims
        stage.expect(not lost, f"volumes are gone: {sorted(lost)}")
        _reboot_workers(stage)
        began = time.monotonic()
        plugin("wake", *STREAMS_CLUSTER, "--wait", timeout_s=SLEEP_S)
        stage.measure("awake", time.monotonic() - began)
        wait_until("ISRs are full", lambda: _isrs(stage) == whole, ISR_S)
        running.goes_on()
        running.finish()
    stage.expect(_offsets(stage) == committed, f"{_offsets(stage)} committed, were {committed}")
    rows = json.loads(penstock.cli("offsets", "slept", "-o", "json"))
    rows = rows if isinstance(rows, list) else rows["partitions"]
    stored = sum(int(each["latest"]) - int(each["earliest"]) for each in rows)
    stage.expect(stored == RECORDS, f"{stored} records of {RECORDS}")
    streams.delete(TOPICS, "slept")
    penstock.cli("topic", "delete", "slept", "--yes")


def _reboot_workers(stage: Stage) -> None:
    """One after the other, and the operators with them."""
    stage.penstock.end_tool()  # its node may be one of them
    for node in stage.nodes.workers():
        stage.say(f"rebooting {node}")
        stage.nodes.kill(node)
        stage.nodes.start(node, 180.0)


def _pods(stage: Stage) -> list[str]:
    found = [*stage.penstock.broker_pods(), *stage.penstock.controller_pods()]
    return [each["metadata"]["name"] for each in found]


def _isrs(stage: Stage) -> list[list[int]]:
    """Of the topic `slept`, in order of partitions."""
    return [sorted(one.isr) for one in stage.penstock.partitions("slept")]


def _offsets(stage: Stage) -> dict[int, int]:
    """What the group has committed, by partition."""
    rows = json.loads(stage.penstock.cli("group", "offsets", GROUP, "-o", "json"))
    return {int(each["partition"]): int(each["offset"]) for each in rows}
