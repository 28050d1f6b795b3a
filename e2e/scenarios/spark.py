"""Spark on Kubernetes: executors as pods, exact results while a broker's pod is killed.

The manifests are those of examples/spark/kubernetes, which docs/spark.md shows, with this run's
image and topics in them.
Records are the numbers 1 to N, so that any loss or repetition shows in the totals.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from e2e.harness import images
from e2e.harness.kubectl import Manifest
from e2e.harness.process import ROOT, wait_until
from e2e.harness.scenario import Stage, scenario

MANIFESTS = ROOT / "examples/spark/kubernetes"
RECORDS = 200_000
KEYS = 50
TASKS = 48
"""Enough of them that the read lasts for seconds, and a broker can die in its middle."""
STARTED_S = 240.0
DONE_S = 300.0


def totals(records: int) -> dict[str, int]:
    """What a job must print for the numbers 1 to `records`."""
    return {
        "records": records,
        "sum": records * (records + 1) // 2,
        "keys": min(KEYS, records),
        "distinct": records,
    }


def manifests(name: str, topic: str) -> list[Manifest]:
    """An example's objects, with the image that was built here and a topic of this run."""
    text = (MANIFESTS / name).read_text()
    documents: list[Manifest] = list(yaml.safe_load_all(text))
    released = containers(documents[-1])[0]["image"]
    text = text.replace(released, images.SPARK.tag).replace("--topic=totals", f"--topic={topic}")
    return list(yaml.safe_load_all(text))


def containers(workload: Manifest) -> list[Manifest]:
    """Of a Deployment or a Job."""
    found: list[Manifest] = workload["spec"]["template"]["spec"]["containers"]
    return found


@contextmanager
def applied(stage: Stage, objects: list[Manifest]) -> Iterator[None]:
    """Applies objects; deletes them, and whatever Spark made, when the block ends."""
    kubectl = stage.penstock.streams
    rbac = manifests_of_rbac()
    label = f"app.kubernetes.io/name={objects[0]['metadata']['name']}"
    kubectl.apply(rbac)
    kubectl.apply(objects)
    try:
        yield
    except BaseException:
        keep_logs(stage, label)
        raise
    finally:
        for one in reversed(objects):
            kubectl.delete(one["kind"], one["metadata"]["name"], wait_s=None)
        kubectl.delete("pod", "-l", label, wait_s=120.0)
        for one in rbac:
            kubectl.delete(one["kind"], one["metadata"]["name"])


def manifests_of_rbac() -> list[Manifest]:
    return list(yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()))


def keep_logs(stage: Stage, label: str) -> None:
    """The logs of all of a job's pods, before they are deleted."""
    stage.logs.mkdir(parents=True, exist_ok=True)
    for pod in stage.penstock.streams.list("pod", label):
        name = pod["metadata"]["name"]
        log = stage.penstock.streams.call("logs", name, "--tail=5000", "--ignore-errors")
        (stage.logs / f"{name}.log").write_bytes(log)


def produce(stage: Stage, name: str, first: int, last: int) -> None:
    """Writes the numbers `first` to `last`."""
    script = (
        f"seq {first} {last} | awk '{{print $1 % {KEYS} \":\" $1}}'"
        f" | penstock produce {name} -K : --acks=all"
    )
    stage.penstock.exec("sh", "-c", script, timeout_s=180.0)


def said(stage: Stage, label: str) -> list[dict[str, Any]]:
    """The JSON lines that a driver has printed."""
    kubectl = stage.penstock.streams
    lines: list[dict[str, Any]] = []
    for pod in kubectl.list("pod", label):
        for line in kubectl.logs(pod["metadata"]["name"]).splitlines():
            text = line.partition("] ")[2]
            if text.startswith("{"):
                lines.append(json.loads(text))
    return lines


def newest(stage: Stage, label: str) -> dict[str, int]:
    """The last totals that a driver has printed; {} if there are none yet."""
    found = [line for line in said(stage, label) if "records" in line]
    wanted = totals(1)
    return {name: found[-1][name] for name in wanted} if found else {}


def executors(stage: Stage, name: str) -> list[str]:
    """Names of a job's executors that run."""
    label = f"app.kubernetes.io/name={name},spark-role=executor"
    pods = stage.penstock.streams.list("pod", label)
    return [each["metadata"]["name"] for each in pods if each["status"]["phase"] == "Running"]


def wait_totals(stage: Stage, label: str, records: int) -> None:
    """Waits for the totals of the numbers 1 to `records`; more records than that fail at once."""

    def read() -> bool:
        now = newest(stage, label)
        count = now.get("records", 0)
        stage.expect(count <= records, f"{count} records were read, {records} were written")
        return count == records

    wait_until(f"{records} records read", read, DONE_S)
    stage.expect(
        newest(stage, label) == totals(records),
        f"the job says {newest(stage, label)}, written were {totals(records)}",
    )


@scenario("Spark reads a stream in client mode while the leader's pod is killed", images=("spark",))
def spark_stream(stage: Stage) -> None:
    """Then the driver's own pod is killed: its successor continues from the checkpoint."""
    penstock, name = stage.penstock, "totals-stream"
    driver = f"app.kubernetes.io/name={name},app.kubernetes.io/component=driver"
    with stage.topic() as read, applied(stage, manifests("stream.yaml", read)):
        began = time.monotonic()
        produce(stage, read, 1, RECORDS // 2)
        wait_totals(stage, driver, RECORDS // 2)
        stage.measure("stream applied to half of the records counted", time.monotonic() - began)
        stage.expect(len(executors(stage, name)) == 2, f"executors: {executors(stage, name)}")
        penstock.streams.delete("pod", penstock.pod(penstock.leader(read)), wait_s=None)
        began = time.monotonic()
        produce(stage, read, RECORDS // 2 + 1, RECORDS)
        stage.measure("other half written after a leader's pod", time.monotonic() - began)
        wait_totals(stage, driver, RECORDS)
        stage.measure("other half counted", time.monotonic() - began)
        began = time.monotonic()
        penstock.streams.delete("pod", "-l", driver)
        stage.measure("driver stopped", time.monotonic() - began)
        produce(stage, read, RECORDS + 1, RECORDS + 1_000)
        wait_totals(stage, driver, RECORDS + 1_000)
        stage.measure("counted by the next driver", time.monotonic() - began)
    penstock.wait_brokers(3)
    stage.expect(not executors(stage, name), f"left over: {executors(stage, name)}")


@scenario("Spark reads a batch in cluster mode while a broker's pod is killed", images=("spark",))
def spark_batch(stage: Stage) -> None:
    penstock, name = stage.penstock, "totals-batch"
    driver = f"app.kubernetes.io/name={name},spark-role=driver"
    with stage.topic() as read:
        produce(stage, read, 1, RECORDS)
        objects = manifests("batch.yaml", read)
        containers(objects[-1])[0]["args"].append(f"--option=minPartitions={TASKS}")
        with applied(stage, objects):
            began = time.monotonic()
            wait_until("the driver reads", lambda: said(stage, driver), STARTED_S)
            stage.measure("from submit to reading", time.monotonic() - began)
            penstock.streams.delete(
                "pod", penstock.pod(penstock.leader(read)), now=True, wait_s=None
            )
            stage.expect(not newest(stage, driver), "the read was over before a broker was killed")
            wait_totals(stage, driver, RECORDS)
            penstock.streams.wait("job", name, lambda job: job["status"].get("succeeded") == 1)
            stage.measure("from submit to result", time.monotonic() - began)
    penstock.wait_brokers(3)
    left = penstock.streams.list("service,configmap,networkpolicy,pod", "spark-app-selector")
    stage.expect(not left, f"left over: {[each['metadata']['name'] for each in left]}")
