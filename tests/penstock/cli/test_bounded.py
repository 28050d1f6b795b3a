"""Reads that end, while others write, have all partitions, or nobody answers any more. In this
process, against real clusters."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from support.cluster import Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli import bounded, consume, consume_group, perf
from penstock.cli.main import app
from penstock.cli.places import Place, PlaceKind
from penstock.client import Admin, Consumer, Producer, TopicPartition

POLLS_MAX: Final = 40
"""A command that polls more often has no end."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bounded"), brokers=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def polled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Takes what happens before each poll of a command, of which it gets the number."""
    poll, numbers = Consumer.poll, iter(range(POLLS_MAX))
    then: list[Callable[[int], None]] = []

    def counted(self: Consumer, timeout_s: float = 1.0, max_records: int | None = None) -> Any:
        if max_records == consume_group.POLL_RECORDS_MAX or timeout_s == bounded.POLL_S:
            number = next(numbers)
            for happen in then:
                happen(number)
        return poll(self, timeout_s, max_records)

    monkeypatch.setattr(Consumer, "poll", counted)
    return then.append


def run(cluster: Cluster, *words: object, code: int = 0) -> Any:
    env = {"PENSTOCK_BOOTSTRAP": cluster.bootstrap}
    done: Any = CliRunner().invoke(app, [*map(str, words)], env=env)
    assert done.exit_code == code, done.output
    return done


def write(cluster: Cluster, topic: str, *values: bytes) -> None:
    """Each as a batch of its own."""
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, value)
            producer.flush()


def committed(cluster: Cluster, group: str, topic: str) -> int:
    where = TopicPartition(topic, 0)
    with Consumer(cluster.bootstrap, group_id=group) as consumer:
        found = consumer.committed([where])[where]
    return -1 if found is None else found.offset


def test_a_member_ends_while_others_write(cluster: Cluster, polled: Any) -> None:
    cluster.create_topic("busy")
    write(cluster, "busy", b"first")
    polled(lambda _: write(cluster, "busy", b"x"))
    shown = run(cluster, "consume", "busy", "-g", "busy", "-o", "beginning", "-e").stdout
    assert shown.startswith("first\nx\n")
    assert committed(cluster, "busy", "busy") == len(shown.splitlines())


def test_a_member_neither_prints_nor_commits_what_is_past_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("cut")
    write(cluster, "cut", b"0", b"1", b"2", b"3", b"4")
    member = ("consume", "cut", "-g", "cut", "-o", "beginning", "-e")
    with monkeypatch.context() as patch:
        ended = {TopicPartition("cut", 0): 2}
        patch.setattr(consume_group, "resolve", lambda *_: ended)
        assert run(cluster, *member).stdout == "0\n1\n"
    assert committed(cluster, "cut", "cut") == 2
    assert run(cluster, *member).stdout == "2\n3\n4\n"


def test_a_member_ends_if_others_have_all_partitions(cluster: Cluster) -> None:
    cluster.create_topic("taken")
    write(cluster, "taken", b"x")
    with Consumer(cluster.bootstrap, group_id="taken") as other:
        other.subscribe("taken")
        wait_until(lambda: other.poll(0.1, 1) or other.assignment(), what="it has the partition")
        done = run(cluster, "consume", "taken", "-g", "taken", "-e")
    assert done.stdout == ""
    assert "group taken has no partition for this member" in done.stderr


def test_an_end_that_is_to_come_is_waited_for(
    cluster: Cluster, polled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "SILENT_S", 1.0)
    cluster.create_topic("later")
    write(cluster, "later", b"now")
    polled(lambda number: write(cluster, "later", b"then") if number == 4 else None)
    assert run(cluster, "consume", "later", "--to", 2).stdout == "now\nthen\n"


def to_five(_: Admin, place: Place, partitions: Sequence[TopicPartition]) -> Any:
    """More than there is, as if more had been there when it began."""
    return dict.fromkeys(partitions, 5 if place.kind is PlaceKind.END else 0)


@pytest.mark.parametrize(
    "words", [("consume", "flights", "-e"), ("perf", "consume", "flights")], ids=" ".join
)
def test_a_read_with_an_end_fails_once_nobody_answers(
    tmp_path: Path, polled: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(bounded, "SILENT_S", 2.0)
    for module in (consume, perf):
        monkeypatch.setattr(module, "resolve", to_five)
    with Cluster(tmp_path, brokers=1) as cluster:
        cluster.create_topic("flights")
        write(cluster, "flights", b"x")

        def die(number: int) -> None:
            if number == 0:
                cluster.brokers[0].kill()

        polled(die)
        told = run(cluster, *words, code=1).stderr
    assert re.search(
        r"flights/0 gave nothing at offset [01] for 2 s, and is to be read up to offset 5", told
    )
