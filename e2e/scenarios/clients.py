"""Who works with the cluster from outside: kubectl's plugin, the CLI, a client in Go."""

import json
import tempfile
import time
import zipfile
from pathlib import Path

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS
from e2e.harness.plugin import STREAMS_CLUSTER, plugin
from e2e.harness.process import (
    ROOT,
    Command,
    run,
    run_bytes,
    wait_until,
)
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import restore, rolled, uids

OUTSIDE = "from-outside"
RECORDS = 5_000
HELD_STILL_S = 10.0


def outside(*args: str, stdin: bytes | None = None) -> str:
    """The CLI against the Cluster, told only its name: it tunnels by itself."""
    return plugin("--cluster", "streams/flights", *args, stdin=stdin)


@scenario(
    "kubectl penstock: status, why, report, pause; topics and records by port-forward", short=True
)
def plugin_outside(stage: Stage) -> None:
    streams = stage.penstock.streams
    shown = json.loads(plugin("status", *STREAMS_CLUSTER, "-o", "json"))
    stage.expect(shown["ready"], f"status says {shown}")
    stage.expect("eady" in plugin("why", *STREAMS_CLUSTER), "why does not say that all is ready")
    outside("topic", "create", OUTSIDE, "--partitions=3", "--replicas=3")
    lines = "".join(f"{number % 7}:{number}\n" for number in range(RECORDS))
    outside("produce", OUTSIDE, "-K", ":", stdin=lines.encode())
    read = outside("consume", OUTSIDE, "-o", "beginning", "-e", "-f", "%k:%v\n")
    stage.expect(sorted(read.split()) == sorted(lines.split()), "other records than were written")
    outside("topic", "delete", OUTSIDE, "--yes")
    _report(stage)
    plugin("pause", *STREAMS_CLUSTER)
    wait_until("Paused is said", lambda: "aused" in _told(stage), 30.0)
    streams.delete("poddisruptionbudget", _budget(stage))
    until = time.monotonic() + HELD_STILL_S
    wait_until("a while", lambda: _budgets(stage) or time.monotonic() > until, 2 * HELD_STILL_S)
    stage.expect(not _budgets(stage), "the operator healed a paused Cluster")
    plugin("resume", *STREAMS_CLUSTER)
    wait_until("healed after the pause", lambda: _budgets(stage), 60.0)
    stage.penstock.wait_ready()


def _told(stage: Stage) -> str:
    return str(stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster).get("status"))


def _budgets(stage: Stage) -> list[Manifest]:
    return stage.penstock.streams.list("poddisruptionbudget", stage.penstock.broker_selector)


def _budget(stage: Stage) -> str:
    return str(_budgets(stage)[0]["metadata"]["name"])


def _report(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.zip")
        plugin("report", *STREAMS_CLUSTER, "-f", str(file), timeout_s=120.0)
        with zipfile.ZipFile(file) as bundle:
            names = bundle.namelist()
            text = b"\n".join(bundle.read(name) for name in names).decode(errors="replace")
    for part in ("status.json", "why.json", "logs/flights-broker-0", "metrics/flights-broker-0"):
        found = any(name.startswith(part) for name in names)
        stage.expect(found, f"the bundle has no {part}: {names}")
    stage.expect("errors.txt" not in names, "the bundle could not collect everything")
    stage.expect("eyJhbGciOi" not in text, "a token is in the support bundle")


def worker_address(stage: Stage) -> str:
    """Of a node, as programs outside the cluster reach it."""
    template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return run("docker", "inspect", "-f", template, stage.nodes.workers()[0]).strip()


@scenario("External clients use node ports: the CLI, a recorded workload, a client in Go")
def node_ports(stage: Stage) -> None:
    """Each broker's external address is the one that external clients get."""
    penstock, address = stage.penstock, worker_address(stage)
    external = {"type": "NodePort", "nodePort": 31_092}
    if penstock.strict:  # certificates name it
        external["host"] = address
    before = uids(stage)
    penstock.streams.patch(CLUSTERS, penstock.cluster, {"spec": {"external": external}})
    wait_until("brokers restarted", lambda: rolled(stage, before), 300.0)
    bootstrap = f"{address}:31092"
    at = ("--bootstrap", bootstrap)
    with tempfile.TemporaryDirectory() as folder:
        env = ("env", *penstock.variables(Path(folder)))
        command = (*env, ".venv/bin/penstock")
        shown = run(*command, "cluster", "describe", *at, "-o", "json")
        stage.expect(".svc" not in shown, f"inner names are told outside: {shown}")
        run(
            *command, "verify", "run", *at, f"--topic={OUTSIDE}", "--duration=5", "--rate=500",
            timeout_s=120.0,
        )  # fmt: skip
        penstock.cli("topic", "delete", OUTSIDE, "--yes")
        _go(stage, bootstrap, env)
    restore(stage, {"spec": {"external": None}})
    penstock.wait_ready()


def _go(stage: Stage, bootstrap: str, env: tuple[str, ...]) -> None:
    """The client in Go writes while a leader's process is killed, and reads everything back."""
    penstock = stage.penstock
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "penstock-go"))
        run("env", "-C", str(ROOT / "examples/go"), "go", "build", "-o", program,
            "./cmd/penstock-go", timeout_s=900.0)  # fmt: skip
        penstock.cli("topic", "create", OUTSIDE, "--partitions=3", "--replicas=3")
        at = ("--bootstrap", bootstrap, "--topic", OUTSIDE)
        for first in (0, RECORDS):
            lines = "".join(f"{each % 7}\t{each}\n" for each in range(first, first + RECORDS))
            run_bytes(Command((*env, program, "produce", *at), lines.encode(), timeout_s=120.0))
            leader = penstock.pod(penstock.leader(OUTSIDE))
            stage.nodes.kill_process(leader, penstock.streams)
        read = run(*env, program, "fetch", *at, timeout_s=120.0).split("\n")
        values = [int(line.partition("\t")[2]) for line in read if line]
        stage.expect(sorted(values) == list(range(2 * RECORDS)), f"read back {len(values)} records")
    penstock.wait_brokers(3)
    penstock.wait_in_sync(OUTSIDE)
    penstock.cli("topic", "delete", OUTSIDE, "--yes")
