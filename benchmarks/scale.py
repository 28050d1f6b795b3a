"""What a big cluster costs its controller: from the real state machine, encodings and planner.

    sizes ─▶ ControllerMachine, driven with that many brokers, topics and partitions
               every write it asks for is encoded as the store does, and answered at once

Pure computing in one process: processor time of this process, and bytes. What the network and the
API server add is counted as calls and bytes, not timed (`benchmarks/metadata.py` times calls).
Ratios are against limits: 1 s of the one event loop that everything in a controller shares, 1 MiB
that a ConfigMap may hold, the 300 ms between two heartbeats of a broker.
"""

import argparse
import gc
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.common import figure, progress, resident_bytes, run_parts
from penstock.core.balance import (
    BrokerFacts,
    Drain,
    Facts,
    PartitionFacts,
    Plan,
    Spread,
    Wish,
    plan,
)
from penstock.core.control import ControlConfig, ControllerMachine
from penstock.core.control import contract as c
from penstock.core.control.documents import (
    CLUSTER_KEY,
    FORMATS,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.groups.catalog import Catalog, CatalogTopic, NamedPartition
from penstock.core.groups.config import GroupConfig
from penstock.core.groups.contract import CommitRequested, NewOffset
from penstock.core.groups.machine import GroupCoordinator
from penstock.core.types import BrokerId, LeaderEpoch, TopicId, TopicPartition
from penstock_broker.controller.wire import image_to_wire

MIB: Final = 1 << 20
GIB: Final = 1 << 30
CONFIG_MAP_BYTES: Final = MIB
LOOP_S: Final = 1.0
GROUP_COORDINATORS: Final = 50
"""Partitions of __consumer_offsets."""
OFFSETS_OF_A_GROUP: Final = 20
_TICKS_PER_S: Final = 20
_CHANGES: Final = 50


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster. Topics have three replicas per partition."""

    brokers: int
    topics: int
    partitions: int
    groups: int

    @property
    def each(self) -> int:
        """Partitions of a topic."""
        return self.partitions // self.topics

    def __str__(self) -> str:
        return f"{self.brokers} brokers, {self.partitions:,} partitions in {self.topics:,} topics"


SIZES: Final = (
    Size(3, 50, 1_000, 100),
    Size(20, 500, 10_000, 1_000),
    Size(200, 5_000, 100_000, 10_000),
)
SMALL: Final = (Size(3, 5, 30, 10), Size(5, 10, 60, 20))


class Controller:
    """A machine whose store answers at once. Counts what it writes, and its own time."""

    def __init__(self, size: Size) -> None:
        config = ControlConfig(partitions_max=2_000_000, mutation_rate=1_000_000)
        self.machine = ControllerMachine(config)
        self.size = size
        self.now_ms = 10_000
        self.texts: dict[str, tuple[str, str]] = {}
        self.streams: dict[int, int] = {}
        self.replies: dict[int, Any] = {}
        self.machine_s = self.encode_s = 0.0
        self.writes = self.bytes = 0
        self._ids = 0

    def reset(self) -> None:
        self.machine_s = self.encode_s = 0.0
        self.writes = self.bytes = 0

    def step(self, event: c.Event) -> None:
        """Feeds an event, and obeys until nothing is left to do."""
        began = time.process_time()
        ready = self.machine.handle(event, self.now_ms)
        self.machine_s += time.process_time() - began
        assert ready.stopped is None, ready.stopped
        for reply in ready.replies:
            self.replies[reply.request_id] = reply.outcome
        if ready.writes:
            self.step(c.WriteDone(ready.write_id, self._store(ready.writes)))

    def _store(self, stages: Iterable[Iterable[c.DocumentWrite]]) -> dict[str, str]:
        versions = {}
        for write in (one for stage in stages for one in stage):
            assert not isinstance(write, c.RemoveTopic)
            began = time.process_time()
            if isinstance(write, c.PutCluster):
                key, text = CLUSTER_KEY, encode_cluster(write.document)
            else:
                key, text = topic_key(write.document.name), encode_topic(write.document)
            self.encode_s += time.process_time() - began
            self.writes += 1
            self.bytes += len(text)
            versions[key] = f"v{self.writes}-{self._next_id()}"
            self.texts[key] = (text, versions[key])
        return versions

    def load(self) -> c.Loaded:
        """All documents, decoded as a controller does that takes over."""
        cluster, topics = None, []
        for key, (text, version) in self.texts.items():
            if key == CLUSTER_KEY:
                cluster = (decode_cluster(text, key), version)
            else:
                topics.append((decode_topic(text, key), version))
        return c.Loaded(cluster, tuple(topics), "the-cluster")

    def register(self, broker: int) -> None:
        self.streams[broker] = self._next_id()
        self.step(
            c.BrokerRegistered(
                stream_id=self.streams[broker],
                cluster_id="",
                broker_id=BrokerId(broker),
                incarnation=f"run-{broker}",
                host=f"flights-broker-{broker}.flights-brokers.streams.svc",
                port=9092,
                rack=f"zone-{broker % 3}",
                directory_id=f"directory-{broker}",
                data_intact=True,
                formats=FORMATS,
            )
        )

    def create(self, numbers: Iterable[int]) -> None:
        """Topics, in one request."""
        topics = tuple(
            c.NewTopic(
                name=f"flights-of-airline-{number:05}",
                topic_id=TopicId(f"00000000-0000-4000-8000-{number:012}"),
                partitions=self.size.each,
                replication_factor=3,
            )
            for number in numbers
        )
        request = self._next_id()
        self.step(c.CreateTopics(request, "", topics))
        failed = [one for one in self.replies.pop(request).outcomes if one.error is not None]
        assert not failed, failed[0]

    def heartbeat(self, broker: int) -> None:
        self.step(c.HeartbeatReceived(stream_id=self.streams[broker], metadata_version=0))

    def pass_time(self, duration_ms: int) -> None:
        """Ticks and heartbeats as they come."""
        end_ms, beat_ms = self.now_ms + duration_ms, self.machine.config.heartbeat_interval_ms
        while self.now_ms < end_ms:
            self.now_ms += 1_000 // _TICKS_PER_S
            if self.now_ms % beat_ms < 1_000 // _TICKS_PER_S:
                for broker in self.streams:
                    self.heartbeat(broker)
            self.step(c.Tick())

    def shrink_isr(self, topic: str, partition: int) -> None:
        """The leader proposes an ISR without its last member."""
        document = self.machine.topic(topic)
        assert document is not None
        state = document.partitions[partition].state
        session = self.machine.sessions.get(state.leader)
        assert session is not None
        change = c.IsrChange(
            topic_id=document.topic_id,
            partition=partition,
            leader_epoch=LeaderEpoch(state.leader_epoch),
            version=state.version,
            isr=tuple(one for one in state.isr if one != _last_follower(state)),
        )
        self.step(
            c.AlterIsr(
                request_id=self._next_id(),
                cluster_id="",
                broker_id=state.leader,
                broker_session=session.number,
                controller_epoch=self.machine.epoch,
                changes=(change,),
            )
        )

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids


def _last_follower(state: Any) -> BrokerId:
    return BrokerId([one for one in state.isr if one != state.leader][-1])


def measure(size: Size) -> None:
    """All figures of one size."""
    gc.collect()
    before = resident_bytes(os.getpid())
    controller = _built(size)
    gc.collect()
    memory = resident_bytes(os.getpid()) - before
    figure(f"memory of the controller's state, {size}", memory / MIB, "MiB")
    _documents(controller)
    _images(controller)
    _rest(controller)
    _changes(controller)
    _death(controller)
    _takeover(controller)
    del controller
    gc.collect()
    _plans(size)
    _groups(size)


def _built(size: Size) -> Controller:
    controller = Controller(size)
    controller.step(c.Loaded(None, (), "the-cluster"))
    for broker in range(size.brokers):
        controller.register(broker)
    progress(f"creating {size.topics:,} topics")
    for begin in range(0, size.topics - 10, 10):
        controller.create(range(begin, begin + 10))
    controller.reset()
    controller.create(range(max(0, size.topics - 10), size.topics))
    took = controller.machine_s + controller.encode_s
    figure(f"last ten topics created, {size}", took, "s", "limit", LOOP_S)
    return controller


def _documents(controller: Controller) -> None:
    size, texts = controller.size, controller.texts
    topics = [len(text) for key, (text, _) in texts.items() if key != CLUSTER_KEY]
    cluster = len(texts[CLUSTER_KEY][0])
    biggest = max(topics)
    figure(
        f"document of a topic with {size.each} partitions, {size}",
        biggest / 1024, "KiB", "limit", CONFIG_MAP_BYTES / 1024,
    )  # fmt: skip
    figure(
        f"document of the cluster, {size}",
        cluster / 1024, "KiB", "limit", CONFIG_MAP_BYTES / 1024,
    )  # fmt: skip
    figure(f"all documents, {size}", (sum(topics) + cluster) / MIB, "MiB", "limit", 2048.0)


def _images(controller: Controller) -> None:
    began = time.process_time()
    encoded = image_to_wire(controller.machine.image(0)).SerializeToString()
    took, size = time.process_time() - began, controller.size
    figure(f"full image, {size}", len(encoded) / MIB, "MiB")
    figure(f"full image encoded, once for all brokers, {size}", took, "s", "limit", LOOP_S)
    total = len(encoded) * size.brokers
    figure(f"full image to every broker after a take-over, {size}", total / MIB, "MiB")


def _rest(controller: Controller) -> None:
    controller.reset()
    seconds = 10
    controller.pass_time(seconds * 1_000)
    assert not controller.writes, "a cluster at rest writes nothing"
    used = controller.machine_s / seconds
    figure(f"CPU at rest, {controller.size}", used, "cores", "limit", 1.0)


def _changes(controller: Controller) -> None:
    """One partition after the other, as a slow disk gives them."""
    size, draw = controller.size, random.Random(1)
    controller.reset()
    version = controller.machine.stored.metadata_version
    places = [
        (topic.name, partition)
        for topic in controller.machine.stored.topics.values()
        for partition in range(len(topic.partitions))
    ]
    chosen = draw.sample(places, min(_CHANGES, len(places)))
    delta = 0
    encode_s = 0.0
    for topic, partition in chosen:
        controller.shrink_isr(topic, partition)
        began = time.process_time()
        delta += len(image_to_wire(controller.machine.image(version)).SerializeToString())
        encode_s += time.process_time() - began
        version = controller.machine.stored.metadata_version
    took = (controller.machine_s + controller.encode_s + encode_s) / len(chosen)
    figure(f"an ISR change, {size}", took * 1e3, "ms", "limit", LOOP_S * 1e3)
    sent = delta / len(chosen) * size.brokers
    figure(f"what an ISR change sends to all brokers, {size}", sent / 1024, "KiB")


def _death(controller: Controller) -> None:
    """A broker is killed: from the broken stream to the stored leaders."""
    size = controller.size
    controller.reset()
    controller.step(c.StreamClosed(controller.streams.pop(size.brokers - 1)))
    led = sum(
        one.state.leader == size.brokers - 1
        for topic in controller.machine.stored.topics.values()
        for one in topic.partitions
    )
    version = controller.machine.stored.metadata_version
    controller.pass_time(controller.machine.config.session_grace_ms + 50)
    began = time.process_time()
    delta = len(image_to_wire(controller.machine.image(version)).SerializeToString())
    image_s = time.process_time() - began
    took = controller.machine_s + controller.encode_s + image_s
    figure(f"a broker's death, {size}", took, "s", "limit", LOOP_S)
    figure(f"leaders elected by it, {size}", led, "leaders")
    figure(f"API writes for it, {size}", controller.writes, "writes", "one per partition it had",
           size.partitions * 3 / size.brokers)  # fmt: skip
    figure(f"what a broker's death sends to all brokers, {size}",
           delta * (size.brokers - 1) / MIB, "MiB")  # fmt: skip


def _takeover(controller: Controller) -> None:
    size = controller.size
    other = Controller(size)
    other.texts = dict(controller.texts)
    began = time.process_time()
    loaded = other.load()
    decoded = time.process_time()
    other.step(loaded)
    took = time.process_time() - began
    figure(f"documents decoded at a take-over, {size}", decoded - began, "s", "limit", LOOP_S)
    figure(f"take-over, decoding included, {size}", took, "s", "limit", LOOP_S)


def _plans(size: Size) -> None:
    """Moves all data off a broker; gives one broker more its share."""
    held = _facts(size, size.brokers)
    grown = _facts(size, size.brokers - 1) if size.brokers > 3 else None
    wishes: dict[str, tuple[Facts, Wish]] = {}
    if size.brokers > 3:
        wishes["drain a broker"] = held, Drain((BrokerId(size.brokers - 1),))
    if grown is not None:
        wishes["spread onto a new broker"] = grown, Spread()
    for name, (facts, wish) in wishes.items():
        began = time.process_time()
        made = plan(facts, wish)
        took = time.process_time() - began
        assert isinstance(made, Plan), made.reason
        figure(f"plan: {name}, {size}", took, "s", "limit", 5.0)


def _facts(size: Size, holding: int) -> Facts:
    """Replicas in turns on the first `holding` brokers."""
    brokers = tuple(
        BrokerFacts(
            id=BrokerId(at), rack="", disk_bytes=10_000 * GIB, free_bytes=9_000 * GIB,
            fresh=at >= holding,
        )
        for at in range(size.brokers)
    )  # fmt: skip
    placed = []
    for at in range(size.partitions):
        replicas = tuple(BrokerId((at + at // holding + step) % holding) for step in range(3))
        placed.append(
            PartitionFacts(
                partition=TopicPartition(f"topic-{at // size.each}", at % size.each),
                replicas=replicas, isr=replicas, leader=replicas[0], size_bytes=100 * MIB,
                bytes_per_second=10_000,
            )
        )  # fmt: skip
    return Facts(brokers=brokers, partitions=tuple(placed), copy_rate=40 * MIB)


def _groups(size: Size) -> None:
    """A coordinator of one partition of __consumer_offsets with its share of the groups."""
    groups = max(1, size.groups // GROUP_COORDINATORS)
    took = _commit(_coordinator(), groups) / groups
    tracemalloc.start()
    coordinator = _coordinator()
    _commit(coordinator, groups)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(coordinator.groups) == groups
    of = f"{size.groups:,} groups with {OFFSETS_OF_A_GROUP} offsets"
    figure(f"commit of all its offsets, {of}", took * 1e3, "ms")
    figure(f"memory of all of them, {of}", used / groups * size.groups / MIB, "MiB")


def _coordinator() -> GroupCoordinator:
    machine = GroupCoordinator(GroupConfig(), 0)
    machine.start(Catalog.of(CatalogTopic("t", TopicId("t-id"), OFFSETS_OF_A_GROUP)), 1_000)
    return machine


def _commit(machine: GroupCoordinator, groups: int) -> float:
    """Every group commits all its offsets; the processor seconds."""
    took = 0.0
    for number in range(groups):
        offsets = tuple(
            NewOffset(NamedPartition("t", TopicId(""), at), 1_000_000 + at)
            for at in range(OFFSETS_OF_A_GROUP)
        )
        event = CommitRequested(
            request_id=number, group_id=f"group-{number}", member_id="", member_epoch=-1,
            instance_id="", offsets=offsets,
        )  # fmt: skip
        began = time.process_time()
        ready = machine.handle(event, 1_000 + number)
        took += time.process_time() - began
        assert ready.stopped is None
    return took


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small: shows only that it works")
    parser.add_argument(
        "--partitions", type=int, metavar="N", help="only the size with so many partitions"
    )
    given = parser.parse_args()
    sizes: tuple[Size, ...] = SMALL if given.quick else SIZES
    if given.partitions is not None:
        sizes = tuple(one for one in sizes if one.partitions == given.partitions)
        if not sizes:
            parser.error(f"--partitions is one of {[one.partitions for one in SIZES]}")
    parts: dict[str, Callable[[], None]] = {str(one): partial(measure, one) for one in sizes}
    return run_parts(parts)


if __name__ == "__main__":
    sys.exit(main())
