"""Members of a group when brokers and other members die: nothing lost, nobody stuck (I18, I19)."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from support import command_line
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Consumer, Producer, TopicPartition
from penstock.client.consumer import group_session
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.channel import open_channel

MakeCluster = Callable[..., Cluster]


def coordinator_of(cluster: Cluster, group: str) -> int:
    """The broker id, as any running broker says; waits for one to know."""

    def ask() -> list[int]:
        for broker in cluster.brokers.values():
            if broker.is_running:
                with open_channel(broker.address) as channel:
                    try:
                        answer = GroupServiceStub(channel).FindCoordinator(
                            pb.FindCoordinatorRequest(group_id=group), timeout=5
                        )
                    except grpc.RpcError:
                        continue
                    return [answer.broker_id]
        return []

    return wait_until(ask, what=f"group {group} has a coordinator")[0]


def fill(cluster: Cluster, topic: str, first: int, count: int, partitions: int) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)
        assert producer.close(120) == 0


class Readers:
    """Members that are polled in turn, and what they have read."""

    def __init__(self, cluster: Cluster, topic: str, count: int, **options: Any) -> None:
        self.members = [
            Consumer(
                cluster.bootstrap,
                group_id=topic,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=100,
                **options,
            )
            for _ in range(count)
        ]
        self.seen: list[int] = []
        for member in self.members:
            member.subscribe(topic)

    def poll(self) -> None:
        for member in self.members:
            for batch in member.poll(0.05):
                self.seen += [int(value or b"") for value in batch.values()]

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Polls until then; the seconds it took."""
        begun = time.monotonic()

        def turn() -> bool:
            self.poll()
            return condition()

        wait_until(turn, what=what, timeout_s=30)
        return time.monotonic() - begun

    def close(self) -> None:
        for member in self.members:
            member.close()


def test_a_coordinator_that_is_killed_costs_no_partition_and_no_commit(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", partitions=4)
    readers = Readers(cluster, "t", 2)
    try:
        one, two = readers.members
        readers.until(lambda: len(one.assignment()) == len(two.assignment()) == 2, "both have two")
        owned = one.assignment(), two.assignment()
        fill(cluster, "t", 0, 40, 4)
        readers.until(lambda: len(readers.seen) == 40, "forty records")
        readers.poll()
        one.commit()
        two.commit()
        cluster.brokers[coordinator_of(cluster, "t")].kill()
        fill(cluster, "t", 40, 40, 4)
        readers.until(lambda: len(readers.seen) >= 80, "forty more")
        readers.poll()
        begun = time.monotonic()
        one.commit()
        two.commit()
        print(f"commits were stored after {time.monotonic() - begun:.2f} s")
        assert sorted(readers.seen) == list(range(80)), "nothing twice, nothing lost"
        assert (one.assignment(), two.assignment()) == owned, "nobody lost anything"
        kept = one.committed(one.assignment() | two.assignment())
        assert [offset.offset for offset in kept.values() if offset is not None] == [20] * 4
    finally:
        readers.close()


def test_who_closes_while_the_coordinator_is_dead_leaves_no_seat_behind(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_session, "LEAVE_S", 120.0)  # a busy machine elects slowly
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", partitions=4)
    readers = Readers(cluster, "t", 2, enable_auto_commit=False)
    try:
        one, two = readers.members
        readers.until(lambda: len(one.assignment()) == len(two.assignment()) == 2, "both have two")
        cluster.brokers[coordinator_of(cluster, "t")].kill()
        readers.members.remove(two)
        two.close()
        # A seat left behind would hold two partitions for the session timeout of 45 s.
        readers.until(lambda: len(one.assignment()) == 4, "the other member has all")
    finally:
        readers.close()


def test_what_a_killed_member_read_and_did_not_commit_is_read_again(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t", partitions=4)
    fill(cluster, "t", 0, 40, 4)
    words = ["consume", "t", "-g", "t", "--bootstrap", cluster.bootstrap]
    killed = command_line.start(*words, stdout=subprocess.PIPE)
    try:
        assert killed.stdout is not None
        printed = [int(killed.stdout.readline()) for _ in range(40)]
        assert sorted(printed) == list(range(40))
        readers = Readers(cluster, "t", 1)
        try:
            (one,) = readers.members
            readers.until(lambda: len(one.assignment()) == 2, "it has its share")
            kept = one.committed([TopicPartition("t", number) for number in range(4)])
            committed = {at: 0 if o is None else o.offset for at, o in kept.items()}
            killed.kill()
            # Its connection broke: nobody waits for the session timeout of 45 s, `until` neither.
            took = readers.until(lambda: len(one.assignment()) == 4, "it has all")
            print(f"a killed member's partitions moved after {took:.2f} s")
            fill(cluster, "t", 40, 4, 4)
            new = set(range(40, 44))
            readers.until(lambda: new <= set(readers.seen), "nothing is lost")
            again = [n for n in readers.seen if n < 40]
            for number in again:
                assert number // 4 >= committed[TopicPartition("t", number % 4)], "redelivered"
        finally:
            readers.close()
    finally:
        killed.kill()
        killed.wait(120)
        if killed.stdout is not None:
            killed.stdout.close()


def test_a_frozen_member_is_fenced_and_its_commits_are_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t", partitions=2)
    fill(cluster, "t", 0, 20, 2)
    pipe = subprocess.PIPE
    frozen = subprocess.Popen(
        [sys.executable, "-c", _FROZEN, cluster.bootstrap], stdin=pipe, stdout=pipe, text=True
    )
    assert frozen.stdin is not None
    assert frozen.stdout is not None
    try:
        assert frozen.stdout.readline() == "owns 2\n"
        frozen.send_signal(signal.SIGSTOP)
        frozen.stdin.write("go on\n")  # as soon as it wakes
        frozen.stdin.flush()
        readers = Readers(cluster, "t", 1)
        try:
            (one,) = readers.members
            readers.until(lambda: len(one.assignment()) == 2, "the other has all")
            readers.until(lambda: len(readers.seen) == 20, "it reads everything again")
            frozen.send_signal(signal.SIGCONT)
            assert frozen.stdout.readline() in ("UNKNOWN_MEMBER\n", "STALE_MEMBER_EPOCH\n")
            assert frozen.stdout.readline() == "lost 2\n"
        finally:
            readers.close()
    finally:
        frozen.kill()
        frozen.wait(120)
        frozen.stdin.close()
        frozen.stdout.close()


_FROZEN = """
import sys
from penstock.client import Consumer
from penstock.errors import PenstockError

class Heard:
    lost = False
    def on_assigned(self, partitions): pass
    def on_revoked(self, partitions): pass
    def on_lost(self, partitions):
        print("lost", len(partitions), flush=True)
        self.lost = True

consumer = Consumer(
    sys.argv[1], group_id="t", auto_offset_reset="earliest", enable_auto_commit=False,
    session_timeout_ms=10_000,  # longer than a busy machine stalls
)
heard = Heard()
consumer.subscribe("t", listener=heard)
read = 0
while read < 20:
    read += sum(map(len, consumer.poll(1.0)))
print("owns", len(consumer.assignment()), flush=True)
sys.stdin.readline()  # stopped in here
try:
    consumer.commit()
    print("committed", flush=True)
except PenstockError as error:
    print(error.code.name, flush=True)
for _ in range(120):
    if not heard.lost:
        consumer.poll(1.0)
"""
