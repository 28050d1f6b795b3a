"""`penstock report` outside of Kubernetes: whole, without secrets, and of broken clusters."""

import json
import os
import signal
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.local import processes_of
from support.waiting import wait_until

if TYPE_CHECKING:
    from .conftest import Program


def read(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as bundle:
        assert bundle.testzip() is None
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


def test_a_bundle_of_a_secure_cluster_has_everything_but_secrets(program: "Program") -> None:
    program.ok("local", "up", "--detach", "--port", 0, "--secure")
    program.ok("topic", "create", "orders", "-c", "retention.ms=7d")
    program.ok("produce", "orders", stdin="a record is nobody's business\n")
    program.ok("consume", "orders", "-g", "readers", "-e")
    file = program.folder / "all.zip"

    def reported() -> Any:
        """What is in it, once every process has answered within seconds, and all is in sync."""
        file.unlink(missing_ok=True)
        told = json.loads(program.ok("report", "-f", "all.zip", "-o", "json"))
        cluster = read(file).get("cluster.json", "{}")
        whole = json.loads(cluster).get("under_replicated_partitions") == 0
        return told if whole and "errors.txt" not in read(file) else None

    listed = wait_until(reported, what="a bundle without errors")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "logs are not for everybody"
    found = read(file)
    assert {one["file"]: one["bytes"] for one in listed} == {
        name: len(text.encode()) for name, text in found.items()
    }
    assert {
        "about.json", "local/state.json", "local/status.json", "local/manifest.yaml",
        "logs/broker-0.log", "logs/controller.log", "metrics/broker-2.txt",
        "metrics/controller.txt", "cluster.json", "topics.json", "log-dirs.json", "groups.json",
        "moves.json", "blocking-transactions.json", "broker-configs.json", "scrub.json",
    } == found.keys() - {f"logs/broker-{i}.log" for i in (1, 2)} - {
        "logs/supervisor.log", "metrics/broker-0.txt", "metrics/broker-1.txt",
    }  # fmt: skip
    topics = {one["topic_id"]: one for one in json.loads(found["topics.json"])}
    assert any({"name": "retention.ms", "value": "604800000", "default": False} in one["configs"]
               for one in topics.values())  # fmt: skip
    assert json.loads(found["groups.json"])[0]["lag"] == 0
    assert "penstock_" in found["metrics/broker-2.txt"]

    whole = "".join(found.values())
    security = program.folder / "state/penstock/local/local/security"
    secrets = [one for one in security.rglob("*") if one.suffix in {".token", ".key"}]
    assert secrets
    for secret in secrets:
        text = secret.read_text()
        inner = text.splitlines()[1] if "PRIVATE KEY" in text else text.strip()
        assert inner not in whole, secret.name
    assert "nobody's business" not in whole

    refused = program.fails("report", "-f", "all.zip")
    assert refused == "all.zip already exists; name another file"
    program.ok("local", "down")


def test_a_cluster_that_was_killed_has_a_bundle_with_its_logs(program: "Program") -> None:
    program.ok("local", "up", "--detach", "--port", 0)
    state = json.loads((program.folder / "state/penstock/local/local/state.json").read_text())
    pids = [state["supervisor"]["pid"], *(one["identity"]["pid"] for one in state["processes"])]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(program.folder), what="all have ended")
    said = program.fails("report", "-f", "dead.zip")
    assert said == "the brokers told nothing; errors.txt in dead.zip says why"
    found = read(program.folder / "dead.zip")
    brokers = [one["address"] for one in state["processes"] if one["name"] != "controller"]
    assert json.loads(found["about.json"])["bootstrap"] == ",".join(brokers)
    assert json.loads(found["local/status.json"])["phase"] == "down"
    assert "logs/broker-0.log" in found
    assert "no metrics from" in found["errors.txt"]
    assert "topics.json" not in found
    program.ok("local", "down")


def test_nobody_there_makes_a_bundle_that_says_so(program: "Program") -> None:
    done = program.run("report", "-f", "none.zip", "--bootstrap", "127.0.0.1:1", "-o", "json")
    assert done.returncode == 1
    assert done.stderr == "penstock: the brokers told nothing; errors.txt in none.zip says why\n"
    assert [one["file"] for one in json.loads(done.stdout)] == ["about.json", "errors.txt"]
    found = read(program.folder / "none.zip")
    assert found.keys() == {"about.json", "errors.txt"}
    assert "127.0.0.1:1" in found["errors.txt"]
