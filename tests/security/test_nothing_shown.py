"""Attack 25, its last part: no token or key where people and programs look.

Arguments of processes, logs, metrics, what commands say, records of a workload, a stopped broker's
dump, and what Spark's pages tell about a job. Paths of files with secrets may be there, never a
secret.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from support import command_line
from support.local import processes_of, write_manifest

from penstock_broker.local.cluster import CONTROLLER, LocalCluster, LocalOptions, Target

TOPIC = "flights"
JOB = """
import json, sys, urllib.request
from pyspark.sql import SparkSession

address, options = sys.argv[1], json.loads(sys.argv[2])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.warehouse.dir", sys.argv[3] + "/warehouse")
    .config("spark.local.dir", sys.argv[3])
    .getOrCreate()
)
read = spark.read.format("penstock").option("penstock.bootstrap.servers", address)
rows = read.options(**options).option("subscribe", "flights").load()
rows.createOrReplaceTempView("rows")
print("counted", spark.sql("select value from rows").count())
page = spark.sparkContext.uiWebUrl
app = f"/api/v1/applications/{spark.sparkContext.applicationId}"
for path in ("/environment/", "/jobs/", "/SQL/", "/SQL/execution/?id=0",
             f"{app}/environment", f"{app}/sql?details=true"):
    print(path, urllib.request.urlopen(page + path, timeout=60).read().decode())
spark.stop()
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("shown")
    manifest = write_manifest(folder)
    options = LocalOptions(secure=True)
    with LocalCluster.from_manifest(manifest, data_dir=folder / "d", options=options) as cluster:
        yield cluster


@pytest.fixture
def secrets(secure: LocalCluster) -> set[str]:
    """Lines of keys, and the parts of tokens, that are on the disk."""
    found: set[str] = set()
    for path in secure.directory.root.rglob("*"):
        if not path.is_file() or path.suffix not in {".pem", ".key", ".token", ".json", ""}:
            continue
        try:
            text = path.read_text(errors="replace")
        except FileNotFoundError:
            continue  # of a store that is at work
        if "PRIVATE KEY" in text:
            found |= {line for line in text.splitlines() if len(line) == 64}
        if text.startswith("eyJ"):
            found |= set(text.strip().split("."))
    assert len(found) > 5, "no secrets to look for"
    return found


def check(text: str, secrets: set[str], where: str) -> None:
    assert text, f"{where} is empty"
    assert not [secret for secret in secrets if secret in text], f"{where} shows a secret"
    assert "PRIVATE KEY" not in text, where
    assert "eyJ" not in text, where


def variables(secure: LocalCluster) -> dict[str, str]:
    own = secure.directory.client_files
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    files = {"PENSTOCK_CA_FILE": own["ca_file"], "PENSTOCK_TOKEN_FILE": own["token_file"]}
    return {**bare, **files, "PENSTOCK_BOOTSTRAP": secure.bootstrap}


def said(secure: LocalCluster, *words: str, text: str = "") -> str:
    """By the command, to both outputs."""
    done = command_line.run(*words, env=variables(secure), stdin=text)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_arguments_of_processes_and_logs(secure: LocalCluster, secrets: set[str]) -> None:
    commands = processes_of(secure.directory.root)
    assert len(commands) >= 2
    for command in commands.values():
        check(command, secrets, command)
    logs = list(secure.directory.root.rglob("*.log"))
    assert len(logs) >= 2
    for log in logs:
        check(log.read_text(errors="replace"), secrets, log.name)


def test_metrics(secure: LocalCluster, secrets: set[str]) -> None:
    """Their port is the only one that is never encrypted."""
    targets: list[Target] = [CONTROLLER, *secure.broker_ids]
    for target in targets:
        with urlopen(f"http://{secure.metrics_address(target)}/metrics", timeout=60) as answer:
            check(answer.read().decode(), secrets, f"the metrics of {target}")


def test_what_commands_say_and_workloads_record(
    secure: LocalCluster, secrets: set[str], tmp_path: Path
) -> None:
    history = tmp_path / "history.jsonl"
    load = ("--duration=1", "--rate=50", "--partitions=1", "--replicas=1", f"--history={history}")
    shown = [
        said(secure, "produce", TOPIC, text="one\n"),
        said(secure, "verify", "run", "--topic=shown", *load),
        said(secure, "cluster", "describe", "-o", "json"),
        said(secure, "acl", "list", "-o", "json"),
        said(secure, "local", "list", "-o", "json"),
        history.read_text(),
    ]
    for number, text in enumerate(shown):
        check(text or "nothing", secrets, f"output {number}")


def test_sparks_pages(secure: LocalCluster, secrets: set[str], tmp_path: Path) -> None:
    said(secure, "produce", TOPIC, text="two\n")
    own = secure.directory.client_files
    options = {"penstock.ca.file": own["ca_file"], "penstock.token.file": own["token_file"]}
    bare = {key: value for key, value in variables(secure).items() if "PENSTOCK" not in key}
    done = subprocess.run(
        [sys.executable, "-c", JOB, secure.bootstrap, json.dumps(options), str(tmp_path)],
        env={**bare, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
        timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "counted" in done.stdout
    assert "/environment/" in done.stdout
    check(done.stdout, secrets, "Spark's pages")
    check(done.stderr or "nothing", secrets, "Spark's log")


def test_a_dump_of_a_stopped_broker(secure: LocalCluster, secrets: set[str]) -> None:
    said(secure, "produce", TOPIC, text="three\n")
    secure.stop_broker(0)
    try:
        folder = next(secure.directory.root.rglob("broker-0"))
        dumped = said(secure, "dump-log", "--data-dir", str(folder), "-o", "json")
    finally:
        secure.start_broker(0)
    check(dumped, secrets, "the dump")
