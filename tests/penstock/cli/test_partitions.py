"""`penstock partitions …`, `penstock broker …`, `topic alter --replicas` on a real cluster."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.terminals import person_there
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.broker import cancel_drain
from penstock.cli.main import app
from penstock.cli.move_status import summary, table
from penstock.client import (
    Admin,
    CopyDescription,
    MoveDescription,
    MovesDescription,
    MoveState,
    Producer,
    ReplicaMove,
    TopicPartition,
)

_numbers = count()
THROTTLED = {"replica.copy.bytes.per.second": "1"}


@dataclass(frozen=True)
class Moving:
    """The command line of a cluster of four brokers; the last one holds nothing.

    Their throttle lets one message of a copy pass, and then no more: the move of a topic that was
    made with `heavy` does not end.
    """

    bootstrap: str
    admin: Admin

    def run(self, *words: object, code: int = 0, stdin: str | None = None) -> str:
        """Its output, standard error included; it must end with `code`."""
        env = {"PENSTOCK_BOOTSTRAP": self.bootstrap, "COLUMNS": "200"}
        with person_there(stdin is not None):
            done: Any = CliRunner().invoke(app, [str(word) for word in words], env=env, input=stdin)
        assert done.exit_code == code, done.output
        return str(done.output)

    def json(self, *words: object, code: int = 0) -> Any:
        return json.loads(self.run(*words, "-o", "json", code=code))

    def topic(self, *assignment: Sequence[int], records: int = 0, heavy: bool = False) -> str:
        """A new topic with these replicas; its first partition gets records, or each several
        messages of a copy."""
        name = f"moving-{next(_numbers)}"
        self.admin.create_topic(name, assignment=[list(one) for one in assignment])
        if heavy:
            with Producer(self.bootstrap) as producer:
                for number in range(len(assignment) * 2_000):
                    producer.send(name, os.urandom(1_000), partition=number % len(assignment))
        if records:
            with Producer(self.bootstrap) as producer:
                for _ in range(records):
                    producer.send(name, b"some text", partition=0)
        return name

    def replicas(self, topic: str) -> list[tuple[int, ...]]:
        seen = self.admin.describe_topics([topic])[topic]
        return [one.replicas for one in seen.partitions]

    def state(self, where: str) -> dict[str, Any]:
        """Its row of the status; {} = settled."""
        moves = self.json("partitions", "status")["moves"]
        return next((one for one in moves if one["partition"] == where), {})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moving]:
    with (
        Cluster(
            tmp_path_factory.mktemp("moving"),
            brokers=4,
            broker_config=THROTTLED,
            controller_config=PATIENT,
        ) as servers,
        Admin(servers.bootstrap) as admin,
    ):
        yield Moving(servers.bootstrap, admin)


@pytest.fixture
def at_rest(shared_cluster: Cluster) -> Iterator[Moving]:
    """Three brokers, of which nothing moves."""
    with Admin(shared_cluster.bootstrap) as admin:
        yield Moving(shared_cluster.bootstrap, admin)


@pytest.fixture
def moving(cluster: Moving) -> Iterator[Moving]:
    """Of which each test leaves nothing moving and nobody cordoned."""
    yield cluster
    cluster.run("partitions", "cancel", "--all")
    for one in cluster.json("broker", "list"):
        if one["cordon"]:
            cluster.run("broker", "uncordon", one["broker"])


def plan_of(moving: Moving, tmp_path: Path, *words: object) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(moving.run("partitions", "plan", *words, "-o", "json"))
    return file


# ---------------------------------------------------------------- plan


def test_a_plan_names_what_moves_and_changes_nothing(moving: Moving) -> None:
    topic = moving.topic([0], [1], [0])
    made = moving.json("partitions", "plan", "--drain", 0)
    own = {one["partition"]: one for one in made["moves"] if one["topic"] == topic}
    assert set(own) == {0, 2}
    assert all(one["expected"] == [0] and 0 not in one["target"] for one in own.values())
    assert made["reason"] == "drain"
    by_id = {one["broker"]: one for one in made["brokers"]}
    assert by_id[0]["replicas"][1] == 0
    assert by_id[0]["out_bytes"] == made["copied_bytes"]
    assert moving.replicas(topic) == [(0,), (1,), (0,)]


def test_a_table_shows_moves_brokers_and_the_sum(moving: Moving) -> None:
    topic = moving.topic([0], [1])
    made = moving.json("partitions", "plan", "--topic", topic, "--replicas", 2)
    out = moving.run("partitions", "plan", "--topic", topic, "--replicas", 2)
    assert f"{topic}/0" in out
    assert "COPIES-IN" in out
    assert f"plan {made['id']}: 2 moves" in out, "the same cluster, the same plan"
    assert "0 B to copy" in out


def test_what_runs_already_is_not_planned_again(moving: Moving) -> None:
    topic = moving.topic([0], [1], heavy=True)  # the copy does not end
    moving.run("partitions", "move", f"{topic}/0", "--to", "3", "--yes")
    moves = moving.json("partitions", "plan", "--drain", 0)["moves"]
    assert topic not in [one["topic"] for one in moves]
    assert moving.run("partitions", "plan", "--topic", topic, "-r", 1) == "nothing to move\n"


def test_what_cannot_be_is_refused_with_numbers(moving: Moving) -> None:
    topic = moving.topic([0, 1])
    assert moving.run("partitions", "plan", "--topic", topic, "-r", 5, code=1) == (
        f"penstock: nothing can be moved: 4 brokers may be used, and these topics need more: "
        f"{topic} (5 replicas); needs 1 more broker, or fewer replicas of these topics\n"
    )
    unknown = moving.run("partitions", "plan", "--onto", "7", code=1)
    assert "there is no broker 7; there are 0, 1, 2, 3" in unknown


def test_a_plan_wants_one_wish(moving: Moving) -> None:
    one_of = "give one of --drain, --onto, --topic with --replicas, --balance"
    assert one_of in moving.run("partitions", "plan", code=2)
    assert one_of in moving.run("partitions", "plan", "--balance", "--drain", 1, code=2)
    both = moving.run("partitions", "plan", "--balance", "--replicas", 1, code=2)
    assert "--topic and --replicas go together" in both


@pytest.mark.parametrize("text", ["x", "1,", "-1", "1,1", "99999999999"])
def test_brokers_are_named_by_number(moving: Moving, text: str) -> None:
    assert "broker" in moving.run("partitions", "plan", "--drain", text, code=2)


# ---------------------------------------------------------------- move


def test_a_plan_is_submitted_from_its_file(moving: Moving, tmp_path: Path) -> None:
    topic = moving.topic([0, 1], [0, 1])
    file = plan_of(moving, tmp_path, "--topic", topic, "--replicas", 1)
    tried = moving.json("partitions", "move", "--plan", file, "--dry-run")
    assert [one["refused"] for one in tried] == [None, None]
    assert moving.replicas(topic) == [(0, 1), (0, 1)], "a dry run"
    refused = moving.run("partitions", "move", "--plan", file, code=1, stdin="n\n")
    plan = json.loads(file.read_text())["id"]
    assert f"{topic}/1" in refused
    assert f"plan {plan}: 2 moves, 0 B to copy" in refused
    assert f"Carry out plan {plan}?" in refused
    assert moving.replicas(topic) == [(0, 1), (0, 1)], "nobody agreed"
    assert "give --yes" in moving.run("partitions", "move", "--plan", file, "-o", "json", code=2)
    out = moving.run("partitions", "move", "--plan", file, "--yes")
    assert "2 of 2 moves submitted" in out
    wait_until(
        lambda: [len(one) for one in moving.replicas(topic)] == [1, 1], what="one replica each"
    )


def test_a_plan_that_is_too_old_is_refused_partition_by_partition(
    moving: Moving, tmp_path: Path
) -> None:
    topic = moving.topic([0, 1, 2], [0, 1, 2])
    file = plan_of(moving, tmp_path, "--topic", topic, "--replicas", 2)
    one = ReplicaMove(TopicPartition(topic, 0), target=(0,), expected=(0, 1, 2))
    (outcome,) = moving.admin.alter_replicas([one], change_factor=True)
    assert outcome.error is None
    asked = moving.run("partitions", "move", "--plan", file, code=1, stdin="n\n")
    assert ", but for 1 that the cluster refuses?" in asked
    out = moving.run("partitions", "move", "--plan", file, "--yes", code=1)
    assert "1 of 2 moves submitted" in out
    assert f"{topic}/0 is expected to have the replicas 0, 1, 2, but has 0" in out
    wait_until(lambda: len(moving.replicas(topic)[1]) == 2, what="the other one is carried out")


def test_a_plan_is_not_for_a_later_topic_of_the_same_name(moving: Moving, tmp_path: Path) -> None:
    topic = moving.topic([0, 1])
    file = plan_of(moving, tmp_path, "--topic", topic, "--replicas", 1)
    moving.admin.delete_topic(topic)
    moving.admin.create_topic(topic, assignment=[[0, 1]])
    out = moving.run("partitions", "move", "--plan", file, "--yes", code=1)
    assert "it was deleted and re-created" in out
    assert "0 of 1 moves submitted" in out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '"x"',
        '{"id": "1", "reason": "drain", "moves": [{"topic": "t"}]}',
        "not json",
    ],
)
def test_a_file_that_is_no_plan_is_refused(moving: Moving, tmp_path: Path, text: str) -> None:
    file = tmp_path / "no-plan.json"
    file.write_text(text)
    out = moving.run("partitions", "move", "--plan", file, "--yes", code=1)
    assert f"{file} is not a plan" in out
    assert "penstock partitions plan -o json > FILE" in out


@pytest.mark.parametrize("value", [-1, "1", True, None, 1.5])
def test_numbers_of_a_plan_are_checked(moving: Moving, tmp_path: Path, value: object) -> None:
    topic = moving.topic([0, 1])
    found = moving.json("partitions", "plan", "--topic", topic, "--replicas", 1)
    found["moves"][0]["target"] = [value]
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(found))
    assert "is not a plan" in moving.run("partitions", "move", "--plan", file, "--yes", code=1)
    found["moves"][0]["target"] = value
    file.write_text(json.dumps(found))
    assert "is not a plan" in moving.run("partitions", "move", "--plan", file, "--yes", code=1)


def test_a_plan_that_was_changed_is_refused(moving: Moving, tmp_path: Path) -> None:
    topic = moving.topic([0, 1])
    file = plan_of(moving, tmp_path, "--topic", topic, "--replicas", 1)
    found = json.loads(file.read_text())
    found["moves"][0]["target"] = [2]
    file.write_text(json.dumps(found))
    out = moving.run("partitions", "move", "--plan", file, "--yes", code=1)
    assert f"it says plan {found['id']}, and its moves make " in out
    assert moving.replicas(topic) == [(0, 1)]


def test_a_partition_is_moved_by_hand_shown_and_cancelled(moving: Moving) -> None:
    topic = moving.topic([0, 1], heavy=True)
    out = moving.run("partitions", "move", f"{topic}/0", "--to", "2,0", code=1, stdin="n\n")
    assert "1 move, 1.9 MiB to copy; 1 preferred leaders change" in out
    assert "Carry out this move?" in out
    assert moving.state(f"{topic}/0") == {}, "nobody agreed"
    moving.run("partitions", "move", f"{topic}/0", "--to", "2,0", "--yes")
    seen = moving.state(f"{topic}/0")
    assert (seen["target"], seen["reason"]) == ([2, 0], "manual")
    assert f"{topic}/0" in moving.run("partitions", "status")
    assert "1 of 1 moves could be cancelled" in moving.run(
        "partitions", "cancel", f"{topic}/0", "--dry-run"
    )
    assert moving.state(f"{topic}/0")["target"] == [2, 0]
    assert "1 of 1 moves cancelled" in moving.run("partitions", "cancel", f"{topic}/0")
    assert moving.state(f"{topic}/0").get("target", []) == []
    assert moving.replicas(topic) == [(0, 1)]
    again = moving.run("partitions", "cancel", f"{topic}/0", code=1)
    assert f"{topic}/0 has no move to cancel" in again


def test_nobody_is_asked_about_a_move_that_is_refused(moving: Moving) -> None:
    topic = moving.topic([0, 1])
    out = moving.run("partitions", "move", f"{topic}/0", "--to", "9,1", code=1, stdin="y\n")
    assert "Carry out" not in out
    assert "0 of 1 moves submitted" in out
    assert "9" in out.splitlines()[-2]
    told = moving.run("partitions", "cancel", "--broker", 99, code=1)
    assert "there is no broker 99; there are 0, 1, 2, 3" in told
    assert "nothing to do" in moving.run("partitions", "cancel", "--broker", 3)


def test_another_preferred_leader_needs_no_copy(moving: Moving) -> None:
    topic = moving.topic([0, 1])
    moving.run("partitions", "move", f"{topic}/0", "--to", "1,0", "--yes")
    wait_until(lambda: moving.replicas(topic) == [(1, 0)], what="the new order")


def test_a_move_by_hand_keeps_the_number_of_replicas(moving: Moving) -> None:
    topic = moving.topic([0, 1])
    out = moving.run("partitions", "move", f"{topic}/0", "--to", "1", "--yes", code=1)
    assert f"{topic}/0 has 2 replicas, and --to names 1" in out
    assert f"penstock topic alter {topic} --replicas 1" in out


def test_partitions_are_named_with_their_number(moving: Moving) -> None:
    topic = moving.topic([0])
    for wrong in (topic, "/0", f"{topic}/x", f"{topic}/"):
        out = moving.run("partitions", "move", wrong, "--to", "1", "--yes", code=2)
        assert "must be TOPIC/PARTITION, as flights/3" in out
    beyond = moving.run("partitions", "move", f"{topic}/1", "--to", "1", "--yes", code=1)
    assert f"topic {topic} has partitions 0 to 0, not 1" in beyond
    both = moving.run("partitions", "move", f"{topic}/0", "--yes", code=2)
    assert "give --plan FILE, or TOPIC/PARTITION and --to" in both


# ---------------------------------------------------------------- cancel, status


def test_moves_are_cancelled_by_topic_and_by_broker(moving: Moving) -> None:
    first, second = moving.topic([0], [1], heavy=True), moving.topic([0], [1], heavy=True)
    for topic in (first, second):
        for partition in (0, 1):
            moving.run("partitions", "move", f"{topic}/{partition}", "--to", "3", "--yes")
    assert "2 of 2 moves cancelled" in moving.run("partitions", "cancel", first)
    assert "1 of 1 moves cancelled" in moving.run("partitions", "cancel", "--broker", 0)
    assert moving.state(f"{second}/1")["target"] == [3]
    assert "1 of 1 moves cancelled" in moving.run("partitions", "cancel", "--all")
    assert "nothing to do" in moving.run("partitions", "cancel", "--all")
    one_of = "give one of TOPIC[/PARTITION], --broker, --all"
    assert one_of in moving.run("partitions", "cancel", code=2)
    assert one_of in moving.run("partitions", "cancel", "--all", "--broker", 0, code=2)
    assert "nope" in moving.run("partitions", "cancel", "nope", code=1)


def test_status_watches_until_nothing_moves(at_rest: Moving) -> None:
    assert at_rest.run("partitions", "status", "--watch") == "nothing moves\n"
    refused = at_rest.run("partitions", "status", "--watch", "-o", "json", code=2)
    assert "--watch prints tables for people" in refused


def test_a_line_sums_up_all_moves() -> None:
    copy = CopyDescription(
        broker_id=4, bytes_left=3 << 30, bytes_per_second=38 << 20, limited_by=""
    )
    copying = MoveDescription(
        where=TopicPartition("t", 0), topic_id="", state=MoveState.COPYING, reason=None, leader=0,
        replicas=(0,), isr=(0,), target=(4,), adding=(4,), dropping=(), damaged=(),
        waiting_for="", copies=(copy,),
    )  # fmt: skip
    queued = replace(copying, state=MoveState.QUEUED, adding=(), copies=())
    dropping = replace(queued, state=MoveState.SETTLED, target=(), dropping=(1,))
    seen = MovesDescription(
        moves=(copying, queued, queued), brokers=(), format=2, newest_format=2, paused=False
    )
    assert summary(seen) == "1 copying, 2 queued, 3 GiB left at 38 MiB/s, about 2 min"
    quick = replace(copying, copies=(replace(copy, broker_id=5, bytes_left=1 << 20),))
    both = replace(seen, moves=(copying, quick))
    assert summary(both) == "2 copying, 3 GiB left at 76 MiB/s, about 2 min", "not 1 min"
    paused = replace(seen, moves=(queued, dropping), paused=True)
    assert summary(paused) == (
        "1 queued, 1 with former copies to delete, paused: the metadata store is unavailable"
    )
    assert summary(replace(seen, moves=(), paused=True)) == "nothing moves"
    stopped = replace(copying, copies=(replace(copy, bytes_per_second=0),))
    silent = replace(copying, copies=())
    assert summary(replace(seen, moves=(stopped, silent))) == (
        "2 copying, 3 GiB left, nothing copied now, 1 of unknown size"
    )


def test_a_row_says_how_far_a_copy_is_and_unknown_if_nobody_has_said_it() -> None:
    copy = CopyDescription(
        broker_id=4, bytes_left=3 << 30, bytes_per_second=38 << 20, limited_by="the copy rate",
        known_for_ms=9, stalled_for_ms=0,
    )  # fmt: skip
    copying = MoveDescription(
        where=TopicPartition("t", 0), topic_id="", state=MoveState.COPYING, reason=None, leader=0,
        replicas=(0,), isr=(0,), target=(4, 5), adding=(4, 5), dropping=(), damaged=(),
        waiting_for="", copies=(copy, replace(copy, broker_id=5, bytes_left=0)),
    )  # fmt: skip
    seen = MovesDescription(moves=(copying,), brokers=(), format=2, newest_format=2, paused=False)
    assert (copying.bytes_left, copying.seconds_left) == (3 << 30, 81)
    for text in ("3 GiB", "76 MiB/s", "about 2 min", "the copy rate"):
        assert text in table(seen).splitlines()[1]
    half_known = replace(copying, copies=(copy,))
    assert (half_known.bytes_left, half_known.seconds_left) == (None, None)
    row = table(replace(seen, moves=(half_known,))).splitlines()[1]
    assert row.count("unknown") == 3
    away = replace(copying, copies=(replace(copy, bytes_per_second=0),) * 2)
    assert (away.bytes_left, away.seconds_left) == (6 << 30, None)


def test_a_copy_shows_how_far_it_is_and_follows_the_throttle(moving: Moving) -> None:
    topic = moving.topic([0], heavy=True)
    moving.run("partitions", "move", f"{topic}/0", "--to", "3", "--yes")

    def held() -> dict[str, Any]:
        row = moving.state(f"{topic}/0")
        (copy,) = row.get("copies") or [{}]
        return row if "copy rate" in copy.get("limited_by", "") else {}

    row = wait_until(held, what="the throttle is what it waits for")
    assert 0 < row["bytes_left"] <= 2_100_000
    assert "copy rate" in row["copies"][0]["limited_by"]
    assert row["copies"][0]["broker"] == 3
    assert "copy rate" in moving.run("partitions", "status")
    assert moving.json("partitions", "throttle")["copy_rate"] is None

    assert "could be set: no limit" in moving.run("partitions", "throttle", "none", "--dry-run")
    assert moving.run("partitions", "throttle", "none") == "copy rate set: no limit\n"
    wait_until(lambda: moving.replicas(topic) == [(3,)], what="it moves without a limit")
    assert "no limit" in moving.run("partitions", "throttle")
    plan = moving.run("partitions", "plan", "--topic", topic, "--replicas", 2)
    assert "/s per broker" not in plan, "there is no rate to tell the time by"

    assert moving.json("partitions", "throttle", "40MiB") == {
        "copy_rate": 40 << 20, "dry_run": False,
    }  # fmt: skip

    def followed() -> bool:
        seen = moving.json("partitions", "throttle")
        return {one["copy_rate"] for one in seen["brokers"]} == {40 << 20}

    wait_until(followed, what="every broker has the rate")
    assert "40 MiB/s per broker" in moving.run(
        "partitions", "plan", "--topic", topic, "--replicas", 2
    )
    assert "replica.copy.bytes.per.second" in moving.run("partitions", "throttle", "default")

    by = "spec.balance.throttle of Cluster a/b"
    moving.admin.alter_throttle(1 << 20, by=by)
    for rate in ("40Mi", "none", "default"):
        assert f"is set by {by}: change it there" in moving.run(
            "partitions", "throttle", rate, code=1
        )
    assert f"set for the cluster: 1 MiB/s, by {by}" in moving.run("partitions", "throttle")
    assert moving.json("partitions", "throttle")["by"] == by
    moving.admin.alter_throttle(None, by=by)
    assert moving.json("partitions", "throttle")["by"] == ""
    for wrong in ("0", "fast", "-1", "4 MiB"):
        refused = moving.run("partitions", "throttle", "--", wrong, code=2)
        assert f"{wrong!r} is no rate" in refused


# ---------------------------------------------------------------- brokers


def test_brokers_are_listed_with_what_they_hold(moving: Moving) -> None:
    moving.topic([0], [1], records=10)
    rows = {one["broker"]: one for one in moving.json("broker", "list")}
    assert set(rows) == {0, 1, 2, 3}
    assert rows[0]["replicas"] > 0
    assert rows[0]["size_bytes"] > 0
    assert rows[0]["replicas"] > rows[3]["replicas"]
    assert rows[0]["free_bytes"] > 0
    assert rows[0]["cordon"] is None
    table = moving.run("broker", "list")
    assert " SIZE " in table
    assert "iB" in table, "sizes are for people"


def test_a_cordon_is_set_shown_and_lifted(moving: Moving) -> None:
    assert "could be cordoned" in moving.run("broker", "cordon", 2, "--dry-run")
    assert moving.json("broker", "describe", 2)["cordon"] is None
    moving.run("broker", "cordon", 2, "--leaders", "--why", "its disk is slow")
    seen = moving.json("broker", "describe", 2)
    assert (seen["cordon"], seen["why"]) == ("placement and leadership", "its disk is slow")
    topic = moving.topic([0])
    refused = moving.run("partitions", "move", f"{topic}/0", "--to", "2", "--yes", code=1)
    assert "on 2, which are cordoned" in refused
    assert "could be uncordoned" in moving.run("broker", "uncordon", 2, "--dry-run")
    moving.run("broker", "uncordon", 2)
    assert moving.json("broker", "describe", 2)["cordon"] is None
    assert "there is no broker 9; there are 0, 1, 2, 3" in moving.run(
        "broker", "describe", 9, code=1
    )
    assert "broker 9 is not registered" in moving.run("broker", "cordon", 9, code=1)


def test_a_drain_cordons_and_moves_and_can_be_taken_back(moving: Moving) -> None:
    topic = moving.topic([1], [0], heavy=True)
    shown = moving.run("broker", "drain", 1, "--dry-run")
    assert f"{topic}/0" in shown
    assert moving.json("broker", "describe", 1)["cordon"] is None, "a dry run"
    refused = moving.run("broker", "drain", 1, code=1, stdin="n\n")
    assert f"{topic}/0" in refused, "the plan is shown before anybody is asked"
    assert "Cordon 1, and carry out plan " in refused
    assert moving.json("broker", "describe", 1)["cordon"] is None, "nobody agreed"
    assert "give --yes" in moving.run("broker", "drain", 1, "-o", "json", code=2)
    out = moving.run("broker", "drain", 1, stdin="y\n")
    assert "penstock broker drain 1 --wait" in out
    assert "broker 1 stays cordoned until: penstock broker uncordon 1\n" in out, "no operator"
    assert moving.state(f"{topic}/0")["reason"] == "drain"
    seen = moving.json("broker", "describe", 1)
    assert (seen["cordon"], seen["why"]) == ("placement", "drain")
    assert f"{topic}/0" in [one["partition"] for one in seen["moves"]]
    assert moving.state(f"{topic}/1") == {}, "on another broker"
    again = moving.run("broker", "drain", 1)
    assert topic not in again, "what moves already is not moved again, and nobody is asked"
    tried = moving.run("broker", "drain", 1, "--cancel", "--dry-run")
    assert "broker 1 could be uncordoned\n" in tried
    assert " moves could be cancelled" in tried
    assert moving.state(f"{topic}/0")["target"], "a dry run"
    assert moving.json("broker", "describe", 1)["cordon"] == "placement", "a dry run"
    out = moving.run("broker", "drain", 1, "--cancel")
    assert "broker 1 is not cordoned\n" in out
    assert " moves cancelled" in out
    assert moving.json("broker", "describe", 1)["cordon"] is None
    assert moving.state(f"{topic}/0").get("target", []) == []
    assert moving.replicas(topic) == [(1,), (0,)]
    both = moving.run("broker", "drain", 1, "--cancel", "--wait", code=2)
    assert "--cancel does not go with --wait" in both


def test_whoever_waits_for_a_drain_does_not_undo_that_another_cancels_it(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = moving.topic([1], heavy=True)
    cancelled: list[object] = []

    def cancel(_seconds: float) -> None:
        assert not cancelled, "it waits on"
        cancelled.extend(cancel_drain(moving.admin, 1, dry_run=False))

    monkeypatch.setattr("penstock.cli.broker_left.time", SimpleNamespace(sleep=cancel))
    out = moving.run("broker", "drain", 1, "--wait", "--yes", code=1)
    assert cancelled
    assert "the drain was cancelled: broker 1 has no cordon for placement any more" in out
    assert moving.state(f"{topic}/0").get("target", []) == []


def test_a_drain_keeps_the_cordon_of_leaderships(moving: Moving) -> None:
    moving.run("broker", "cordon", 3, "--leaders", "--why", "before")
    moving.run("broker", "drain", 3, "--yes")
    seen = moving.json("broker", "describe", 3)
    assert (seen["cordon"], seen["why"]) == ("placement and leadership", "before")


def test_a_drain_that_cannot_end_does_not_begin(moving: Moving) -> None:
    topic = moving.topic([0, 1, 2, 3])
    out = moving.run("broker", "drain", 2, "--yes", code=1)
    assert f"{topic} (4 replicas)" in out
    assert moving.json("broker", "describe", 2)["cordon"] is None
    moving.admin.delete_topic(topic)


def test_an_empty_broker_is_drained_at_once(at_rest: Moving) -> None:
    at_rest.topic([0], [1])
    assert at_rest.run("broker", "drain", 2, "--wait", "--yes").endswith("broker 2 is empty\n")
    assert at_rest.json("broker", "describe", 2)["cordon"] == "placement"
    refused = at_rest.run("broker", "drain", 2, "--wait", "-o", "json", "--yes", code=2)
    assert "--wait prints lines for people" in refused
    assert "broker 2 is not cordoned" in at_rest.run("broker", "uncordon", 2)


# ---------------------------------------------------------------- topic alter --replicas


def test_a_factor_is_changed_after_a_look_at_the_plan(moving: Moving) -> None:
    topic = moving.topic([0, 1], [1, 2])
    shown = moving.run("topic", "alter", topic, "--replicas", 1, "--dry-run")
    assert "2 moves" in shown
    refused = moving.run("topic", "alter", topic, "--replicas", 1, code=1, stdin="n\n")
    assert "Have 1 replicas of every partition" in refused
    assert moving.replicas(topic) == [(0, 1), (1, 2)]
    assert "2 of 2 moves submitted" in moving.run("topic", "alter", topic, "-r", 1, "--yes")
    wait_until(
        lambda: [len(one) for one in moving.replicas(topic)] == [1, 1], what="one replica each"
    )
    assert "nothing to move" in moving.run("topic", "alter", topic, "-r", 1)
    alone = moving.run("topic", "alter", topic, "-r", 1, "--partitions", 9, code=2)
    assert "or --replicas alone" in alone
    assert "or --replicas alone" in moving.run("topic", "alter", topic, code=2)
