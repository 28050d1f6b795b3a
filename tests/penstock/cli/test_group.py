"""`penstock group …` and `penstock consume --group`, against a real broker."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import Consumer, Producer


class InProcess:
    """Runs `penstock` in this process, at one cluster: starting Python costs more than a test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *words: object) -> Any:
        done = CliRunner().invoke(
            app, [str(word) for word in words], env={"PENSTOCK_BOOTSTRAP": self.bootstrap}
        )
        assert "Traceback" not in done.output, done.output
        return done

    def ok(self, *words: object) -> str:
        """Its standard output; it must succeed."""
        done = self.run(*words)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    def fails(self, *words: object, code: int = 1) -> str:
        """Its one line of error; it must end with `code`: 2 is wrong usage."""
        done = self.run(*words)
        assert done.exit_code == code, done.output
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return str(done.stderr)


@pytest.fixture
def penstock(shared_broker: Cluster) -> InProcess:
    return InProcess(shared_broker.bootstrap)


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions with ten records each; also a group's name."""
    name = own_name(request)
    shared_broker.create_topic(name, partitions=2)
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(20):
            producer.send(name, b"%d" % (number // 2), partition=number % 2)
        producer.flush(30)
    return name


def described(penstock: InProcess, group: str) -> Any:
    return json.loads(penstock.ok("group", "describe", group, "-o", "json"))


def lags(penstock: InProcess, group: str) -> list[object]:
    return [each["lag"] for each in described(penstock, group)["partitions"]]


def test_a_group_reads_once_and_shows_its_lag(penstock: InProcess, topic: str) -> None:
    first = penstock.ok("consume", topic, "-g", topic, "-c", 12)
    assert len(first.splitlines()) == 12
    seen = described(penstock, topic)
    assert (seen["state"], seen["members"], seen["lag"]) == ("Empty", [], 8)
    assert 0 <= seen["lag_s"] < 600
    rest = penstock.ok("consume", topic, "-g", topic, "-e")
    assert len(rest.splitlines()) == 8, "the group goes on where it was"
    assert lags(penstock, topic) == [0, 0]
    assert described(penstock, topic)["lag_s"] == 0
    table = penstock.ok("group", "describe", topic)
    assert "LAG-S" in table
    offsets = json.loads(penstock.ok("group", "offsets", topic, "-o", "json"))
    assert [each["offset"] for each in offsets] == [10, 10]
    listed = json.loads(penstock.ok("group", "list", "-o", "json"))
    assert {"group": topic, "state": "Empty", "members": 0} in listed


RESETS: list[tuple[tuple[object, ...], list[int]]] = [
    (("--to-earliest",), [0, 0]),
    (("--to-offset", 4), [4, 4]),
    (("--shift-by", 3), [7, 7]),
    (("--shift-by", -30, "--clamp"), [0, 0]),
    (("--to-datetime", "2999-01-01"), [10, 10]),
    (("--by-duration", "1h"), [0, 0]),
    (("--to-latest",), [10, 10]),
]


def test_a_reset_shows_what_it_would_do_and_does_it_when_told(
    penstock: InProcess, topic: str
) -> None:
    penstock.ok("consume", topic, "-g", topic, "-e")
    before = [10, 10]
    for words, expected in RESETS:
        dry = penstock.run("group", "reset", topic, "--all-topics", *words)
        assert "--execute" in dry.stderr
        assert lags(penstock, topic) == [10 - old for old in before], "nothing has changed"
        done = json.loads(
            penstock.ok("group", "reset", topic, "--all-topics", *words, "--execute", "-o", "json")
        )
        assert done["executed"] is True
        moved = [(each["old"], each["new"]) for each in done["offsets"]]
        assert moved == list(zip(before, expected, strict=True)), words
        assert lags(penstock, topic) == [10 - new for new in expected]
        before = expected


def test_a_reset_that_was_done_reads_unlike_one_that_was_only_shown(
    penstock: InProcess, topic: str
) -> None:
    words = ("group", "reset", topic, "--topic", topic, "--to-offset", 4)
    dry = penstock.run(*words)
    assert dry.stdout.splitlines()[0].split() == ["TOPIC", "PARTITION", "OLD", "NEW", "NOTE"]
    assert penstock.ok(*words, "--execute").splitlines() == [
        f"{topic}/0: nothing → 4",
        f"{topic}/1: nothing → 4",
        f"applied: group {topic}, 2 of 2 partitions moved",
    ]
    shift = ("group", "reset", topic, "--topic", f"{topic}:1", "--shift-by", 30, "--clamp")
    assert penstock.ok(*shift, "--execute").splitlines() == [
        f"{topic}/1: 4 → 10 (34 is not in the log)",
        f"applied: group {topic}, 1 of 1 partitions moved",
    ]
    again = penstock.ok("group", "reset", topic, "--all-topics", "--to-latest", "--execute")
    assert again.splitlines()[-1] == f"applied: group {topic}, 1 of 2 partitions moved"


def test_a_reset_makes_a_group_and_takes_single_partitions(penstock: InProcess, topic: str) -> None:
    where = ("--topic", f"{topic}:1", "--to-offset", 6)
    penstock.ok("group", "reset", "new", *where, "--execute", "--reason", "a test")
    assert described(penstock, "new")["last_reset"]["reason"] == "a test"
    out = penstock.ok("consume", topic, "-g", "new", "-o", "end", "-e")
    assert out.split() == ["6", "7", "8", "9"]


Call = Callable[[str], tuple[object, ...]]


REFUSED: list[tuple[Call, str]] = [
    (lambda _: ("describe", "nobody"), "does not exist"),
    (lambda _: ("delete", "nobody", "--yes"), "does not exist"),
    (lambda g: ("reset", g, "--all-topics", "--to-offset", 99), "not in the log"),
    (lambda g: ("reset", g, "--topic", f"{g}:7", "--to-earliest"), "not 7"),
    (lambda g: ("reset", "nobody", "--topic", g, "--shift-by", 1), "no offset is committed"),
]
WRONG: list[tuple[tuple[str, ...], str]] = [
    (("reset", "g", "--all-topics"), "name one target"),
    (("reset", "g", "--all-topics", "--to-earliest", "--to-latest"), "and --to-latest"),
    (("reset", "g", "--to-earliest"), "--topic"),
]


def test_what_cannot_be_done_is_one_line(penstock: InProcess, topic: str) -> None:
    penstock.ok("consume", topic, "-g", topic, "-e")
    for words, said in REFUSED:
        assert said in penstock.fails("group", *words(topic))


@pytest.mark.parametrize(
    ("words", "said"),
    WRONG,
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_reset_without_one_target_is_wrong_usage(
    penstock: InProcess, words: tuple[str, ...], said: str
) -> None:
    assert said in penstock.fails("group", *words, code=2)


def test_a_group_with_members_is_neither_reset_nor_deleted(penstock: InProcess, topic: str) -> None:
    with Consumer(penstock.bootstrap, group_id=topic, client_id="reader") as reader:
        reader.subscribe(topic)
        wait_until(lambda: bool(reader.poll(0.1)) or len(reader.assignment()) == 2, what="it reads")
        seen = described(penstock, topic)
        assert [each["client"] for each in seen["members"]] == ["reader"]
        assert {each["client"] for each in seen["partitions"]} == {"reader"}
        assert "1 member" in penstock.fails("group", "delete", topic, "--yes")
        assert "1 member" in penstock.fails(
            "group", "reset", topic, "--topic", topic, "--to-earliest"
        )


def test_a_group_is_forgotten(penstock: InProcess, topic: str) -> None:
    penstock.ok("consume", topic, "-g", topic, "-e")
    penstock.ok("group", "delete", topic, "--yes")
    assert "does not exist" in penstock.fails("group", "describe", topic)


def test_a_module_that_is_not_installed_is_named_with_what_to_install(
    penstock: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    said = penstock.fails("group", "list", "--output", "yaml")
    assert "'yaml', which is not installed; install it with: pip install 'penstock[cli]'" in said


def test_consuming_in_a_group_leaves_partitions_to_the_group(
    penstock: InProcess, topic: str
) -> None:
    assert "leave out --to" in penstock.fails("consume", topic, "-g", "g", "--partition", 1, code=2)
    assert "reset" in penstock.fails("consume", topic, "-g", "g", "-o", "5", code=2)
