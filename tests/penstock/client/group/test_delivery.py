"""The recipes of docs/delivery.md as they stand there, each with a crash at its worst moment."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.recipes import at, recipes
from support.waiting import wait_exit, wait_until

from penstock.client import ConsumedBatch, Consumer, Producer, Record, TopicPartition
from penstock.errors import MisuseError

COUNT = 30
CRASH_AT = 14
STEP = 10
"""Records that come once all before them were worked on, so that they are another poll's."""


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of one partition; also the group's name."""
    name = own_name(request)
    shared_broker.create_topic(name)
    return name


class CrashError(Exception):
    """The process dies here."""


class DoneError(Exception):
    """The last record was worked on."""


class Work:
    """What the recipe's handler does: `done`, in order. Dies at CRASH_AT, once."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.done: list[int] = []
        self._crashed = False

    def send(self, first: int) -> None:
        for number in range(first, first + STEP):
            self._producer.send(self._topic, b"%d" % number)
        self._producer.flush(60)

    def one(self, record: Record) -> None:
        self.number(int(record.value or b""))

    def all(self, batch: ConsumedBatch) -> None:
        for value in batch.values():
            self.number(int(value or b""))

    def number(self, number: int) -> None:
        if number == CRASH_AT and not self._crashed:
            self._crashed = True
            raise CrashError
        self.done.append(number)
        if number == COUNT - 1:
            raise DoneError
        if not self._crashed and (number + 1) % STEP == 0:
            self.send(number + 1)


@pytest.fixture
def work(shared_broker: Cluster, topic: str) -> Iterator[Work]:
    with Producer(shared_broker.bootstrap) as producer:
        made = Work(producer, topic)
        made.send(0)
        yield made


def run_twice(program: str, work: Work, **names: Any) -> int:
    """Until the crash, and again to the end; where it went on."""
    code = compile(program, "docs/delivery.md", "exec")
    with pytest.raises(CrashError):
        exec(code, {"Consumer": Consumer, **names})
    assert work.done == list(range(CRASH_AT))
    work.send(2 * STEP)
    with pytest.raises(DoneError):
        exec(code, {"Consumer": Consumer, **names})
    went_on = work.done[CRASH_AT]
    assert work.done == [*range(CRASH_AT), *range(went_on, COUNT)]
    return went_on


@pytest.mark.parametrize("number", [0, 1], ids=["by itself", "by hand"])
def test_at_least_once_works_before_it_commits(
    shared_broker: Cluster, topic: str, work: Work, number: int
) -> None:
    by_itself, by_hand = recipes("At least once")
    program = at(shared_broker, (by_itself, by_hand)[number], billing=topic, flights=topic)
    went_on = run_twice(program, work, bill=work.one, bill_all=work.all)
    assert STEP <= went_on <= CRASH_AT, "what was not committed comes again, and no more"


def test_at_most_once_commits_before_it_works(
    shared_broker: Cluster, topic: str, work: Work
) -> None:
    (recipe,) = recipes("At most once")
    program = at(shared_broker, recipe, alerts=topic, flights=topic)
    went_on = run_twice(program, work, alert_all=work.all)
    assert CRASH_AT < went_on <= CRASH_AT + STEP, "what was in hand is lost, and no more"


DATABASE = """
import os, signal, sqlite3, sys
from penstock.client import Consumer

fate = sys.argv[1]
db = sqlite3.connect(sys.argv[2], timeout=120)

def stored_offset(db, where):
    with db:
        db.execute("INSERT OR IGNORE INTO offsets VALUES (?, 0)", [str(where)])
    return db.execute("SELECT next FROM offsets WHERE place = ?", [str(where)]).fetchone()[0]

def insert_results(db, batch):
    numbers = [int(value) for value in batch.values()]
    if fate == "frozen" and CRASH_AT in numbers:
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    for number in numbers:
        db.execute("INSERT INTO results VALUES (?)", [number])
    if fate == "killed" and CRASH_AT in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
""".replace("CRASH_AT", str(CRASH_AT))


class Table:
    """Results and offsets in one database: both change in one transaction, or neither."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path, timeout=120)
        with self.db:
            self.db.execute("CREATE TABLE results (number INTEGER)")
            self.db.execute("CREATE TABLE offsets (place TEXT PRIMARY KEY, next INTEGER)")

    def results(self) -> list[int]:
        return [row[0] for row in self.db.execute("SELECT number FROM results ORDER BY rowid")]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path / "results.db")
    with closing(made.db):
        yield made


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(shared_broker: Cluster, topic: str, table: Table) -> Iterator[Start]:
    """Starts the recipe, which is "killed" in the transaction of CRASH_AT, "frozen" before it
    writes that, or is "well"."""
    (recipe,) = recipes("Exactly once: keep the offsets with the results")
    program = DATABASE + at(shared_broker, recipe, totals=topic, flights=topic)
    quick = "enable_auto_commit=False, session_timeout_ms=3_000"
    assert "enable_auto_commit=False" in program
    program = program.replace("enable_auto_commit=False", quick)
    started: list[subprocess.Popen[str]] = []

    def begin(fate: str) -> "subprocess.Popen[str]":
        arguments = [sys.executable, "-c", program, fate, str(table.path)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_offsets_kept_beside_the_results_make_it_exactly_once(
    work: Work, table: Table, start: Start
) -> None:
    first = start("killed")
    wait_until(lambda: len(table.results()) == STEP, what="the first are written")
    work.send(STEP)
    assert wait_exit(first, 60) == -signal.SIGKILL
    assert table.results() == list(range(len(table.results()))), "the transaction left nothing"
    assert CRASH_AT not in table.results()
    start("well")
    work.send(2 * STEP)
    wait_until(lambda: len(table.results()) >= COUNT, what="the rest is written")
    assert table.results() == list(range(COUNT)), "each once"


def test_a_frozen_member_that_comes_back_writes_nothing_twice_into_the_database(
    work: Work, table: Table, start: Start
) -> None:
    frozen = start("frozen")
    wait_until(lambda: len(table.results()) == STEP, what="the first are written")
    work.send(STEP)
    assert frozen.stdout is not None
    assert frozen.stdout.readline() == "frozen\n"
    start("well")
    wait_until(lambda: len(table.results()) >= 2 * STEP, what="the other goes on")
    os.kill(frozen.pid, signal.SIGCONT)
    assert wait_exit(frozen, 60) == 1
    assert frozen.stderr is not None
    assert "another member works on" in frozen.stderr.read()
    work.send(2 * STEP)
    wait_until(lambda: len(table.results()) >= COUNT, what="the other still works")
    assert table.results() == list(range(COUNT)), "each once"


def test_the_recipe_of_a_transaction_is_seen_as_a_whole_or_never(
    shared_broker: Cluster, topic: str
) -> None:
    (recipe,) = recipes("All or nothing: several records, one transaction")
    for name in (f"{topic}.debits", f"{topic}.credits"):
        shared_broker.create_topic(name)
    program = at(
        shared_broker,
        recipe,
        billing_0=topic,
        debits=f"{topic}.debits",
        credits=f"{topic}.credits",
    )

    def transfer(debit: bytes, credit: object) -> None:
        accounts = {"account": b"a", "other_account": b"b"}
        exec(program, {"Producer": Producer, "debit": debit, "credit": credit, **accounts})

    transfer(b"-5", b"5")
    with pytest.raises(MisuseError, match="expected bytes"):
        transfer(b"-6", 6)
    transfer(b"-7", b"7")
    seen: dict[str, list[tuple[bytes | None, bytes | None]]] = {"debits": [], "credits": []}
    with Consumer(shared_broker.bootstrap) as reader:
        reader.assign([TopicPartition(f"{topic}.{name}", 0) for name in seen])

        def both() -> bool:
            for batch in reader.poll(0.2):
                part = batch.topic_partition.topic.rpartition(".")[2]
                seen[part].extend((record.key, record.value) for record in batch.records())
            return all((len(found) >= 2) for found in seen.values())

        wait_until(both, what="both transactions are read")
        wait_until(lambda: not any(reader.lag().values()), what="all is read")
        both()
    assert seen == {
        "debits": [(b"a", b"-5"), (b"a", b"-7")],
        "credits": [(b"b", b"5"), (b"b", b"7")],
    }
