"""A recorded workload read by a group: it passes, and a client that commits too early is caught."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import OffsetAndMetadata, TopicPartition
from penstock.client.consumer.assignment import Assignment
from penstock.core.groups.config import (
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    coordinator_partition,
)
from penstock.verify.check import check_files
from penstock.verify.history import Event, HistoryWriter
from penstock.verify.verdict import Verdict
from penstock.verify.workload import Workload
from penstock.verify.workload_config import WorkloadConfig

MakeCluster = Callable[..., Cluster]
SETTLE_S = 60.0
"""More than a session timeout. A member that closes while the coordinator is dead gives its leave
up after a few seconds, and the next coordinator keeps its seat for 45 s, as Kafka's does."""


class CountingWriter(HistoryWriter):
    """Counts what it writes: to read a long history again and again takes a core."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._counting = threading.Lock()
        self.kinds: Counter[str] = Counter()

    def write(self, event: Event) -> None:
        super().write(event)
        with self._counting:
            self.kinds[event["e"]] += 1


def run(cluster: Cluster, path: Path, until: Callable[[Counter[str]], bool]) -> Verdict:
    """A workload with a group until the kinds of events so far are enough; the verdict."""
    config = WorkloadConfig(
        cluster.bootstrap, "t", 4, 1, consumers=0, producers=1, keys=4, rate=1_000,
        group="g", members=3, churn_s=1.5, settle_s=SETTLE_S,
    )  # fmt: skip
    with CountingWriter(path) as writer:
        workload = Workload(config, writer)
        workload.start()
        try:
            wait_until(
                lambda: until(writer.kinds),
                what="members came, went and committed",
                timeout_s=60,
            )
        finally:
            workload.stop()
    return check_files([path])


def test_a_group_whose_members_come_and_go_gets_everything(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(brokers=1)
    verdict = run(
        cluster,
        tmp_path / "history.jsonl",
        lambda kinds: kinds["leaves"] >= 12 and kinds["stored"] >= 20,
    )
    assert verdict.passed, verdict.breaches
    assert verdict.delivered >= verdict.final > 0


def test_a_group_survives_its_coordinators(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(brokers=3)
    path = tmp_path / "history.jsonl"
    config = WorkloadConfig(
        cluster.bootstrap, "t", 4, 3, consumers=0, producers=1, keys=4, rate=500,
        group="g", members=3, churn_s=3.0, settle_s=SETTLE_S,
    )  # fmt: skip
    with CountingWriter(path) as writer:
        workload = Workload(config, writer)
        workload.start()
        try:
            for _ in range(2):
                wait_for_commits(writer, 9)
                place = coordinator_partition("g", OFFSETS_PARTITIONS)
                broker = cluster.brokers[cluster.leader(OFFSETS_TOPIC, place)]
                broker.kill()
                wait_for_commits(writer, 5)
                broker.start()
        finally:
            workload.stop()
    verdict = check_files([path])
    assert verdict.passed, verdict.breaches
    assert verdict.delivered >= verdict.final > 0


def wait_for_commits(writer: CountingWriter, more: int) -> None:
    """Until that many more movements of committed offsets stand in the history."""
    enough = writer.kinds["stored"] + more
    wait_until(lambda: writer.kinds["stored"] >= enough, what=f"{more} commits", timeout_s=40)


def test_the_command_runs_a_group(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    done = CliRunner().invoke(
        app,
        ["verify", "run", "--duration", "4", "--replicas", "1", "--consumers", "0", "--rate", "500",
         "--group", "g", "--members", "2", "--churn", "1", "-o", "json"],
        env={"PENSTOCK_BOOTSTRAP": cluster.bootstrap},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    verdict = json.loads(done.stdout)
    assert verdict["delivered"] >= verdict["in_log"] > 0


def test_a_client_that_commits_what_it_has_not_handed_out_is_caught(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def early(self: Assignment, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """The planted bug: what was fetched ahead counts as done."""
        del only_done
        return {
            where: OffsetAndMetadata(state.fetch_offset)
            for where, state in self.states.items()
            if self.progress(where).is_newer(state.fetch_offset)
        }

    monkeypatch.setattr(Assignment, "to_commit", early)
    cluster = make_cluster(brokers=1)
    verdict = run(
        cluster,
        tmp_path / "history.jsonl",
        lambda kinds: kinds["leaves"] >= 12 and kinds["stored"] >= 40,
    )
    assert set(verdict.breaches) & {"ahead", "undelivered"}, verdict.to_dict()
