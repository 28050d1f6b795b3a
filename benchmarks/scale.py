"""What a big cluster costs its controller, and which limit comes first.

    3 brokers x 100 partitions · 20 x 5,000 · 200 x 100,000, with 20 partitions per topic

The controller's own machine, the encoding of its documents, its images and the planner run in this
process, on documents in memory: a change costs processor time of the one thread that decides. What
the store takes is counted, not waited for: objects written and their sizes. Each figure has its
limit beside it; a ratio of 1 is where it is reached. Then the same with a store (`scale_store`),
and what Topics cost the operator (`scale_topics`): these two need an API server, and wait for it.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from benchmarks.common import figure, resident_bytes, run_parts
from penstock.core.authorization import Operation, Rule
from penstock.core.authorization.checks import CLUSTER_BYTES_MAX
from penstock.core.balance import BrokerFacts, Drain, Facts, PartitionFacts, Plan, plan
from penstock.core.control import ControlConfig, ControllerMachine
from penstock.core.control import contract as c
from penstock.core.control.documents import (
    CLUSTER_KEY,
    FORMATS,
    BrokerRegistration,
    ClusterAccess,
    ClusterDocument,
    TopicDocument,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.control.election import new_partition
from penstock.core.types import BrokerId, ControllerEpoch, TopicId, TopicPartition
from penstock_broker.controller.wire import image_to_wire

MIB = 1 << 20
OBJECT_BYTES = MIB
"""What Kubernetes stores in one ConfigMap."""
IMAGE_BYTES = 64 * MIB
"""What a gRPC message may hold here (`penstock.rpc.channel`)."""
CHANGE_S = 0.2
"""A fail-over shall take a second in all: the grace period is 0.3 s, the store needs time, too."""
ELECTION_S = 0.5
PLAN_S = 5.0
REST_SHARE = 0.05
"""Of a core, when nothing happens."""
MEMORY_MIB = 512
"""Of a controller's pod. This process holds the stored texts as well."""
GROUPS_STORED = 2_500
"""Of those with a rule: more would be refused."""
TOPIC_PARTITIONS = 20
TICKS_PER_S = 20
REST_S = 10


@dataclass(frozen=True, slots=True)
class Size:
    """`groups`: those that have a rule of their own; others cost the controller nothing."""

    brokers: int
    partitions: int
    groups: int

    @property
    def title(self) -> str:
        return f"{self.brokers} brokers x {self.partitions:,} partitions"


SIZES = (Size(3, 100, 10), Size(20, 5_000, 500), Size(200, 100_000, 10_000))
QUICK = (Size(3, 100, 10),)
TOPICS = 5_000
TOPICS_QUICK = 20
"""Resources that the operator looks after."""


class Cluster:
    """A machine with its store in memory: texts as they would be stored, each with a version."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.config = ControlConfig(
            partitions_max=2 * size.partitions, mutation_rate=2 * size.partitions
        )
        self.machine = ControllerMachine(self.config)
        self.now_ms = 10_000
        self.texts = _documents(size)
        self.writes = 0
        self.written_bytes = 0
        self.streams: dict[BrokerId, int] = {}
        self._ids = count(1)

    def load(self) -> None:
        """Reads everything and takes over."""
        texts = {key: text for key, text in self.texts.items() if key != CLUSTER_KEY}
        topics = tuple((decode_topic(text, key), "1") for key, text in texts.items())
        cluster = decode_cluster(self.texts[CLUSTER_KEY], CLUSTER_KEY)
        self.step(c.Loaded((cluster, "1"), topics, cluster.cluster_id))

    def register(self) -> None:
        """All brokers, as they were before the take-over."""
        events = [self._registration(BrokerId(at)) for at in range(self.size.brokers)]
        for event in events:
            self.step(event)

    def _registration(self, broker_id: BrokerId) -> c.BrokerRegistered:
        stream_id = self.streams[broker_id] = next(self._ids)
        return c.BrokerRegistered(
            stream_id=stream_id, cluster_id="", broker_id=broker_id,
            incarnation=f"run-{broker_id}", host=_host(broker_id), port=9092, rack="",
            directory_id=f"dir-{broker_id}", data_intact=True, formats=FORMATS,
        )  # fmt: skip

    def step(self, event: c.Event) -> c.Ready:
        """One event, and its writes until nothing is left to do."""
        ready = self.machine.handle(event, self.now_ms)
        assert ready.stopped is None, ready.stopped
        if ready.writes:
            versions = {}
            for write in (write for stage in ready.writes for write in stage):
                key, text = _stored(write)
                self.writes += 1
                self.written_bytes += len(text)
                versions[key] = str(self.writes)
                self.texts[key] = text
            self.step(c.WriteDone(ready.write_id, versions))
        return ready

    def rest(self, seconds: float) -> None:
        """Ticks and every broker's heartbeats."""
        beats = 0.0
        for _ in range(int(seconds * TICKS_PER_S)):
            self.now_ms += 1_000 // TICKS_PER_S
            beats += 1_000 / TICKS_PER_S / self.config.heartbeat_interval_ms
            if beats >= 1:
                beats -= 1
                for stream_id in self.streams.values():
                    self.step(c.HeartbeatReceived(stream_id=stream_id, metadata_version=0))
            self.step(c.Tick())

    def create(self) -> None:
        """One more topic."""
        topic = c.NewTopic(
            name="new", topic_id=TopicId("new"), partitions=TOPIC_PARTITIONS, replication_factor=3
        )
        self.step(c.CreateTopics(next(self._ids), "", (topic,)))
        assert self.machine.topic("new") is not None

    def shrink(self) -> None:
        """The leader of one partition takes a follower out of the ISR."""
        topic = self.topic(0)
        state = topic.partitions[0].state
        session = self.machine.sessions.get(state.leader)
        assert session is not None
        change = c.IsrChange(
            topic_id=topic.topic_id, partition=0, leader_epoch=state.leader_epoch,
            version=state.version, isr=state.isr[:-1],
        )  # fmt: skip
        self.step(
            c.AlterIsr(
                request_id=next(self._ids), cluster_id="", broker_id=state.leader,
                broker_session=session.number, controller_epoch=self.machine.epoch,
                changes=(change,),
            )
        )  # fmt: skip
        assert self.topic(0).partitions[0].state.isr == state.isr[:-1]

    def kill(self) -> None:
        """The last broker's stream breaks; after the grace period it is declared dead."""
        broker_id = BrokerId(self.size.brokers - 1)
        self.step(c.StreamClosed(self.streams.pop(broker_id)))
        self.now_ms += self.config.session_grace_ms
        self.step(c.Tick())
        assert not self.machine.stored.cluster.brokers[broker_id].alive

    def topic(self, number: int) -> TopicDocument:
        """An adopted one."""
        found = self.machine.topic(_name(number))
        assert found is not None
        return found


def _stored(write: c.DocumentWrite) -> tuple[str, str]:
    match write:
        case c.PutCluster():
            return CLUSTER_KEY, encode_cluster(write.document)
        case c.PutTopic():
            return topic_key(write.document.name), encode_topic(write.document)
        case c.RemoveTopic():
            return topic_key(write.name), ""


def _documents(size: Size) -> dict[str, str]:
    """A cluster at rest: replicas go round the brokers, every topic at another place."""
    epoch = ControllerEpoch(1)
    live = frozenset(BrokerId(at) for at in range(size.brokers))
    texts = {}
    for number in range(size.partitions // TOPIC_PARTITIONS):
        partitions = tuple(
            new_partition(_replicas(number * TOPIC_PARTITIONS + at, size.brokers), live)
            for at in range(TOPIC_PARTITIONS)
        )
        name = _name(number)
        document = TopicDocument(
            name=name, topic_id=TopicId(f"id-{number}"), controller_epoch=epoch,
            metadata_version=1, configs={"retention.ms": "604800000"}, partitions=partitions,
        )  # fmt: skip
        texts[topic_key(name)] = encode_topic(document)
    cluster = ClusterDocument(
        cluster_id="scale", controller_epoch=epoch, metadata_version=1, format=max(FORMATS),
        brokers={broker_id: _registered(broker_id) for broker_id in sorted(live)},
        access=_access(min(size.groups, GROUPS_STORED)),
    )  # fmt: skip
    return {CLUSTER_KEY: encode_cluster(cluster), **texts}


def _access(groups: int) -> ClusterAccess:
    rule = Rule(principals=("serviceaccount:pipelines/worker",), operations=(Operation.READ,))
    return ClusterAccess((), {f"group-{number:05}": (rule,) for number in range(groups)}, 1)


def _registered(broker_id: BrokerId) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id, host=_host(broker_id), port=9092, rack="", alive=True,
        directory_id=f"dir-{broker_id}", incarnation=f"run-{broker_id}",
    )  # fmt: skip


def _replicas(partition: int, brokers: int) -> tuple[BrokerId, ...]:
    """A third of the brokers apart: a topic lies on as many brokers as it has replicas, as the
    controller places it."""
    third = max(1, brokers // 3)
    return tuple(BrokerId((partition + step * third) % brokers) for step in range(3))


def _name(number: int) -> str:
    return f"team-{number % 100:02}.events-{number:05}"


def _host(broker_id: BrokerId) -> str:
    return f"scale-broker-{broker_id}.scale-brokers.streaming.svc.cluster.local"


# ---------------------------------------------------------------- figures


def measure(size: Size) -> None:
    """All figures of one size, in the order of a cluster's life."""
    cluster = Cluster(size)
    sizes_of(cluster)
    _time("take-over: documents decoded and adopted", size, cluster.load, 1.0)
    gc.collect()
    resident = resident_bytes(os.getpid()) / MIB
    figure(named("memory of the process", size), resident, "MiB", "limit", MEMORY_MIB)
    _change("all brokers register", cluster, cluster.register, 1.0)
    cluster.rest(2 * cluster.config.preferred_leader_interval_ms / 1_000)
    began = time.process_time()
    cluster.rest(REST_S)
    share = (time.process_time() - began) / REST_S
    figure(named("at rest", size), share, "cores", "limit", REST_SHARE, goal="ratio at most 1")
    _change("a topic is created", cluster, cluster.create, CHANGE_S)
    _change("an ISR shrinks", cluster, cluster.shrink, CHANGE_S)
    _image("of the last change", cluster, cluster.machine.stored.metadata_version - 1, CHANGE_S)
    _change("a broker dies", cluster, cluster.kill, ELECTION_S)
    _image("of a broker's death", cluster, cluster.machine.stored.metadata_version - 1, ELECTION_S)
    _image("of everything", cluster, 0, 1.0)
    _plan(size)


def sizes_of(cluster: Cluster) -> None:
    """What is stored, beside what one object may hold."""
    size, texts = cluster.size, cluster.texts
    topics = [len(text) for key, text in texts.items() if key != CLUSTER_KEY]
    default = ControlConfig().partitions_max
    figure(named("partitions", size), size.partitions, "", "max.partitions", default)
    figure(named("largest topic", size), max(topics), "bytes", "object", OBJECT_BYTES)
    figure(named("all documents", size), sum(map(len, texts.values())), "bytes")
    known = decode_cluster(texts[CLUSTER_KEY], CLUSTER_KEY)
    plain = encode_cluster(replace(known, access=ClusterAccess()))
    figure(named("brokers", size), len(plain), "bytes", "object", OBJECT_BYTES)
    rules = len(encode_cluster(replace(known, access=_access(size.groups)))) - len(plain)
    title = f"rules of {size.groups:,} groups"
    figure(named(title, size), rules, "bytes", "limit of rules", CLUSTER_BYTES_MAX)


def named(name: str, size: Size) -> str:
    return f"scale: {name}, {size.title}"


def _time(name: str, size: Size, run: Callable[[], object], limit_s: float) -> None:
    began = time.process_time()
    run()
    took = time.process_time() - began
    figure(named(name, size), took, "s", "limit", limit_s, goal="ratio at most 1")


def _change(name: str, cluster: Cluster, run: Callable[[], object], limit_s: float) -> None:
    writes, written = cluster.writes, cluster.written_bytes
    _time(name, cluster.size, run, limit_s)
    figure(named(f"{name}: objects written", cluster.size), cluster.writes - writes, "")
    figure(named(f"{name}: written", cluster.size), cluster.written_bytes - written, "bytes")


def _image(name: str, cluster: Cluster, since: int, limit_s: float) -> None:
    """Made once for all brokers that have reached the same version."""
    made: list[bytes] = []

    def make() -> None:
        made.append(image_to_wire(cluster.machine.image(since)).SerializeToString())

    _time(f"image {name}", cluster.size, make, limit_s)
    title = named(f"image {name}: size", cluster.size)
    figure(title, len(made[0]), "bytes", "message", IMAGE_BYTES)
    sent = len(made[0]) * cluster.size.brokers
    figure(named(f"image {name}: sent to all brokers", cluster.size), sent / MIB, "MiB")


def _plan(size: Size) -> None:
    """Draining one broker; with three there is none to take its replicas, hence one more."""
    brokers = size.brokers + 1
    members = tuple(
        BrokerFacts(id=BrokerId(at), rack="", disk_bytes=1 << 50, free_bytes=1 << 49)
        for at in range(brokers)
    )
    partitions = []
    for number in range(size.partitions):
        replicas = _replicas(number, brokers)
        name = TopicPartition(_name(number // TOPIC_PARTITIONS), number % TOPIC_PARTITIONS)
        partitions.append(
            PartitionFacts(
                partition=name, replicas=replicas, isr=replicas, leader=replicas[0],
                size_bytes=MIB * (1 + number % 97), bytes_per_second=1_000,
            )
        )  # fmt: skip
    facts = Facts(brokers=members, partitions=tuple(partitions), copy_rate=40 * MIB)

    def run() -> None:
        made = plan(facts, Drain((BrokerId(brokers - 1),)))
        assert isinstance(made, Plan), made.reason

    _time("plan that drains a broker", size, run, PLAN_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small: shows only that it works")
    parser.add_argument("--only", choices=("machine", "store", "operator"), help="this part")
    args = parser.parse_args()
    sizes = QUICK if args.quick else SIZES
    parts: dict[str, Callable[[], None]] = {}
    if args.only in {None, "machine"}:
        parts |= {f"machine, {size.title}": partial(measure, size) for size in sizes}
    if args.only in {None, "store"}:
        parts |= {f"store, {size.title}": partial(_with_store, size) for size in sizes}
    if args.only in {None, "operator"}:
        parts["operator"] = partial(_with_topics, TOPICS_QUICK if args.quick else TOPICS)
    return run_parts(parts)


def _with_store(size: Size) -> None:
    from benchmarks import scale_store  # noqa: PLC0415 - it uses this module

    scale_store.measure(size)


def _with_topics(count: int) -> None:
    from benchmarks import scale_topics  # noqa: PLC0415 - with all that tests need

    scale_topics.measure(count)


if __name__ == "__main__":
    sys.exit(main())
