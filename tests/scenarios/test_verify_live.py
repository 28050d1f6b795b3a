"""`penstock verify` on a healthy cluster: figures, the command line, Ctrl-C, no cluster."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import command_line
from support.cluster import Cluster
from support.load import MakeLoad, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Acks, Admin, Sync
from penstock.verify.history import read_history


def verify(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return command_line.run("verify", *words)


@contextmanager
def running_verify(
    cluster: Cluster, history: Path, topic: str, *more: str, shows: str = '"ack"'
) -> Iterator["subprocess.Popen[str]"]:
    """`penstock verify run` on its way, once its history has this: records are acknowledged."""
    words = ["verify", "run", "--bootstrap", cluster.bootstrap, "--duration", "600"]
    words += ["--topic", topic, "--history", str(history), "-o", "json"]
    with command_line.start(
        *words, *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(
                lambda: history.exists() and shows in history.read_text(),
                what=f"the workload has {shows}",
                timeout_s=60,
            )
            yield process
        finally:
            process.kill()


def interrupted(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The figures of one that is ended by Ctrl-C."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    figures: dict[str, Any] = json.loads(output)
    return figures


def test_a_healthy_cluster_passes_with_sensible_figures(make_load: MakeLoad) -> None:
    with make_load(rate=3_000, consumers=2) as load:
        wait_until(lambda: sum(load.watch.counts().values()) > 300, what="two seconds of records")
        verdict = load.judge()
    assert_nothing_noticed(verdict)
    assert verdict.read == 2 * verdict.final, "each live reader sees every record once"
    assert 0 < verdict.write_gap_ms <= verdict.partition_write_gap_ms < 30_000
    assert 0 < verdict.read_gap_ms < 30_000


@pytest.mark.parametrize(("acks", "sync"), [(Acks.LEADER, Sync.OS), (Acks.ALL, Sync.DISK)])
def test_other_classes_of_acknowledgement_pass_too(
    make_load: MakeLoad, acks: Acks, sync: Sync
) -> None:
    with make_load(acks=acks, sync=sync) as load:
        verdict = load.judge()
    assert verdict.passed, verdict.to_dict()
    assert verdict.acknowledged == verdict.sent == verdict.final


def test_the_command_judges_and_keeps_the_history(cluster: Cluster, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl.gz"
    ran = verify(
        "run", "--bootstrap", cluster.bootstrap, "--duration", "4", "--topic", "by-command",
        "--partitions", "3", "--rate", "2000", "--history", history, "-o", "json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["verdict"] == "PASS"
    assert figures["acknowledged"] == figures["sent"] == figures["in_log"] > 0
    checked = verify("check", history, "-o", "json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout) == figures
    table = verify("check", history)
    assert "PASS" in table.stdout
    assert "longest write gap" in table.stdout
    with Admin(cluster.bootstrap) as admin:
        assert len(admin.describe_topics(["by-command"])["by-command"].partitions) == 3


def test_the_command_transfers_money_and_pipes_it(cluster: Cluster, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    words = ("--partitions", "3", "--bank", "--pipe", "--members", "2")
    with running_verify(cluster, history, "money", *words, shows='"committed"') as process:
        figures = interrupted(process)
    assert (figures["verdict"], figures["balance"]) == ("PASS", 0)
    assert figures["transfers_in_log"] == figures["transactions_committed"] > 0
    assert figures["piped"] == figures["in_log"] == 2 * figures["transfers_in_log"]
    assert "sum of all accounts" in verify("check", history).stdout


def test_the_command_passes_records_on_in_a_ring(cluster: Cluster, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    words = ("--partitions", "3", "--ring", "--members", "2", "--rate", "500")
    with running_verify(cluster, history, "round", *words, "--record-bytes", "48") as process:
        figures = interrupted(process)
    assert (figures["verdict"], figures["breaches"]) == ("PASS", {})
    assert figures["passed_on"] == 4 * figures["in_log"] > 0
    assert figures["ring_transactions_committed"] >= 4, "in each hop at least one"
    assert "passed on in the ring" in verify("check", history).stdout


def test_ctrl_c_ends_the_writing_and_judges_all_the_same(cluster: Cluster, tmp_path: Path) -> None:
    with running_verify(cluster, tmp_path / "history.jsonl", "interrupted") as process:
        figures = interrupted(process)
    assert figures["verdict"] == "PASS"
    assert figures["acknowledged"] == figures["sent"] == figures["in_log"] > 0


def test_a_second_ctrl_c_gives_up_a_cluster_that_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    with running_verify(cluster, tmp_path / "history.jsonl", "abandoned") as process:
        for broker in cluster.brokers.values():
            broker.kill()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "press Ctrl-C again to give up" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert output == ""
    assert "Traceback" not in errors
    assert "delivery failed" not in errors


def test_a_lost_record_in_a_history_fails_the_command(make_load: MakeLoad, tmp_path: Path) -> None:
    with make_load(consumers=0) as load:
        assert load.judge().passed
    dropped = next(e for e in read_history(load.history) if e["e"] == "final" and e["q"] > 0)
    kept = [
        json.dumps(event)
        for event in read_history(load.history)
        if (event["e"], event.get("s"), event.get("q")) != ("final", dropped["s"], dropped["q"])
    ]
    edited = tmp_path / "edited.jsonl"
    edited.write_text("\n".join(kept) + "\n")
    checked = verify("check", edited)
    assert checked.returncode == 1
    assert f"FAIL: {dropped['n']} records lost" in checked.stdout
    assert f"key {dropped['s']} sequences {dropped['q']} to" in checked.stdout
