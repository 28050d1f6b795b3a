"""One history: a cluster, its clients and its nemesis, from a seed.

set up ──▶ chaos (faults and load) ──▶ heal ──▶ everything must converge ──▶ final checks
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Unpack

from penstock.core.control import contract as cc
from penstock.core.control.documents import CLUSTER_KEY, TopicDocument, decode_cluster
from penstock.core.control.partition import PartitionDocument
from penstock.core.groups.catalog import CatalogTopic
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.topic import INTERNAL_TOPICS
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.types import (
    Acks,
    LeaderEpoch,
    ReplicaKey,
    Sync,
    TopicId,
)
from penstock_sim.aborting import Operator
from penstock_sim.bank import Bank
from penstock_sim.blackouts import CHAOS_LEAST_MS, Blackouts, Syncs
from penstock_sim.broker import SimBroker
from penstock_sim.changes import Changes
from penstock_sim.checks import Checks
from penstock_sim.client_node import ClientNode
from penstock_sim.clients import Consumer, Plan, Producer
from penstock_sim.committed_reader import CommittedReader
from penstock_sim.compaction_checks import CompactionChecks
from penstock_sim.contents import Options, contents_of
from penstock_sim.controller import ControllerShell, SimController
from penstock_sim.coordinator import CONFIG as GROUP_CONFIG
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.damage import Damage
from penstock_sim.deletion import KEY as SHORT_LIVED_KEY
from penstock_sim.deletion import TOPIC as SHORT_LIVED_TOPIC
from penstock_sim.deletion import Deletion
from penstock_sim.drains import Drainer, proofs_of_a_history
from penstock_sim.edits import Edits
from penstock_sim.faults import Nemesis
from penstock_sim.group_checks import GroupChecks
from penstock_sim.groups import SimGroups
from penstock_sim.hibernation import Hibernation, waits_of_a_history
from penstock_sim.latest_reader import LatestReader, latest_readers
from penstock_sim.layout import draw_layout
from penstock_sim.ledger import FoldingReader, Ledger
from penstock_sim.metadata_store import MetaStore
from penstock_sim.moving import Mover
from penstock_sim.network import Network
from penstock_sim.nodes import CONTROLLERS
from penstock_sim.operator_pods import OperatorPods, leases_of_a_history
from penstock_sim.pauses import Pauses
from penstock_sim.pipe import PipeGroups
from penstock_sim.pipe_checks import PipeChecks, SinkReader
from penstock_sim.promptness import Promptness
from penstock_sim.rebirth import Rebirth
from penstock_sim.ring import Ring
from penstock_sim.scheduler import RuleError, Scheduler
from penstock_sim.settled import unsettled
from penstock_sim.shell import Shell
from penstock_sim.spark import SimSpark
from penstock_sim.spark_checks import SparkChecks
from penstock_sim.transaction_checks import TransactionChecks
from penstock_sim.transactional import SimTransactions
from penstock_sim.transactions import TRANSACTIONS_KEY

TOPIC: Final = "events"
TOPIC_ID: Final = TopicId("00000000-0000-4000-8000-000000000001")
SET_UP_MS: Final = 2_000
LONGEST_MS: Final = 2_400
ABANDONED_EVERY: Final = 3
"""In one of so many seeds transactional producers do not live to see that all is healed."""
EXPIRY_EVERY: Final = 96
"""In one of so many seeds, with a pipe, the offsets of an empty group expire soon."""
SINK_TOPIC: Final = "priced"
SINK_ID: Final = TopicId("00000000-0000-4000-8000-000000000004")
CONVERGE_MS: Final = 15_000
_NEVER_MS: Final = 10**9


@dataclass(frozen=True, slots=True)
class History:
    """What came of a seed."""

    seed: int
    fingerprint: int
    steps: int
    commits: int
    elections: int
    truncations: int
    acked: int
    healed_ms: int
    group_commits: int = 0
    rebalances: int = 0
    journals: int = 0
    transactions: int = 0
    spark_batches: int = 0
    piped: int = 0
    aborts_asked: int = 0
    aborts_hit: int = 0
    latest_readers: int = 0
    moves: int = 0
    cancels: int = 0
    drops: int = 0
    flips: int = 0
    mended: int = 0
    vanished: int = 0
    sleeps: int = 0
    wakes: int = 0
    taken_back: int = 0
    drains: int = 0
    drained: int = 0
    drains_back: int = 0
    pauses: int = 0
    edits: int = 0
    handed_over: int = 0
    changes: int = 0
    lives: int = 0
    grown: int = 0
    retained: int = 0
    compacted: int = 0
    violation: str | None = None
    trace: tuple[str, ...] = ()


class World:
    """Everything of one simulation."""

    def __init__(self, seed: int, *, traced: bool = False, **options: Unpack[Options]) -> None:
        self.seed = seed
        self.contents = contents_of(seed, options)
        self.journal = self.contents.journal
        self.faults = options.get("faults", frozenset())
        self.scheduler = Scheduler(seed, traced=traced)
        chance = self.scheduler.random
        self.chaos_ms = chance.choice((600, 1200, LONGEST_MS))
        self.blackout = chance.random() < 0.06
        self.wants_blackout = bool(options.get("blackouts"))
        self.keeps_to_disk = self.blackout and not self.wants_blackout
        """Only what was acknowledged with sync=DISK is in it: no group, no transaction."""
        self.blackout = self.blackout or self.wants_blackout
        self.unclean = bool(options.get("unclean"))
        self.unclean_coordinators = self.unclean and (
            self.scheduler.generator("unclean coordinators").random() < 0.5
        )
        self.blackouts: Blackouts | None = None
        if self.wants_blackout:
            self.chaos_ms = max(self.chaos_ms, CHAOS_LEAST_MS)
        self.wants_changes = bool(options.get("changes"))
        if self.wants_changes:
            self.blackout = self.keeps_to_disk = False
        self.layout = draw_layout(chance, options.get("brokers"), options.get("factor"))
        self.chaotic = False
        self.healed_ms = 0
        self.cluster_id = "simulated-cluster"
        self.net = Network(self.scheduler)
        self.graveyard: list[Shell | ControllerShell] = []
        """Runs that were killed; kept, because Python ends what nobody keeps."""
        self.client_nodes: list[ClientNode] = []
        """All runs of clients that have a loop."""
        self.checks = Checks(self)
        self.edits = Edits(self) if options.get("edits") else None
        self.meta = MetaStore(self)
        self.controllers = {node: SimController(self, node) for node in CONTROLLERS}
        self.brokers = {
            number: SimBroker(self, number) for number in range(1, self.layout.brokers + 1)
        }
        self.keys = [ReplicaKey(TOPIC_ID, index) for index in range(chance.choice((1, 1, 2, 3)))]
        self.resets: set[ReplicaKey] = set()
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._requests = 0
        self.names: dict[TopicId, str] = {}
        self.mover = Mover(self) if self.contents.moves else None
        self.damage = Damage(self) if options.get("damage") else None
        self.drainer = Drainer(self) if options.get("drains") and self.contents.moves else None
        self.pauses = Pauses(self) if options.get("pauses") else None
        self.operator_pods = OperatorPods(self) if options.get("operator_pods") else None
        if self.operator_pods is not None or self.drainer is not None:
            self.chaos_ms = LONGEST_MS  # Leases change hands in it, brokers are proven empty
        self.changes = Changes(self, TOPIC) if self.wants_changes else None
        self.rebirth = Rebirth(self) if self.contents.rebirth else None
        self.hibernation: Hibernation | None = None
        if self.contents.hibernation:
            self.hibernation = Hibernation(self)
            self.chaos_ms = 2 * LONGEST_MS  # a sleep takes long
            self.blackout = self.keeps_to_disk = False
        self.groups: SimGroups | None = None
        self.transactions: SimTransactions | None = None
        self.spark: SimSpark | None = None
        self.deletion: Deletion | None = None
        self.compacts = False
        """Every replica of `keys` shrinks its own log; producers give their records keys."""
        self.null_values = self.scheduler.generator("null values")
        self.compaction_checks = CompactionChecks(self)
        self.committed_readers: list[CommittedReader] = []
        self.latest_readers: list[LatestReader] = []
        self.sinks: list[ReplicaKey] = []
        self.ledger = Ledger()
        self.group_config = GROUP_CONFIG
        self.transaction_checks = TransactionChecks(self)
        self._set_up()
        wanted = self.contents.operator and self.transactions is not None
        self.operator = Operator(self) if wanted else None

    def _set_up(self) -> None:
        contents = self.contents
        if (contents.pipe or contents.ring) and not self.keeps_to_disk:
            self._set_up_pipe(ring=contents.ring)
        elif contents.bank and not self.keeps_to_disk:
            self._set_up_bank()
        else:
            self._set_up_others()
            may = self.transactions is not None or (
                self.groups is None and (self.is_dark or self.wants_changes)
            )
            self.compacts = contents.compaction and may

    def _set_up_pipe(self, *, ring: bool) -> None:
        chance = self.scheduler.random
        self.keys = [ReplicaKey(TOPIC_ID, index) for index in range(chance.choice((1, 2, 2)))]
        self.sinks = [ReplicaKey(SINK_ID, index) for index in range(chance.choice((1, 1, 2)))]
        if self.seed % EXPIRY_EVERY < 12:
            self.group_config = replace(
                GROUP_CONFIG, offsets_retention_ms=400, sweep_interval_ms=160
            )
        sinks = CatalogTopic(SINK_TOPIC, SINK_ID, len(self.sinks))
        self.groups = Ring(self, TOPIC, SINK_TOPIC) if ring else PipeGroups(self, TOPIC)
        self.transactions = Bank(self)
        self.group_checks: GroupChecks = PipeChecks(self, self._topic, sinks)

    @property
    def is_dark(self) -> bool:
        """A test wants that more is lost than is promised to last."""
        return self.wants_blackout or self.unclean

    @property
    def _topic(self) -> CatalogTopic:
        return CatalogTopic(TOPIC, TOPIC_ID, len(self.keys))

    def _set_up_bank(self) -> None:
        count = self.scheduler.random.choice((2, 2, 3))
        self.keys = [ReplicaKey(TOPIC_ID, index) for index in range(count)]
        self.transactions = Bank(self)
        self.group_checks = GroupChecks(self, self._topic)

    def _set_up_others(self) -> None:
        chance, contents = self.scheduler.random, self.contents
        if contents.groups and not self.keeps_to_disk:
            self.keys = [ReplicaKey(TOPIC_ID, index) for index in range(chance.choice((1, 2, 3)))]
            self.groups = SimGroups(self, TOPIC)
        if contents.transactions and self.groups is None and not self.keeps_to_disk:
            self.keys = [ReplicaKey(TOPIC_ID, index) for index in range(chance.choice((2, 2, 3)))]
            self.transactions = SimTransactions(self, transactors=1 if contents.spark else None)
            if contents.spark:
                self.spark = SimSpark(self, SparkChecks(self))
            if contents.deletion:
                self.deletion = Deletion(self)
        self.group_checks = GroupChecks(self, self._topic)

    @property
    def all_keys(self) -> list[ReplicaKey]:
        """Those with data, and those of the groups and the transactions."""
        offsets = [] if self.groups is None else [OFFSETS_KEY]
        decisions = [] if self.transactions is None else [TRANSACTIONS_KEY]
        return [*self.written_keys, *offsets, *decisions]

    @property
    def joined_keys(self) -> list[ReplicaKey]:
        """Those that a transaction may write to now."""
        reborn = [] if self.rebirth is None else self.rebirth.keys
        return [*self.written_keys, *reborn]

    @property
    def checked_keys(self) -> list[ReplicaKey]:
        """And those of a topic that is deleted and created again, if it is there."""
        return self.all_keys if self.rebirth is None else [*self.all_keys, *self.rebirth.keys]

    @property
    def data_keys(self) -> list[ReplicaKey]:
        """The partitions of producers, and those that pipes write to."""
        return [*self.keys, *self.sinks] if self.sinks else self.keys

    @property
    def written_keys(self) -> list[ReplicaKey]:
        """Those that transactions write to."""
        lives = self.deletion is not None and not self.deletion.is_done
        return [*self.keys, SHORT_LIVED_KEY] if lives else self.data_keys

    @property
    def has_real_records(self) -> bool:
        """Somebody decodes them, or goes by their times."""
        return self.groups is not None or self.compacts or self.changes is not None

    def known(self, key: ReplicaKey) -> PartitionDocument:
        """What the active controller knows; if none is active, what is stored.

        A write that a deposed controller had under way may be stored unseen: the next write of the
        topic finds it.
        """
        name = self.names[key.topic_id]
        for controller in self.controllers.values():
            topic = controller.topic(name)
            if topic is not None and self._has(topic, key):
                return topic.partitions[key.partition]
        return self.checks.stored[key]

    @staticmethod
    def _has(topic: TopicDocument, key: ReplicaKey) -> bool:
        return topic.topic_id == key.topic_id and key.partition < len(topic.partitions)

    def members(self, key: ReplicaKey) -> list[SimBroker]:
        """The brokers that have a replica."""
        return [self.brokers[broker] for broker in self.known(key).state.replicas]

    @property
    def runs_brokers(self) -> bool:
        """Not while the cluster sleeps: nobody starts one that is down."""
        return self.hibernation is None or self.hibernation.runs_brokers

    @property
    def runs_controllers(self) -> bool:
        """As `runs_brokers`."""
        return self.hibernation is None or self.hibernation.runs_controllers

    def may_elect_anyone(self, key: ReplicaKey) -> bool:
        """Unclean elections are allowed."""
        return self.unclean and (
            self.unclean_coordinators or key not in (OFFSETS_KEY, TRANSACTIONS_KEY)
        )

    def is_deleted(self, key: object) -> bool:
        """Its topic is gone from the metadata store, whoever has heard of it."""
        if self.rebirth is not None and isinstance(key, ReplicaKey):
            return self.rebirth.is_gone(key.topic_id)
        return self.deletion is not None and self.deletion.is_done and key == SHORT_LIVED_KEY

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    # ------------------------------------------------------------ what clients know

    def find_leader(
        self, key: ReplicaKey, chance: Random | None = None
    ) -> tuple[SimBroker, LeaderEpoch]:
        """Who leads, in the view of some broker; maybe out of date, maybe nobody knows."""
        chance = chance or self.scheduler.random
        views = [
            replica
            for broker in self.brokers.values()
            if broker.up and (replica := broker.replicas.get(key)) is not None
        ]
        if views and chance.random() < 0.95:
            marks = chance.choice(views).machine.marks
            leader = self.brokers.get(marks.leader)
            if leader is not None:
                return leader, marks.leader_epoch
        return chance.choice(list(self.brokers.values())), LeaderEpoch(0)

    def forgive(self, key: ReplicaKey) -> None:
        """After a loss beyond the promise: what clients saw of it does not count."""
        end = self.checks.canon(key).end
        if self.groups is not None:
            self.group_checks.forgive(key)
        self.transaction_checks.void = True
        for consumer in self.consumers:
            if consumer.key == key:
                consumer.rewind(end)
        for producer in self.producers:
            if producer.key == key:
                for outgoing in producer.sent:
                    if outgoing.batch.payload not in self.checks.canon(key).payloads:
                        outgoing.abandoned = outgoing.abandoned or outgoing.acked
                        outgoing.acked = False
                        outgoing.doubtful = True

    # ------------------------------------------------------------ the history

    def run(self) -> None:
        """Raises `RuleError` (or whatever a machine raised)."""
        log = logging.getLogger("penstock_broker")
        level = log.level
        log.setLevel(logging.CRITICAL)  # the trace says more
        try:
            with leases_of_a_history(), waits_of_a_history(), proofs_of_a_history():
                self._run()
        finally:
            self._end()
            log.setLevel(level)

    def _run(self) -> None:
        self.controllers[101].start()
        for broker in self.brokers.values():
            broker.start()
        self._settle("all brokers have registered", self._all_registered)
        topics = [self._new_topic(TOPIC, TOPIC_ID, len(self.keys))]
        if self.sinks:
            topics.append(self._new_topic(SINK_TOPIC, SINK_ID, len(self.sinks)))
        if self.groups is not None:
            topics.append(self._new_topic(OFFSETS_TOPIC, OFFSETS_KEY.topic_id, 1))
        if self.transactions is not None:
            topics.append(self._new_topic(TRANSACTIONS_TOPIC, TRANSACTIONS_KEY.topic_id, 1))
        if self.deletion is not None:
            topics.append(self._new_topic(SHORT_LIVED_TOPIC, SHORT_LIVED_KEY.topic_id, 1))
        self.names = {topic.topic_id: topic.name for topic in topics}
        request = cc.CreateTopics(self.next_request(), self.cluster_id, tuple(topics))
        self.controllers[101].request(request)
        self._settle("the topics are there", lambda: len(self.checks.stored) == len(self.all_keys))
        self.chaotic = True
        self._start_clients()
        nemesis = self._start_nemesis()
        self.scheduler.run_until(self.scheduler.now_ms + self.chaos_ms)
        self.chaotic = False
        self.healed_ms = self.scheduler.now_ms
        self.scheduler.note("world", "heal")
        if self.transactions is not None and self.seed % ABANDONED_EVERY == 1:
            self.transactions.abandon()
        nemesis.heal()
        self._converge(nemesis)
        self._check_end()

    def _start_nemesis(self) -> Nemesis:
        """And what else may go wrong in this history."""
        nemesis = Nemesis(self)
        self.blackouts = nemesis.blackouts
        if self.mover is not None:
            self.mover.start(nemesis)
        if self.damage is not None:
            self.damage.start(nemesis)
        if self.pauses is not None:
            self.pauses.start()
        if self.edits is not None:
            self.edits.start()
        if self.changes is not None:
            self.changes.start()
        if self.rebirth is not None:
            self.rebirth.start()
        if self.operator_pods is not None:
            self.operator_pods.start()
        if self.drainer is not None:
            self.drainer.start()
        if self.hibernation is not None:
            self.hibernation.start(nemesis)
        return nemesis

    def _end(self) -> None:
        """Nothing of any node is left."""
        brokers = [broker.shell for broker in self.brokers.values() if broker.shell is not None]
        controllers = [one.shell for one in self.controllers.values() if one.shell is not None]
        running: list[Shell | ControllerShell] = [*brokers, *controllers]
        for shell in running:
            shell.loop.kill()
        for client in self.client_nodes:
            client.kill()
        shells = [shell.loop for shell in (*running, *self.graveyard)]
        for loop in (*shells, *(client.loop for client in self.client_nodes)):
            loop.bury()

    def _settle(self, what: str, is_so: Callable[[], bool]) -> None:
        """Before the chaos: until it is so."""
        while not is_so():
            if self.scheduler.now_ms > SET_UP_MS:
                raise RuleError(f"set-up: not so: {what}")
            self.scheduler.run_until(self.scheduler.now_ms + 10)

    def _all_registered(self) -> bool:
        stored = self.meta.documents.get(CLUSTER_KEY)
        if stored is None:
            return False
        brokers = decode_cluster(stored.text, CLUSTER_KEY).brokers
        return len(brokers) == len(self.brokers)

    def _new_topic(self, name: str, topic_id: TopicId, partitions: int) -> cc.NewTopic:
        configs = self.layout.configs
        if name in INTERNAL_TOPICS:
            configs["cleanup.policy"] = "compact"
            if self.changes is not None:
                configs["min.compaction.lag.ms"] = str(_NEVER_MS)  # compared batch by batch
        if self.unclean_coordinators or (self.unclean and name not in INTERNAL_TOPICS):
            configs["unclean.leader.election.enable"] = "true"
        return cc.NewTopic(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            replication_factor=self.layout.factor,
            configs=configs,
        )

    def _start_clients(self) -> None:
        chance = self.scheduler.random
        number = 0
        for key in self.keys:
            syncs = Syncs(self.scheduler.generator(f"syncs {key.partition}"))
            for _ in range(chance.choice((1, 2, 3) if self.groups is None else (1,))):
                number += 1
                acks = chance.choice((Acks.ALL, Acks.ALL, Acks.ALL, Acks.LEADER, Acks.NONE))
                to_disk = syncs.ask_for_disk() if self.wants_blackout else self.blackout
                plan = Plan(
                    idempotent=chance.random() < 0.75 and acks is not Acks.NONE,
                    acks=acks,
                    sync=Sync.DISK if chance.random() < 0.3 or to_disk else Sync.OS,
                    retries=True,
                    pause_ms=chance.choice((5, 12, 30)),
                )
                if not plan.idempotent:
                    plan.retries = chance.random() < 0.5
                self.producers.append(Producer(self, number, key, plan))
            consumer = Consumer(self, f"r{key.partition}", key)
            consumer.start()
            self.consumers.append(consumer)
        if self.groups is not None:
            self.groups.start()
        if self.transactions is not None:
            self._start_transactions(self.transactions)
        if self.spark is not None:
            self.spark.start()
        if self.deletion is not None:
            self.deletion.start()

    def _start_transactions(self, transactions: SimTransactions) -> None:
        transactions.start()
        self.committed_readers = [self._committed_reader(key) for key in self.data_keys]
        for reader in self.committed_readers:
            reader.start()
        self.latest_readers = latest_readers(self)
        for late in self.latest_readers:
            late.start()
        if self.operator is not None:
            self.operator.start()

    def _committed_reader(self, key: ReplicaKey) -> CommittedReader:
        if key in self.sinks or isinstance(self.groups, Ring):
            return SinkReader(self, key)
        return (FoldingReader if isinstance(self.transactions, Bank) else CommittedReader)(
            self, key
        )

    def _converge(self, nemesis: Nemesis) -> None:
        """With everything healed, every replica is in sync and every request answered (I24)."""
        start = self.scheduler.now_ms
        problem, promptness = "", Promptness(self)
        while self.scheduler.now_ms < start + CONVERGE_MS:
            self.scheduler.run_until(self.scheduler.now_ms + 100)
            nemesis.heal()
            promptness.look()
            problem = unsettled(self)
            if not problem:
                return
        raise RuleError(f"I24: not converged {CONVERGE_MS} ms after healing: {problem}")

    def _check_end(self) -> None:
        """Reads everything: nothing acknowledged is missing, nothing refused is there."""
        self._check_produced()
        if self.groups is not None:
            self.groups.check_end()
        if self.transactions is not None:
            self._check_transactions(self.transactions)
        if self.mover is not None:
            self.mover.check_end()
        if self.drainer is not None:
            self.drainer.checks.check_end()
        if self.changes is not None:
            self.changes.check_end()
        for key in self.checked_keys:
            for broker in self._well(key):
                self.checks._check_holds(broker, key, f"I3: {broker.name} at the end")
                self._check_disk(broker, key)
        for key in self.keys if self.compacts else ():
            self.checks.disk.check_same(key, self._well(key))

    def _well(self, key: ReplicaKey) -> list[SimBroker]:
        """The brokers with a replica that has not stopped."""
        return [one for one in self.members(key) if one.replicas[key].machine.error is None]

    def _check_disk(self, broker: SimBroker, key: ReplicaKey) -> None:
        if self.compacts and key in self.keys:
            replica = broker.replicas[key]
            log, log_start = (
                broker.disk.batches(replica.slot),
                replica.machine.marks.log_start_offset,
            )
            self.checks.disk.check(key, log, log_start, f"{broker.name} at the end")

    def _check_produced(self) -> None:
        for producer in self.producers:
            canon = self.checks.canon(producer.key)
            for outgoing in producer.sent:
                payload, there = outgoing.batch.payload, outgoing.batch.payload in canon.payloads
                acked = outgoing.acked and producer.plan.acks is Acks.ALL
                if acked and not there and not self.checks.unclean.was_elected(producer.key):
                    raise RuleError(f"I7: {payload!r} was acknowledged and is gone")
                if outgoing.abandoned and not outgoing.doubtful and there:
                    raise RuleError(f"I8: {payload!r} failed for certain and is there")

    def _check_transactions(self, transactions: SimTransactions) -> None:
        transactions.check_end(self.committed_readers)
        if self.transaction_checks.void:
            return
        for reader in self.latest_readers:
            reader.catch_up()
            reader.check()
        if self.operator is not None:
            self.operator.checks.check_end()


def simulate(seed: int, *, traced: bool = False, **options: Unpack[Options]) -> History:
    """Runs one seed; a broken invariant, or anything a machine raises, becomes `violation`."""
    world = World(seed, traced=traced, **options)
    violation = None
    try:
        world.run()
    except RuleError as broken:
        violation = str(broken)
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is a finding
        violation = f"{type(error).__name__}: {error}"
        if traced:
            violation += f"\n{traceback.format_exc()}"
    healed_ms = world.scheduler.now_ms - world.healed_ms
    acked = sum(outgoing.acked for producer in world.producers for outgoing in producer.sent)
    return History(
        seed,
        world.scheduler.fingerprint,
        world.scheduler.steps,
        world.checks.commits,
        world.checks.elections,
        world.checks.truncations,
        acked,
        healed_ms,
        world.group_checks.commits,
        world.group_checks.rebalances,
        world.checks.journals,
        world.transaction_checks.decisions,
        0 if world.spark is None else len(world.spark.checks.batches),
        world.group_checks.piped,
        0 if world.operator is None else len(world.operator.checks.orders),
        0 if world.operator is None else len(world.operator.checks.hit),
        sum(reader.begun for reader in world.latest_readers),
        world.checks.moving.switches,
        world.checks.moving.cancelled,
        world.checks.moving.drops,
        0 if world.damage is None else world.damage.flips,
        0 if world.damage is None else world.damage.mended,
        0 if world.damage is None else world.damage.vanished,
        0 if world.hibernation is None else world.hibernation.checks.sleeps,
        0 if world.hibernation is None else world.hibernation.checks.wakes,
        0 if world.hibernation is None else world.hibernation.checks.taken_back,
        0 if world.drainer is None else world.drainer.checks.begun,
        0 if world.drainer is None else world.drainer.checks.ended,
        0 if world.drainer is None else world.drainer.checks.taken_back,
        0 if world.pauses is None else world.pauses.count,
        0 if world.edits is None else world.edits.count,
        0 if world.edits is None else world.edits.handed_over,
        0 if world.changes is None else world.changes.count,
        0 if world.rebirth is None else world.rebirth.count,
        0 if world.rebirth is None else world.rebirth.grown,
        0 if world.changes is None else world.changes.checks.retained,
        0 if world.changes is None else world.changes.checks.rewritten,
        violation,
        tuple(world.scheduler.trace),
    )
