"""`penstock partitions …` on a real local cluster of two brokers."""

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Program

_numbers = count()


@pytest.fixture
def topic(penstock: "Program") -> str:
    """A new topic with four partitions of one replica, two on each broker; the first has data."""
    name = f"moves-{next(_numbers)}"
    penstock.ok("topic", "create", name, "-p", 4, "-r", 1)
    penstock.ok("produce", name, "-p", 0, stdin="some text\n" * 1000)
    return name


def plan(penstock: "Program", *words: object) -> Any:
    return json.loads(penstock.ok("partitions", "plan", *words, "-o", "json"))


def replicas(penstock: "Program", topic: str) -> dict[int, list[int]]:
    seen = json.loads(penstock.ok("topic", "describe", topic, "-o", "json"))
    return {one["partition"]: one["replicas"] for one in seen["partition_list"]}


class TestPlan:
    def test_a_drain_lists_what_the_broker_has(self, penstock: "Program", topic: str) -> None:
        before = replicas(penstock, topic)
        made = plan(penstock, "--drain", 1)
        own = [one for one in made["moves"] if one["topic"] == topic]
        assert {one["partition"] for one in own} == {at for at, on in before.items() if on == [1]}
        assert all((one["expected"], one["target"]) == ([1], [0]) for one in own)
        assert made["reason"] == "drain"
        by_id = {one["broker"]: one for one in made["brokers"]}
        assert by_id[1]["replicas"][1] == 0
        assert by_id[0]["in_bytes"] == by_id[1]["out_bytes"] == made["copied_bytes"]
        assert replicas(penstock, topic) == before, "a plan changes nothing"

    def test_bytes_are_those_of_the_logs(self, penstock: "Program", topic: str) -> None:
        (holder,) = replicas(penstock, topic)[0]
        moves = plan(penstock, "--drain", holder)["moves"]
        copied = {(one["topic"], one["partition"]): one["copied_bytes"] for one in moves}
        assert copied[topic, 0] > 0
        others = [size for (name, at), size in copied.items() if name == topic and at]
        assert others == [0]

    def test_a_table_shows_moves_brokers_and_the_sum(self, penstock: "Program", topic: str) -> None:
        made = plan(penstock, "--topic", topic, "--replicas", 2)
        out = penstock.ok("partitions", "plan", "--topic", topic, "--replicas", 2)
        assert f"{topic}/0" in out
        assert "PARTITION" in out
        assert "COPIES-IN" in out
        assert f"plan {made['id']}: 4 moves" in out
        assert "at 40 MiB/s per broker" in out

    def test_the_same_cluster_gives_the_same_plan(self, penstock: "Program", topic: str) -> None:
        words = ("--topic", topic, "--replicas", 2)
        assert plan(penstock, *words)["id"] == plan(penstock, *words)["id"]

    def test_nothing_to_move_is_said(self, penstock: "Program", topic: str) -> None:
        out = penstock.ok("partitions", "plan", "--topic", topic, "--replicas", 1)
        assert out == "nothing to move\n"

    def test_what_cannot_be_is_refused_with_numbers(self, penstock: "Program", topic: str) -> None:
        assert penstock.fails("partitions", "plan", "--topic", topic, "--replicas", 3) == (
            f"nothing can be moved: 2 brokers may be used, and these topics need more: {topic} "
            "(3 replicas); needs 1 more broker, or fewer replicas of these topics"
        )
        assert "there is no broker 7; there are 0, 1" in penstock.fails(
            "partitions", "plan", "--onto", 7
        )
        assert "there is no topic nope" in penstock.fails(
            "partitions", "plan", "--topic", "nope", "--replicas", 1
        )

    def test_one_wish_is_wanted(self, penstock: "Program") -> None:
        one_of = "give one of --drain, --onto, --topic with --replicas, --balance"
        assert penstock.fails("partitions", "plan") == one_of
        assert penstock.fails("partitions", "plan", "--balance", "--drain", 1) == one_of
        both = penstock.fails("partitions", "plan", "--balance", "--replicas", 1)
        assert both == "--topic and --replicas go together"

    @pytest.mark.parametrize("text", ["x", "", "1,", "-1", "1,1", "99999999999"])
    def test_brokers_are_named_by_number(self, penstock: "Program", text: str) -> None:
        done = penstock.run("partitions", "plan", "--drain", text)
        assert done.returncode == 2
        assert "broker" in done.stderr
