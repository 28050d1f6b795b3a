"""Bad days of transactions: producers that sleep, take each other's id or lose a topic; full disks.

Readers see only what was committed; who cannot go on hears why, and by whom; nothing stays open or
unfinished.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import (
    Admin,
    Consumer,
    Producer,
    TopicPartition,
    TransactionError,
    TransactionState,
)
from penstock.errors import ClusterError, ErrorCode, PenstockError

CHILD = Path(__file__).parents[1] / "support" / "transactional_child.py"


class ProducerProcess:
    """`support.transactional_child`, asked step by step."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, step: str) -> dict[str, str]:
        """Its answer; {"code": "", …} if all went well."""
        self.tell(step)
        return self.answer()

    def tell(self, step: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(step + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, str]:
        assert self._process.stdout is not None
        found: dict[str, str] = json.loads(self._process.stdout.readline())
        return found

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def producer_process(
    cluster: Cluster, name: str, topic: str, *, timeout_ms: int
) -> Iterator[ProducerProcess]:
    words = [sys.executable, "-P", str(CHILD), cluster.bootstrap, name, str(timeout_ms), topic]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield ProducerProcess(process)
        finally:
            process.kill()


def write(producer: Producer, topic: str, value: bytes, partitions: int = 1) -> None:
    """A transaction of one record per partition, which readers see when this returns."""
    transaction = producer.transaction()
    transaction.begin()
    for partition in range(partitions):
        transaction.send(topic, value, partition=partition)
    transaction.commit(wait_visible=True)


def read(cluster: Cluster, topic: str, until: bytes) -> list[bytes | None]:
    """What a read_committed reader gets of partition 0, before the record `until`."""
    seen: list[bytes | None] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])

        def found() -> bool:
            seen.extend(r.value for batch in consumer.poll(0.5) for r in batch.records())
            return until in seen

        wait_until(found, what=f"{until!r} is read")
    return seen[: seen.index(until)]


def wait_at_rest(cluster: Cluster, name: str) -> None:
    """Until nothing of the id is open, and everybody has heard how it ended."""
    with Admin(cluster.bootstrap) as admin:

        def at_rest() -> bool:
            (branch,) = admin.describe_transaction(name).branches
            return branch.state is TransactionState.IDLE and not branch.finishing

        wait_until(at_rest, what=f"nothing of {name} is open or unfinished")


def test_a_producer_that_sleeps_past_its_timeout_hears_it_and_goes_on(cluster: Cluster) -> None:
    cluster.create_topic("asleep")
    with producer_process(cluster, "sleeper", "asleep", timeout_ms=15_000) as child:
        assert child.ask("begin")["code"] == ""
        child.pause()
        wait_at_rest(cluster, "sleeper")
        child.resume()
        told = child.ask("commit")
        assert told["code"] == "TRANSACTION_ABORTED"
        assert "its timeout" in told["message"]
        assert child.ask("begin")["code"] == "", "the same producer goes on"
        assert child.ask("commit")["code"] == ""
    with Producer(cluster.bootstrap) as producer:
        producer.send("asleep", b"end", partition=0).result(30)
    assert read(cluster, "asleep", b"end") == [b"of the child"], "once: of the second transaction"


def test_a_producer_whose_id_was_taken_while_it_slept_hears_by_whom(cluster: Cluster) -> None:
    cluster.create_topic("taken")
    with (
        producer_process(cluster, "shared", "taken", timeout_ms=60_000) as child,
        Producer(cluster.bootstrap, transactional_id="shared", client_id="the-taker") as taker,
        Admin(cluster.bootstrap) as admin,
    ):
        assert child.ask("begin")["code"] == ""
        child.pause()
        write(taker, "taken", b"of the taker")
        owner = admin.describe_transaction("shared")
        child.resume()
        told = child.ask("commit")
        assert told["code"] == "PRODUCER_FENCED"
        assert "the-taker" in told["message"]
        assert owner.client_host in told["message"]
        assert "T" in told["message"].rpartition(", ")[2], "and when, as date and time"
        assert child.ask("begin")["code"] == "PRODUCER_FENCED", "it never gets the id back"
        write(taker, "taken", b"end")
    assert read(cluster, "taken", b"end") == [b"of the taker"]
    wait_at_rest(cluster, "shared")


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_topic_deleted_under_a_transaction_holds_nothing_up(cluster: Cluster, how: str) -> None:
    gone, stays = f"gone-{how}", f"stays-{how}"
    for topic in (gone, stays):
        cluster.create_topic(topic)
    with (
        Producer(
            cluster.bootstrap, transactional_id=f"bereft-{how}", unknown_topic_timeout_ms=1_500
        ) as producer,
        Admin(cluster.bootstrap) as admin,
    ):
        transaction = producer.transaction()
        transaction.begin()
        for topic in (gone, stays):
            transaction.send(topic, b"before", partition=0).result(30)
        admin.delete_topic(gone)
        if how == "commit":
            transaction.commit(wait_visible=True)
        else:

            def refused() -> PenstockError | None:
                try:
                    transaction.send(gone, b"after", partition=0).result(150)
                except PenstockError as error:
                    return error
                return None

            error = wait_until(refused, what="the topic is gone for the producer too")
            assert error.code in (ErrorCode.UNKNOWN_TOPIC, ErrorCode.DELIVERY_TIMED_OUT)
            assert gone in error.message
            with pytest.raises(TransactionError, match=gone):
                transaction.commit()
            transaction.abort()
        write(producer, stays, b"end")
    assert read(cluster, stays, b"end") == ([b"before"] if how == "commit" else [])
    wait_at_rest(cluster, f"bereft-{how}")


def test_a_commit_that_no_reader_can_see_yet_is_told_as_committed(cluster: Cluster) -> None:
    """A partition of it has no leader: the decision stands, and is no "maybe"."""
    name = "unseen"
    with (
        Producer(cluster.bootstrap, transactional_id=name) as producer,
        Admin(cluster.bootstrap) as admin,
    ):
        transaction = producer.transaction()
        transaction.begin()
        coordinator = admin.describe_transaction(name).coordinator
        away = next(broker_id for broker_id in cluster.brokers if broker_id != coordinator)
        cluster.create_topic(name, assignment=[[away]])
        transaction.send(name, b"value", partition=0).result(30)
        cluster.brokers[away].kill()
        cluster.wait_alive(set(cluster.brokers) - {away})
        with pytest.raises(ClusterError, match="is committed, but") as late:
            transaction.commit(wait_visible=True, timeout_s=10)
        assert not isinstance(late.value, TransactionError), "it is committed, and that is known"
        cluster.brokers[away].start()
        write(producer, name, b"end")
    assert read(cluster, name, b"end") == [b"value"]
    wait_at_rest(cluster, name)
