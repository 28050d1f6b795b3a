"""Moves, cordons and formats, asked of real brokers and a real controller."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import (
    Admin,
    BrokerChange,
    Cordon,
    FormatChange,
    MoveReason,
    MoveState,
    ReplicaMove,
    TopicPartition,
)
from penstock.errors import ClusterError, ErrorCode


@pytest.fixture
def admin(shared_cluster: Cluster) -> Iterator[Admin]:
    with Admin(shared_cluster.bootstrap) as admin:
        yield admin


def test_a_move_is_asked_for_and_carried_out(admin: Admin) -> None:
    admin.create_topic("moving", assignment=[[0, 1]])
    where = TopicPartition("moving", 0)
    move = ReplicaMove(where, target=(0, 2), expected=(1, 0))
    tried = admin.alter_replicas([move], validate_only=True)[0]
    assert (tried.state, tried.error) == (MoveState.QUEUED, None)
    assert admin.describe_moves(["moving"]).moves == ()
    stored, unknown = admin.alter_replicas(
        [move, ReplicaMove(TopicPartition("moving", 9), target=(0,))], reason=MoveReason.DRAIN
    )
    assert (stored.where, stored.replicas, stored.target) == (where, (0, 1), (0, 2))
    assert unknown.error is not None
    assert (unknown.error.code, unknown.state) == (ErrorCode.UNKNOWN_PARTITION, None)
    wait_until(lambda: admin.describe_moves(["moving"]).moves == (), what="the move ends")
    again = admin.alter_replicas([ReplicaMove(where)])[0]
    assert again.error is not None
    assert again.error.code is ErrorCode.NO_MOVE


def test_brokers_are_shown_with_release_and_cordon(admin: Admin) -> None:
    cordon = Cordon(placement=True, leadership=False, why="a disk", by="test")
    admin.alter_brokers([BrokerChange(1, cordon)])
    try:
        shown = {broker.broker_id: broker for broker in admin.describe_moves().brokers}
        assert shown[1].cordon == cordon
        assert shown[0].cordon is None
        assert all(2 in broker.formats and broker.software_version for broker in shown.values())
        assert all(broker.directory_id and broker.alive for broker in shown.values())
        with pytest.raises(ClusterError, match=r"\(cordoned: 1\)"):
            admin.create_topic("nowhere", 1, 3)
    finally:
        admin.alter_brokers(
            [BrokerChange(1, Cordon(placement=False, leadership=False), shown[1].directory_id)]
        )
    assert admin.describe_moves().brokers[1].cordon is None
    admin.alter_brokers([BrokerChange(2, spread=True)])
    assert not admin.describe_moves().brokers[2].fresh
    with pytest.raises(ClusterError, match="broker 9 is not registered"):
        admin.alter_brokers([BrokerChange(9, cordon)], validate_only=True)


def test_a_broker_is_unregistered_by_its_directory(admin: Admin) -> None:
    with pytest.raises(ClusterError, match="has a session"):
        admin.unregister_broker(1, directory_id="other")


def test_a_new_cluster_is_finalized(admin: Admin) -> None:
    found = admin.describe_moves()
    assert (found.format, found.newest_format, found.paused) == (2, 2, False)
    assert admin.finalize() == FormatChange(2, 2)
    with pytest.raises(ClusterError, match="format 7 does not exist"):
        admin.finalize(7)


def test_the_command_finalizes(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:

        def finalize(*words: str, code: int = 0) -> str:
            env = {"PENSTOCK_BOOTSTRAP": cluster.bootstrap}
            done: Any = CliRunner().invoke(app, ["cluster", "finalize", *words], env=env)
            assert done.exit_code == code, done.output
            return str(done.output)

        def record(*words: str) -> Any:
            return json.loads(finalize(*words, "-o", "json"))

        assert record("--to", "1", "--dry-run") == {
            "format_before": 2, "format": 1, "dry_run": True
        }  # fmt: skip
        assert record("--to", "1") == {"format_before": 2, "format": 1, "dry_run": False}
        with Admin(cluster.bootstrap) as admin:
            cordon = Cordon(placement=True, leadership=False)
            with pytest.raises(ClusterError, match="penstock cluster finalize") as refused:
                admin.alter_brokers([BrokerChange(0, cordon)])
            assert refused.value.code is ErrorCode.FORMAT_TOO_OLD
            assert "format before:" in finalize().lower()
            admin.alter_brokers([BrokerChange(0, cordon)])
        assert "broker 0 is cordoned" in finalize("--to", "1", code=1)
        assert "format 9 does not exist" in finalize("--to", "9", code=1)
