"""`penstock broker forget`: who may be let go, and what is said to those who may not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.terminals import person_there
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.broker_forget import consequences, of_an_operator, refusal
from penstock.cli.broker_left import Left
from penstock.cli.main import app
from penstock.client import Admin, BrokerPlacement, Producer, ReplicaMove, TopicPartition

GONE = 2
FREE = Left(held=0, moving=0, coming=0, former=0)


def placement(*, alive: bool = False) -> BrokerPlacement:
    return BrokerPlacement(
        broker_id=GONE, directory_id="d-1", rack="", alive=alive, fresh=False, cordon=None,
        software_version="", formats=(1, 2),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("alive", "left", "why"),
    [
        (True, FREE, "is alive: empty it with penstock broker drain 2 --wait, and stop it"),
        (False, Left(0, 0, 1, 0), "of 1 partition; first: penstock partitions cancel --broker 2"),
        (False, Left(3, 2, 0, 0), "of 3 partitions, 2 of them moving to others; first: penstock"),
    ],
)
def test_what_the_cluster_needs_is_refused_with_the_command_that_helps(
    alive: bool, left: Left, why: str
) -> None:
    assert why in (refusal(placement(alive=alive), left) or "")


def test_former_copies_hold_nobody_up_and_are_named() -> None:
    left = Left(held=0, moving=0, coming=0, former=3)
    assert refusal(placement(), left) is None
    assert [one for one in consequences(placement(), left) if "of 3 partitions stay on its" in one]
    assert not [one for one in consequences(placement(), FREE) if "former" in one]


def test_an_operator_is_asked_by_annotations_of_its_cluster() -> None:
    told = of_an_operator(4, "travel/flights")
    begin = "kubectl annotate cluster.penstock.dev/flights -n travel penstock.dev/"
    assert f"{begin}forget-broker=4" in told
    assert f"{begin}replace-volume=4" in told


class Scene:
    """Three brokers, the last of which a test kills, and what the command says about it."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin

    def forget(self, *words: object, code: int = 0, stdin: str | None = None) -> str:
        env = {"PENSTOCK_BOOTSTRAP": self.cluster.bootstrap, "COLUMNS": "200"}
        asked = ["broker", "forget", *map(str, words)]
        with person_there(stdin is not None):
            done: Any = CliRunner().invoke(app, asked, env=env, input=stdin)
        assert done.exit_code == code, done.output
        return str(done.output)

    @property
    def registered(self) -> list[int]:
        return [one.broker_id for one in self.admin.describe_moves().brokers]

    def wait_dead(self) -> None:
        wait_until(
            lambda: not self.admin.describe_moves().brokers[GONE].alive, what="its session ended"
        )


def test_a_broker_goes_once_nothing_is_stored_or_shall_be_there(tmp_path: Path) -> None:
    config = {"replica.copy.bytes.per.second": "1"}
    with (
        Cluster(tmp_path, brokers=3, broker_config=config, controller_config=PATIENT) as cluster,
        Admin(cluster.bootstrap) as admin,
    ):
        scene = Scene(cluster, admin)
        cluster.create_topic("both", assignment=[[0, GONE]], configs={"min.insync.replicas": "1"})
        cluster.create_topic("coming", assignment=[[1]])
        with Producer(cluster.bootstrap) as producer:
            for _ in range(2_000):
                producer.send("coming", os.urandom(1_000))
        coming, both = TopicPartition("coming", 0), TopicPartition("both", 0)
        [move] = admin.alter_replicas([ReplicaMove(coming, target=(GONE,), expected=(1,))])
        assert move.error is None
        wait_until(
            lambda: [one.adding for one in admin.describe_moves(["coming"]).moves] == [(GONE,)],
            what="it is copied",
        )

        assert "there is no broker 9; there are 0, 1, 2" in scene.forget(9, "--yes", code=1)
        assert "broker 2 is alive" in scene.forget(GONE, "--yes", code=1)
        cluster.brokers[GONE].kill()
        scene.wait_dead()

        assert "partitions cancel --broker 2" in scene.forget(GONE, "--yes", code=1)
        [cancelled] = admin.alter_replicas([ReplicaMove(coming)])
        assert cancelled.error is None
        assert "penstock broker drain 2 --wait" in scene.forget(GONE, "--dry-run", code=1)
        gone = ReplicaMove(both, target=(0,), expected=(0, GONE))
        [dropped] = admin.alter_replicas([gone], change_factor=True)
        assert dropped.error is None
        wait_until(
            lambda: admin.describe_topics(["both"])["both"].partitions[0].replicas == (0,),
            what="it has no replica",
        )

        directory = admin.describe_moves().brokers[GONE].directory_id
        assert "give --yes" in scene.forget(GONE, "-o", "json", code=2)
        assert "broker 2 could be forgotten\n" in scene.forget(GONE, "--dry-run")
        assert scene.registered == [0, 1, GONE], "a dry run"
        shown = scene.forget(GONE, code=1, stdin="n\n")
        assert directory in shown
        assert "Forget broker 2?" in shown
        assert scene.registered == [0, 1, GONE], "nobody agreed"

        assert json.loads(scene.forget(GONE, "--yes", "-o", "json")) == {
            "broker": GONE, "directory_id": directory, "former_copies": 2, "dry_run": False,
        }  # fmt: skip
        assert scene.registered == [0, 1]
        assert admin.describe_moves().moves == (), "nobody waits for it any more"
        assert "there is no broker 2" in scene.forget(GONE, "--yes", code=1)

        cluster.brokers[GONE].start()
        cluster.wait_alive({0, 1, GONE})
        assert admin.describe_moves().brokers[GONE].fresh, "it is a new one"
