"""What the brokers report through the public admin API: live brokers, leaders, ISRs.

One admin client per Cluster, connected to its brokers by the names of their pods. An answer says
whether its broker has a session with a controller; if not, the answer may be stale, and the plan
decides nothing based on it. Every call has a timeout of a few seconds: a Cluster whose brokers hang
must not delay its volumes and certificates.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.client import AsyncAdmin, ClientConfig
from penstock.client.model import ClusterDescription, TopicDescription
from penstock.core.manifest.objects import MIN_INSYNC
from penstock.core.manifest.topics import AddPartitions, AlterConfig, CreateTopic, Step
from penstock.errors import PenstockError
from penstock_operator.credentials import Credentials, Files
from penstock_operator.fence import Fence
from penstock_operator.hibernation_model import Record, Rest
from penstock_operator.model import (
    BrokerFacts,
    BrokerState,
    PartitionState,
    PlaintextFacts,
    TopicState,
)
from penstock_operator.move_model import MoveFacts
from penstock_operator.objects import DesiredCluster
from penstock_operator.proofs import Proofs, read_moves
from penstock_operator.resting import Quiet, rest_of

_CONFIG: Final = ClientConfig(connect_timeout_ms=3_000, request_timeout_ms=8_000)


class Brokers:
    """Asks the brokers of one Cluster. `close` it when the Cluster no longer exists."""

    def __init__(self, credentials: Credentials | None = None, fence: Fence | None = None) -> None:
        """`credentials` None: for Clusters that ask nobody who they are. `fence` None: no change
        names an operator."""
        self._credentials = credentials
        self._fence = fence
        self._admin: AsyncAdmin | None = None
        self._connected: tuple[str, Files | None] = ("", None)
        self._proofs = Proofs()
        self._quiet = Quiet()

    def use_trust(self, trust: str) -> None:
        """The CAs that are published now, PEM; empty: none are."""
        if self._credentials is not None:
            self._credentials.use_trust(trust)

    async def ask(self, desired: DesiredCluster) -> tuple[BrokerFacts | None, str]:
        """Their answer, or None and why there is none."""
        try:
            admin = await self.admin(desired)
            cluster = await admin.describe_cluster()
            topics = await admin.describe_topics() if cluster.topics else {}
        except PenstockError as error:
            return None, error.message
        min_isr = int(desired.spec.effective_config()[MIN_INSYNC])
        return facts_of(cluster, topics.values(), min_isr), ""

    async def moves(
        self, desired: DesiredCluster, leaving: Collection[int]
    ) -> tuple[MoveFacts | None, str]:
        """What moves, and what is left on brokers that are to go; or None, and why it is not known.

        `leaving`: those brokers. A live broker that does not say what it stores is a problem.
        """
        try:
            return await read_moves(await self.admin(desired), leaving, self._proofs), ""
        except PenstockError as error:
            return None, error.message

    async def replicas(
        self, desired: DesiredCluster
    ) -> tuple[BrokerFacts | None, MoveFacts | None]:
        """Where replicas are, in sync and damaged, at this moment; None: nobody says."""
        facts, _ = await self.ask(desired)
        if facts is None:
            return None, None
        try:
            moving = await (await self.admin(desired)).describe_moves()
        except PenstockError:
            return facts, None
        return facts, MoveFacts(moving)

    async def rest(
        self, desired: DesiredCluster, facts: BrokerFacts, record: Record, now: str
    ) -> Rest:
        """Whether they are at rest, if the cluster is being put to sleep."""
        if not (desired.spec.hibernate and facts.hibernating):
            self._quiet.forget()
            return rest_of(record, now)
        try:
            told = await (await self.admin(desired)).describe_quiescence()
        except PenstockError as error:
            self._quiet.forget()
            return rest_of(record, now, problem=error.message)
        return rest_of(record, now, proven=self._quiet.proven(told, facts.brokers), told=told)

    async def plaintext(self, desired: DesiredCluster) -> dict[int, PlaintextFacts] | None:
        """Who calls each broker in plaintext; None: not all of them say."""
        try:
            told = await (await self.admin(desired)).plaintext_callers()
        except PenstockError:
            return None
        return {
            one.broker_id: PlaintextFacts(
                one.watched_ms, {caller.host: caller.idle_ms for caller in one.callers}
            )
            for one in told
        }

    async def admin(self, desired: DesiredCluster) -> AsyncAdmin:
        """The client; a new one when the number of brokers has changed."""
        hosts = (desired.names.broker_host(i) for i in range(desired.spec.brokers))
        port, _ = desired.calls
        bootstrap = ",".join(f"{host}:{port}" for host in hosts)
        shown = None if self._credentials is None else await self._credentials.files(desired)
        if self._admin is None or self._connected != (bootstrap, shown):
            await self.close()
            self._admin, self._connected = AsyncAdmin(bootstrap, _config(shown)), (bootstrap, shown)
            if self._fence is not None:
                self._fence.guard(self._admin)
        return self._admin

    async def move_leaders(self, desired: DesiredCluster, broker_id: int) -> None:
        """Raises PenstockError."""
        await (await self.admin(desired)).elect_leaders(away_from_broker=broker_id)

    async def take(self, desired: DesiredCluster, step: Step) -> None:
        """Performs one step of a topic's plan, other than moves (`factors`). Raises
        PenstockError."""
        admin = await self.admin(desired)
        match step:
            case CreateTopic():
                await admin.create_topic(step.topic, step.partitions, step.replicas, step.config)
            case AddPartitions():
                await admin.create_partitions(step.topic, step.partitions)
            case AlterConfig():
                await admin.alter_configs(step.topic, step.changes, unset=step.removals)

    async def close(self) -> None:
        if self._admin is not None:
            with suppress(PenstockError):
                await self._admin.close()
            self._admin = None


def _config(shown: Files | None) -> ClientConfig:
    if shown is None:
        return _CONFIG
    return replace(_CONFIG, ca_file=shown.ca, token_file=shown.token)


def facts_of(
    cluster: ClusterDescription, topics: Iterable[TopicDescription], default_min_isr: int
) -> BrokerFacts:
    """Turns descriptions into the plan's facts."""
    partitions = []
    states = {}
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    for topic in topics:
        min_isr = int(topic.configs.get(MIN_INSYNC, default_min_isr))
        for each in topic.partitions:
            leaders[each.leader] += 1
            replicas.update(each.replicas)
            partitions.append(
                PartitionState(
                    topic.topic, each.partition, each.leader, each.replicas, each.isr, min_isr
                )
            )
        states[topic.topic] = TopicState(
            topic.topic,
            topic.topic_id,
            tuple(len(each.replicas) for each in topic.partitions),
            topic.configs,
            topic.inherited,
        )
    brokers = {
        each.broker_id: BrokerState(
            each.broker_id,
            each.host,
            each.alive,
            each.rack,
            leaders[each.broker_id],
            replicas[each.broker_id],
        )
        for each in cluster.brokers
    }
    return BrokerFacts(
        cluster.cluster_id,
        cluster.controller_reachable,
        brokers,
        tuple(partitions),
        states,
        cluster.hibernating,
    )
