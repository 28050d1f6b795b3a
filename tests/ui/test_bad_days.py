"""What the console and `penstock top` say on bad days: the controller or a broker down, a topic of
5,000 partitions, values of a mebibyte, tokens that run out, a hundred tabs."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cluster import PATIENT, Cluster
from support.console import ConsoleProcess
from support.local import write_manifest
from support.metrics import scrape
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import Admin, Producer
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.security import LocalSecurity, write_token

PARTITIONS = 5_000
MIB = 1024 * 1024
PAGE_BYTES_MAX = 200_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("bad")
    with Cluster(folder, brokers=2, controller_config=PATIENT) as cluster:
        with Admin(cluster.bootstrap, request_timeout_ms=120_000) as admin:
            admin.create_topic("flights", 2, 2)
            admin.create_topic("blobs", 1, 2, {"max.message.bytes": str(2 * MIB)})
            admin.create_topic("wide", PARTITIONS, 1)
        with Producer(cluster.bootstrap) as producer:
            producer.send("flights", b"on time", key=b"UA", partition=0)
            producer.send("blobs", bytes(range(256)) * (MIB // 256))
            producer.send("wide", b"the last one", partition=PARTITIONS - 1)
        yield cluster


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("ui"), cluster.bootstrap) as console:
        console.sign_in()
        yield console


def words(console: ConsoleProcess) -> str:
    """What the first page says, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", console.get("/").text).split())


def top(cluster: Cluster) -> list[str]:
    """What it says is wrong; its exit code says so, too."""
    done = CliRunner().invoke(
        app, ["top", "--once", "-o", "json", "--bootstrap", cluster.bootstrap]
    )
    why = json.loads(done.stdout)["why"]
    assert done.exit_code == (0 if why["served"] else 1), done.output
    return [one["code"] for one in why["findings"]]


def test_a_topic_of_5000_partitions_has_small_pages(console: ConsoleProcess) -> None:
    for path, said in (
        ("/topics/wide", "1 to 100 of 5,000"),
        ("/topics/wide?page=50", "4,901 to 5,000 of 5,000"),
        ("/topics/wide/records", "only the first 200 of 5,000 partitions are read"),
        (f"/topics/wide/records?partition={PARTITIONS - 1}", "the last one"),
        ("/topics", "5,000"),
        ("/", "All is well"),
    ):
        answer = console.see(path, said)
        assert len(answer.body) < PAGE_BYTES_MAX, path


def test_a_value_of_a_mebibyte_is_cut_and_saved_whole(console: ConsoleProcess) -> None:
    assert len(console.see("/topics/blobs/records", "1.0 MiB").body) < 20_000
    shown = console.see("/topics/blobs/records/0/0", "1.0 MiB")
    assert len(shown.body) < PAGE_BYTES_MAX

    def saved() -> bool:
        answer = console.get("/topics/blobs/records/0/0/value.bin")
        return answer.body == bytes(range(256)) * (MIB // 256)

    wait_until(saved, what="the value is saved whole")


def test_a_hundred_tabs_ask_the_brokers_as_few(cluster: Cluster, console: ConsoleProcess) -> None:
    def asked(method: str) -> float:
        pages = [scrape(port) for port in cluster.metrics_ports.values()]
        return sum(page[f"penstock_request_seconds_count{{{method}}}"] for page in pages)

    paths = ["/", "/topics", "/topics/wide", "/groups"] * 25
    methods = ("DescribeCluster", "DescribeLogs", "ListGroups")
    before = {method: asked(method) for method in methods}
    with ThreadPoolExecutor(len(paths)) as tabs:
        answers = list(tabs.map(console.get, paths))
    assert {one.status for one in answers} == {200}
    for method in methods:
        # Once, or not at all where a page just before asked, or a few times on a slow machine,
        # where answers are too old before all have theirs; and of each broker. Without a memory it
        # would be 25 times at least.
        assert 0 < asked(method) <= before[method] + 20 * len(cluster.brokers), method


def test_without_a_controller_everything_is_shown_and_that_it_is_down(
    cluster: Cluster, console: ConsoleProcess
) -> None:
    cluster.controller.kill()
    try:
        wait_until(lambda: "controller-unreachable" in top(cluster), what="top says what is down")
        wait_until(
            lambda: "the controller" in console.get("/").text, what="the console says what is down"
        )
        for path, said in (
            ("/topics", "flights"),
            ("/topics/flights", "in sync"),
            ("/topics/flights/records", "on time"),
            ("/topics/flights/settings", "retention.ms"),
            ("/groups", "Groups"),
        ):
            console.see(path, said)
    finally:
        cluster.controller.start()
    wait_until(lambda: "All is well" in console.get("/").text, what="all is well again")


def test_with_a_broker_down_every_page_is_there_and_top_names_it(
    cluster: Cluster, console: ConsoleProcess
) -> None:
    cluster.brokers[1].kill()
    try:
        wait_until(lambda: "broker-down" in top(cluster), what="top names it")
        wait_until(lambda: "broker 1 is down" in words(console), what="the console, too")
        for path in ("/", "/topics", "/topics/flights", "/topics/wide", "/topics/flights/records"):
            assert console.get(path).status == 200, path
        console.see("/topics/flights/records?partition=0", "on time")
    finally:
        cluster.brokers[1].start()
    wait_until(lambda: "All is well" in console.get("/").text, what="all is well again")


def test_a_token_that_has_run_out_is_said_and_a_new_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LocalOptions(secure=True)
    manifest = write_manifest(tmp_path, patient=True)
    with LocalCluster.from_manifest(manifest, data_dir=tmp_path / "d", options=options) as secure:
        security = LocalSecurity(secure.directory, secure.cluster.name)
        token = tmp_path / "admin.token"
        with monkeypatch.context() as earlier:  # brokers accept one for half a minute longer
            an_hour_ago = SimpleNamespace(time_ns=lambda: time.time_ns() - 3_600 * 10**9)
            earlier.setattr("penstock_broker.local.security.time", an_hour_ago)
            write_token(token, security.token("admin", 60))
        files = secure.directory.client_files
        given = ("--ca-file", files["ca_file"], "--token-file", str(token))
        with ConsoleProcess(tmp_path, secure.bootstrap, *given) as console:
            console.sign_in()
            told = console.see("/", "You may not see how the cluster is", "the token expired")
            assert "All is well" not in told.text
            token.write_text(Path(files["token_file"]).read_text())
            wait_until(lambda: "All is well" in console.get("/").text, what="it is let in")
