"""`topic list` with sizes, `topic trim`, `log-dirs`, `elect`, and picky pipes: a real cluster."""

import json
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import wait_until

if TYPE_CHECKING:
    from .conftest import Program

_numbers = count()


@pytest.fixture
def topic(penstock: "Program") -> str:
    """A new topic with two partitions, and two replicas of each."""
    name = f"log-{next(_numbers)}"
    penstock.ok("topic", "create", name, "-p", 2, "-r", 2)
    return name


def read(penstock: "Program", *words: object) -> Any:
    return json.loads(penstock.ok(*words, "-o", "json"))


def test_settings_have_units_when_a_topic_is_made_and_changed(
    penstock: "Program", topic: str
) -> None:
    penstock.ok("topic", "create", f"{topic}-u", "-c", "retention.ms=7d")
    penstock.ok("topic", "alter", f"{topic}-u", "--set", "retention.bytes=1Gi")
    configs = read(penstock, "topic", "describe", f"{topic}-u")["configs"]
    values = {one["name"]: one["value"] for one in configs}
    assert values["retention.ms"] == "604800000"
    assert values["retention.bytes"] == "1073741824"
    told = penstock.fails("topic", "alter", topic, "--set", "retention.ms=soon", code=2)
    assert told.startswith("retention.ms is 'soon'; it must be milliseconds, or a duration")


def test_a_dry_run_deletes_nothing(penstock: "Program", topic: str) -> None:
    said = penstock.ok("topic", "delete", topic, "--dry-run", "--yes")
    assert said == f"topic {topic} could be deleted\n"
    assert topic in penstock.ok("topic", "list")
    assert "does not exist" in penstock.fails("topic", "delete", "misspelt", "--dry-run")


def test_topics_are_listed_with_the_size_of_one_copy(penstock: "Program", topic: str) -> None:
    def size() -> int:
        (row,) = [one for one in read(penstock, "topic", "list") if one["topic"] == topic]
        return int(row["size_bytes"])

    assert size() == 0
    penstock.ok("produce", topic, "-p", 0, stdin="x" * 10_000 + "\n")
    assert 10_000 < size() < 12_000
    logs = read(penstock, "log-dirs", "--topic", topic)["logs"]
    assert sum(one["size_bytes"] for one in logs if one["leader"]) == size()


def test_a_topic_is_trimmed_where_it_is_asked_and_followers_follow(
    penstock: "Program", topic: str
) -> None:
    penstock.ok("produce", topic, "-p", 0, stdin="a\nb\nc\n")
    penstock.ok("produce", topic, "-p", 1, stdin="d\n")
    would = read(penstock, "topic", "trim", topic, "--before", "-1", "--dry-run")
    assert [(one["log_start"], one["records"]) for one in would] == [(2, 2), (0, 0)]
    assert penstock.ok("consume", topic, "-e", "-p", 0) == "a\nb\nc\n"

    refused = penstock.answer("n\n", "topic", "trim", topic, "--before", "end")
    assert "not confirmed" in refused.stderr
    asked = penstock.fails("topic", "trim", topic, "--before", "end", "-o", "json", code=2)
    assert "give --yes, or --dry-run" in asked
    assert penstock.ok("consume", topic, "-e", "-p", 0) == "a\nb\nc\n"

    done = read(penstock, "topic", "trim", topic, "--before", 2, "-p", 0, "--yes")
    assert [(one["partition"], one["log_start"]) for one in done] == [(0, 2)]
    assert penstock.ok("consume", topic, "-e", "-p", 0) == "c\n"
    assert penstock.ok("consume", topic, "-e", "-p", 1) == "d\n"

    said = penstock.ok("topic", "trim", topic, "--before", "end", "--yes")
    assert said.endswith(f"topic {topic} trimmed: 2 partitions begin later\n")
    assert penstock.ok("consume", topic, "-e") == ""
    assert "nothing to delete" in penstock.ok("topic", "trim", topic, "--before", "end", "--yes")
    penstock.ok("produce", topic, "-p", 0, stdin="e\n")
    assert penstock.ok("consume", topic, "-e", "-f", "%o %v\\n") == "3 e\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--before", 3), 2, "say which with --partition"),
        (("--before", 9, "-p", 0), 1, "--before 9 is past the end of"),
        (("--before", 0, "-p", 7), 1, "has partitions 0 to 1, not 7"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_trim_that_cannot_be_meant_is_refused(
    penstock: "Program", topic: str, words: tuple[object, ...], code: int, said: str
) -> None:
    assert said in penstock.fails("topic", "trim", topic, *words, "--yes", code=code)


def test_log_dirs_has_a_row_per_replica_and_the_disks(penstock: "Program", topic: str) -> None:
    penstock.ok("produce", topic, "-p", 1, stdin="a\nb\n")
    seen = read(penstock, "log-dirs", "--topic", topic)
    assert [one["broker"] for one in seen["brokers"]] == [0, 1]
    assert all(0 < one["free_bytes"] <= one["total_bytes"] for one in seen["brokers"])
    assert len(seen["logs"]) == 4
    (leader,) = [one for one in seen["logs"] if one["leader"] and one["partition"] == 1]
    assert (leader["log_start"], leader["high_watermark"], leader["log_end"]) == (0, 2, 2)
    assert {one["broker"] for one in read(penstock, "log-dirs", "--broker", 1)["logs"]} == {1}
    assert "there is no broker 9; there are 0, 1" in penstock.fails("log-dirs", "--broker", 9)
    assert "does not exist" in penstock.fails("log-dirs", "--topic", "misspelt")
    assert "SIZE" in penstock.ok("log-dirs")


def test_leaders_go_back_to_preferred_ones(penstock: "Program", topic: str) -> None:
    assert read(penstock, "elect", topic) == {"moved": 0, "dry_run": False, "partitions": []}
    assert "give TOPIC[/PARTITION], or --all" in penstock.fails("elect", code=2)
    assert "has partitions 0 to 1, not 5" in penstock.fails("elect", f"{topic}/5")
    assert "does not exist" in penstock.fails("elect", "misspelt")
    assert penstock.ok("elect", "--all", "--dry-run").endswith("0 leaderships could move\n")


def test_several_topics_patterns_keys_and_texts(penstock: "Program", topic: str) -> None:
    other = f"{topic}-other"
    penstock.ok("topic", "create", other, "-p", 1)
    penstock.ok("produce", topic, "-K", ":", "-p", 0, stdin="a:late\nb:on time\n")
    penstock.ok("produce", other, "-K", ":", stdin="a:later\n")
    both = ("consume", topic, other, "-e")
    assert sorted(penstock.ok(*both).split("\n")) == ["", "late", "later", "on time"]
    found = penstock.ok("consume", f"{topic}.*", "--regex", "-e", "--key", "a", "--grep", "r$")
    assert found == "later\n"
    assert penstock.ok(*both, "--grep", "late", "-c", 1, "-p", 0) in ("late\n", "later\n")
    in_group = penstock.ok("consume", f"{topic}.*", "-r", "-g", f"of-{topic}", "-e", "-k", "b")
    assert in_group == "on time\n"
    assert penstock.ok("consume", topic, other, "-g", f"of-{topic}", "-e") == "", "all committed"


def test_files_and_delimiters_go_in_and_come_out(penstock: "Program", topic: str) -> None:
    file = penstock.folder / "records"
    file.write_bytes(b"one\ntwo\0three\0")
    penstock.ok("produce", topic, "--file", file, "-D", "\\0", "-p", 0)
    assert penstock.ok("consume", topic, "-e", "-D", "|") == "one\ntwo|three|"
    assert penstock.ok("consume", topic, "-e", "-D", ";", "-f", "%o") == "0;1;"
    penstock.ok("produce", topic, "--file", file, "-D", "\\0", "-p", 1, "-c", 1)
    assert penstock.ok("consume", topic, "-e", "-p", 1) == "one\ntwo\n"
    told = penstock.fails("produce", topic, "--file", penstock.folder / "missing")
    assert "missing cannot be read: No such file or directory" in told
    refused = penstock.fails("consume", topic, "-e", "--output", "json", "-D", ";", code=2)
    assert "leave out --format, --key-delimiter, --null and --delimiter" in refused


def test_delimiters_of_keys_are_the_same_at_both_ends(penstock: "Program", topic: str) -> None:
    penstock.ok("produce", topic, "-p", 0, "-K", "\\0", stdin="a\0one\nb\0two\n")
    assert penstock.ok("consume", topic, "-e", "-k", "b") == "two\n"
    for delimiter, between in (("\\0", "\0"), ("\\x3a", ":"), ("%k\\t", "%k\t")):
        out = penstock.ok("consume", topic, "-e", "-K", delimiter)
        assert out == f"a{between}one\nb{between}two\n"
    for command in ("produce", "consume"):
        told = penstock.fails(command, topic, "-K", "\\q", code=2)
        assert told.startswith("--key-delimiter is '\\\\q', and")


def completed(penstock: "Program", typed: str) -> list[str]:
    """What the shell offers for the last word; nothing if the cluster takes its time."""
    done = subprocess.run(
        [Path(sys.executable).with_name("penstock")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={
            **penstock.environment,
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": f"penstock {typed}",
            "COMP_CWORD": str(len(typed.split())),
        },
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


def test_the_shell_completes_topics_groups_and_settings(penstock: "Program", topic: str) -> None:
    penstock.ok("consume", topic, "-g", f"group-{topic}", "-e")
    for typed, name in (
        (f"topic describe {topic}", topic),
        (f"consume {topic}", topic),
        (f"group describe group-{topic}", f"group-{topic}"),
    ):
        found = wait_until(partial(completed, penstock, typed), what=f"{name} is completed")
        assert found == [name]
    assert completed(penstock, "topic describe no-such") == []
    assert completed(penstock, "topic create x --config retention.") == [
        "retention.bytes=", "retention.ms=",
    ]  # fmt: skip
    assert completed(penstock, f"topic alter {topic} --unset retention.m") == ["retention.ms"]
    nobody = f"topic describe --bootstrap 127.0.0.1:1 {topic}"
    assert completed(penstock, nobody) == [], "and no error in the middle of a line"
