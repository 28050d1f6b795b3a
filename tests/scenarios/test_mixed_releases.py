"""Brokers and controllers of three releases in one cluster: N-2 to N and back, under load.

What former releases store and say is theirs: their own code runs, from their own trees. One load
has a group whose members stay, the other one transactions; `penstock verify` judges both.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.load import Load, assert_nothing_noticed, assert_whole
from support.processes import ServerProcess
from support.releases import Releases
from support.waiting import wait_until

from penstock.client import Admin, ReplicaMove, TopicPartition
from penstock.core.control.documents import FORMAT_NEWEST
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.errors import ClusterError, ErrorCode

GROUP = "stays"
MEMBERS = 2


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture
def cluster(
    tmp_path: Path, releases: Releases, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Four brokers and their controller, of the release that the test names."""
    folder = tmp_path / "cluster"
    with Cluster(folder, brokers=4, controller_config=PATIENT, start=False) as cluster:
        for process in cluster.processes:
            releases.use(process, request.param)
        cluster.start()
        yield cluster


@pytest.fixture
def load(cluster: Cluster, tmp_path: Path) -> Iterator[Load]:
    """Read by a group as well."""
    options = {"partitions": 3, "rate": 1_500, "group": GROUP, "members": MEMBERS}
    with Load(cluster, tmp_path / "history.jsonl", topic="mixed", **options) as load:
        yield load


@pytest.fixture
def transactions(cluster: Cluster, tmp_path: Path) -> Iterator[Load]:
    """Another topic's, so that the first load can say that every single record is there."""
    options = {"partitions": 3, "rate": 500, "transactions": True, "settle_s": 60.0}
    with Load(cluster, tmp_path / "transactions.jsonl", topic="whole", **options) as load:
        yield load


Change = Callable[[ServerProcess, str], None]


@pytest.fixture
def change(cluster: Cluster, releases: Releases, load: Load, transactions: Load) -> Change:
    """Stops a process and starts it as another release, when all replicas are in sync."""

    def change(process: ServerProcess, release: str) -> None:
        for topic in ("mixed", "whole", OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            cluster.wait_in_sync(topic)
        releases.stop(process)
        releases.use(process, release)
        process.start(wait=False)
        process.wait_serving()
        cluster.wait_controller()
        cluster.wait_alive(set(cluster.brokers))
        load.wait_writing()
        load.wait_read()
        transactions.wait_writing()

    return change


@pytest.fixture
def members(cluster: Cluster, load: Load) -> Callable[[], set[str]]:
    """Ids of the group's members, once all of them have a share."""
    assert load.config.group == GROUP

    def all_there() -> set[str]:
        with Admin(cluster.bootstrap) as admin:
            group = admin.describe_group(GROUP, include_offsets=False)
        having = {member.member_id for member in group.members if member.assigned}
        return having if len(having) == MEMBERS else set()

    return lambda: wait_until(all_there, what="every member of the group has a share")


@pytest.mark.parametrize("cluster", ["N-2"], indirect=True)
def test_a_cluster_skips_a_release_goes_one_back_and_forth_and_no_client_notices(
    cluster: Cluster,
    change: Change,
    members: Callable[[], set[str]],
    load: Load,
    transactions: Load,
) -> None:
    newest, *others = cluster.brokers.values()
    began = members()
    change(cluster.controller, "N")
    for broker in cluster.brokers.values():
        change(broker, "N")
    with Admin(cluster.bootstrap) as admin:
        assert admin.describe_moves().format == 1, "an upgrade alone can be taken back"
    change(newest, "N-2")
    with Admin(others[0].address) as admin:
        with pytest.raises(ClusterError, match="broker 0") as refused:
            admin.finalize()
        assert refused.value.code is ErrorCode.FORMAT_TOO_OLD
        change(newest, "N")

        admin.finalize()
        assert admin.describe_moves().format == FORMAT_NEWEST
        _move_one(admin, load)

    # One release back, with what the present one has stored, and forth again.
    for broker in others:
        change(broker, "N-1")
    change(cluster.controller, "N-1")
    with Admin(cluster.bootstrap) as admin:
        _move_one(admin, load)
    change(cluster.controller, "N")
    for broker in others:
        change(broker, "N")
    assert members() == began, "no member had to join again"
    _assert_held(load, transactions)


@pytest.mark.parametrize("cluster", ["N"], indirect=True)
def test_a_new_cluster_refuses_older_releases_until_its_format_is_taken_back(
    cluster: Cluster, change: Change, releases: Releases, load: Load, transactions: Load
) -> None:
    older, between, controller = cluster.brokers[3], cluster.brokers[2], cluster.controller
    releases.stop(older)
    releases.use(older, "N-2")
    older.start(wait=False)
    wait_until(
        lambda: "this cluster was finalized to format 2" in controller.log_text(),
        what="the controller refuses broker 3",
    )
    load.wait_writing()
    releases.stop(older)

    releases.stop(controller)
    releases.use(controller, "N-2")
    controller.start(wait=False)
    assert controller.wait_end(60) == 2
    assert "has format 2, but this version reads 1" in controller.log_text()
    releases.use(controller, "N")
    controller.start(wait=False)
    controller.wait_serving()
    cluster.wait_controller()

    with Admin(cluster.brokers[0].address) as admin:
        assert admin.describe_moves().format == FORMAT_NEWEST, "nothing was rewritten"
        # A format is chosen only while all brokers are there, and know it.
        releases.use(older, "N")
        older.start()
        cluster.wait_alive(set(cluster.brokers))
        admin.finalize(1)
    # All three beside each other; controllers of each release have the oldest one's documents.
    change(older, "N-2")
    change(between, "N-1")
    for release in ("N-2", "N-1", "N"):
        change(controller, release)
    _assert_held(load, transactions)


def _assert_held(load: Load, transactions: Load) -> None:
    verdict = load.judge()
    assert_nothing_noticed(verdict)
    assert verdict.delivered >= verdict.final, "the group got every record"
    wait_until(lambda: '"aborted"' in transactions.history.read_text(), what="one is aborted")
    assert_whole(transactions.judge())


def _move_one(admin: Admin, load: Load) -> None:
    """A partition's last replica goes to the broker that has none, and the move ends."""
    topic = load.config.topic
    [partition, *_] = admin.describe_topics([topic])[topic].partitions
    outside = next(one for one in range(4) if one not in partition.replicas)
    target = (*partition.replicas[:-1], outside)
    where = TopicPartition(topic, partition.partition)
    [outcome] = admin.alter_replicas([ReplicaMove(where, target, partition.replicas)])
    assert outcome.error is None

    def ended() -> bool:
        now = admin.describe_topics([topic])[topic].partitions[partition.partition]
        return set(now.replicas) == set(target) and not admin.describe_moves([topic]).moves

    wait_until(ended, what="the replica has moved", timeout_s=120)
    load.wait_writing()
