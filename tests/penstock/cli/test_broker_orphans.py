"""`penstock broker drop-orphans`: what is shown, asked and sent, and what is said of it then."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support.terminals import person_there
from typer.testing import CliRunner

from penstock.cli import broker as command
from penstock.cli.main import app
from penstock.client import LogDescription, OrphanedLog, OrphanOutcome
from penstock.errors import ClusterError, ErrorCode

ORPHANS = (OrphanedLog("id-b", 0, 3 << 20), OrphanedLog("id-a", 1, 1 << 20))
IN_ORDER = [("id-a", 1), ("id-b", 0)]


class Fake:
    """An admin of a cluster whose broker 3 has `orphans`, and keeps those of `kept` topics."""

    def __init__(self) -> None:
        self.orphans: tuple[OrphanedLog, ...] = ORPHANS
        self.kept: set[str] = set()
        self.asked: list[tuple[list[tuple[str, int]], bool]] = []
        """What was sent, each with whether only to validate."""

    def describe_logs(self, *, broker_ids: Sequence[int]) -> list[LogDescription]:
        assert list(broker_ids) == [3]
        return [LogDescription(3, (), 1, 2, self.orphans)]

    def drop_orphans(
        self, broker_id: int, logs: Sequence[OrphanedLog], *, validate_only: bool = False
    ) -> list[OrphanOutcome]:
        assert broker_id == 3
        self.asked.append(([(one.topic_id, one.partition) for one in logs], validate_only))
        error = ClusterError("topic 'b' has it", ErrorCode.INVALID_REQUEST)
        return [
            OrphanOutcome(one.topic_id, one.partition, error if one.topic_id in self.kept else None)
            for one in logs
        ]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()

    @contextmanager
    def open_admin(_bootstrap: str | None) -> Iterator[Fake]:
        yield fake

    monkeypatch.setattr(command, "open_admin", open_admin)
    return fake


def run(*words: str, stdin: str | None = None, code: int = 0) -> str:
    asked = ["broker", "drop-orphans", "3", *words]
    with person_there(stdin is not None):
        done: Any = CliRunner().invoke(app, asked, env={"COLUMNS": "200"}, input=stdin)
    assert done.exit_code == code, done.output
    return str(done.output)


def test_the_plan_is_shown_and_exactly_that_is_sent_once_somebody_agrees(admin: Fake) -> None:
    said = run(stdin="y\n")
    rows = [line.split() for line in said.splitlines()[:3]]
    assert rows == [
        ["TOPIC-ID", "PARTITION", "SIZE"],
        ["id-a", "1", "1", "MiB"],
        ["id-b", "0", "3", "MiB"],
    ]
    assert "2 orphans of topics that the cluster does not know, 4 MiB\n" in said
    assert "careful: a topic whose metadata was lost is among orphans, too" in said
    assert "Drop 2 orphans of broker 3 for ever?" in said
    assert said.endswith("2 of 2 orphans dropped\n")
    assert admin.asked == [(IN_ORDER, False)]


@pytest.mark.parametrize("stdin", ["n\n", ""])
def test_nothing_is_sent_if_nobody_agrees_or_is_there(admin: Fake, stdin: str) -> None:
    assert "id-a" in run(stdin=stdin, code=1)
    assert admin.asked == []


def test_nobody_is_asked_with_yes(admin: Fake) -> None:
    said = run("--yes")
    assert "for ever?" not in said
    assert "4 MiB" in said
    assert admin.asked == [(IN_ORDER, False)]


def test_a_dry_run_has_it_checked_only(admin: Fake) -> None:
    assert run("--dry-run").endswith("2 of 2 orphans could be dropped\n")
    assert admin.asked == [(IN_ORDER, True)]


def test_only_those_of_the_topics_that_are_named(admin: Fake) -> None:
    assert "1 orphan of topics" in run("--topic-id", "id-b", "--yes")
    assert admin.asked == [([("id-b", 0)], False)]
    said = run("--topic-id", "id-b", "--topic-id", "flights", "--yes", code=1)
    assert "broker 3 has no orphans of topic ids flights; penstock broker drop-orphans 3" in said
    run("--topic-id", "", "--yes", code=1)
    assert len(admin.asked) == 1


@pytest.mark.parametrize("words", [(), ("--yes",), ("--dry-run",)])
def test_a_broker_without_any_says_so_and_asks_nothing(admin: Fake, words: tuple[str, ...]) -> None:
    admin.orphans = ()
    assert run(*words) == "broker 3 has no orphans\n"
    assert json.loads(run("--yes", "-o", "json")) == {
        "broker": 3, "orphans": [], "size_bytes": 0, "dry_run": False,
    }  # fmt: skip
    assert admin.asked == []


def test_programs_get_a_record_and_are_not_asked(admin: Fake) -> None:
    assert "give --yes" in run("-o", "json", code=2)
    assert admin.asked == []
    assert json.loads(run("--yes", "-o", "json")) == {
        "broker": 3,
        "orphans": [
            {"topic_id": "id-a", "partition": 1, "size_bytes": 1 << 20, "refused": None},
            {"topic_id": "id-b", "partition": 0, "size_bytes": 3 << 20, "refused": None},
        ],
        "size_bytes": 4 << 20,
        "dry_run": False,
    }
    assert json.loads(run("--dry-run", "-o", "json"))["dry_run"] is True
    assert [dry for _, dry in admin.asked] == [False, True]


def test_what_the_broker_keeps_is_named_and_ends_with_1(admin: Fake) -> None:
    admin.kept = {"id-b"}
    said = run("--yes", code=1)
    assert "1 of 2 orphans dropped\nkept: topic 'b' has it\n" in said
    record = json.loads(run("--yes", "-o", "json", code=1))
    assert [one["refused"] for one in record["orphans"]] == [None, "topic 'b' has it"]
