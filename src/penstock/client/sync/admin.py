"""The sync admin: its async namesake, driven from the loop thread.

Decides nothing; arguments, errors and meanings are documented at `AsyncAdmin`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self, Unpack

from penstock.client.admin.access_calls import AccessDecision
from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.config_calls import BrokerConfigEntry
from penstock.client.admin.damage_model import ScrubDescription
from penstock.client.admin.move_model import (
    BrokerChange,
    FormatChange,
    MoveOutcome,
    MovesDescription,
    ReplicaMove,
)
from penstock.client.admin.transaction_model import (
    BlockingTransaction,
    LedgerListing,
    PartitionTransactions,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from penstock.client.config import ClientConfig, ClientOptions
from penstock.client.documented import facade
from penstock.client.group.model import GroupDescription, GroupListing, GroupState, OffsetChange
from penstock.client.loop_thread import shared_loop
from penstock.client.model import (
    BrokerQuiescence,
    ClusterDescription,
    ConfigEntry,
    ListedOffset,
    LogDescription,
    OffsetSpan,
    OffsetSpec,
    OrphanedLog,
    OrphanOutcome,
    PlaintextCallers,
    TopicDescription,
)
from penstock.core.authorization import Operation, Resource, Rule
from penstock.core.lag import PartitionLag
from penstock.core.offset_reset import Move, ResetTo
from penstock.core.quotas import QuotaRule
from penstock.core.types import MoveReason, TopicPartition


@facade(AsyncAdmin, ClientConfig)
class Admin:
    """Creates, changes and describes topics, groups and transactions."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._loop = shared_loop()
        self._core = AsyncAdmin(bootstrap, config, **options)
        self._closed = False
        self._loop.adopt(self)

    @property
    def config(self) -> ClientConfig:
        """All settings, checked."""
        return self._core.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Creates a topic and waits until every partition has a leader. 0 = the default."""
        return self._loop.run(
            self._core.create_topic(
                topic,
                partitions,
                replication_factor,
                configs,
                assignment=assignment,
                validate_only=validate_only,
            )
        )

    def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        """Grows a topic to `partitions` in total."""
        self._loop.run(self._core.create_partitions(topic, partitions, validate_only=validate_only))

    def delete_topic(self, topic: str, *, topic_id: str = "", validate_only: bool = False) -> None:
        """Deletes a topic and its data."""
        self._loop.run(
            self._core.delete_topic(topic, topic_id=topic_id, validate_only=validate_only)
        )

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted."""
        return self._loop.run(self._core.list_topics(include_internal=include_internal))

    def describe_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Topics by name; None = all."""
        return self._loop.run(self._core.describe_topics(topics))

    def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Sets some configs of a topic and resets others to their defaults."""
        self._loop.run(
            self._core.alter_configs(topic, changes, unset=unset, validate_only=validate_only)
        )

    def describe_configs(self, topic: str) -> list[ConfigEntry]:
        """Every config of a topic, set or default, with its documentation."""
        return self._loop.run(self._core.describe_configs(topic))

    def alter_access(
        self,
        resource: Resource,
        rules: Sequence[Rule],
        *,
        validate_only: bool = False,
        expected: Sequence[Rule] | None = None,
    ) -> None:
        """See `AsyncAdmin.alter_access`."""
        self._loop.run(
            self._core.alter_access(resource, rules, validate_only=validate_only, expected=expected)
        )

    def describe_broker_configs(
        self, broker_ids: Iterable[int] | None = None
    ) -> dict[int, list[BrokerConfigEntry]]:
        """Every setting of brokers. See `AsyncAdmin.describe_broker_configs`."""
        return self._loop.run(self._core.describe_broker_configs(broker_ids))

    def describe_access(
        self, resources: Iterable[Resource] | None = None
    ) -> dict[Resource, tuple[Rule, ...]]:
        """Rules of these resources, as they are stored; None: of all that have some."""
        return self._loop.run(self._core.describe_access(resources))

    def alter_quotas(
        self,
        rules: Sequence[QuotaRule],
        *,
        validate_only: bool = False,
        expected: Sequence[QuotaRule] | None = None,
    ) -> None:
        """See `AsyncAdmin.alter_quotas`."""
        self._loop.run(
            self._core.alter_quotas(rules, validate_only=validate_only, expected=expected)
        )

    def describe_quotas(self) -> tuple[QuotaRule, ...]:
        """All quotas, as they are stored."""
        return self._loop.run(self._core.describe_quotas())

    def check_access(
        self, operation: Operation, resource: Resource, *, principal: str = ""
    ) -> AccessDecision:
        """Whether a principal may do this, and by which rule; "": you."""
        return self._loop.run(self._core.check_access(operation, resource, principal=principal))

    def cluster_id(self) -> str:
        """The id of the cluster; unlike `describe_cluster`, it needs no permission."""
        return self._loop.run(self._core.cluster_id())

    def describe_cluster(self) -> ClusterDescription:
        """Brokers, and how many topics and partitions are in which state."""
        return self._loop.run(self._core.describe_cluster())

    def list_offsets(
        self, offsets: Mapping[TopicPartition, OffsetSpec | int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Where each partition begins (EARLIEST), ends (LATEST) or reaches a time (ms)."""
        return self._loop.run(self._core.list_offsets(offsets))

    def delete_records(
        self, before_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Deletes records before an offset, -1 = all; returns the log starts reached."""
        return self._loop.run(self._core.delete_records(before_offsets))

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        away_from_broker: int | None = None,
    ) -> int:
        """Moves leaderships back to preferred leaders; returns how many moved."""
        return self._loop.run(
            self._core.elect_leaders(partitions, away_from_broker=away_from_broker)
        )

    def unregister_broker(self, broker_id: int, *, directory_id: str = "") -> None:
        """See AsyncAdmin.unregister_broker."""
        self._loop.run(self._core.unregister_broker(broker_id, directory_id=directory_id))

    def alter_replicas(
        self,
        moves: Iterable[ReplicaMove],
        *,
        reason: MoveReason = MoveReason.MANUAL,
        change_factor: bool = False,
        validate_only: bool = False,
    ) -> list[MoveOutcome]:
        """Moves replicas, or cancels moves; one outcome per move. See AsyncAdmin.alter_replicas."""
        return self._loop.run(
            self._core.alter_replicas(
                moves, reason=reason, change_factor=change_factor, validate_only=validate_only
            )
        )

    def describe_moves(self, topics: Iterable[str] | None = None) -> MovesDescription:
        """Moves that have not ended, and brokers as places for replicas."""
        return self._loop.run(self._core.describe_moves(topics))

    def alter_brokers(
        self, changes: Iterable[BrokerChange], *, validate_only: bool = False
    ) -> None:
        """Cordons brokers, or lifts cordons: all changes, or none."""
        self._loop.run(self._core.alter_brokers(changes, validate_only=validate_only))

    def alter_throttle(
        self, copy_rate: int | None, *, by: str = "", validate_only: bool = False
    ) -> None:
        """How fast partitions move. See AsyncAdmin.alter_throttle."""
        self._loop.run(self._core.alter_throttle(copy_rate, by=by, validate_only=validate_only))

    def alter_cluster(self, *, hibernating: bool, validate_only: bool = False) -> None:
        """Puts the cluster to sleep, or wakes it. See AsyncAdmin.alter_cluster."""
        self._loop.run(
            self._core.alter_cluster(hibernating=hibernating, validate_only=validate_only)
        )

    def describe_quiescence(self) -> list[BrokerQuiescence]:
        """Whether brokers could stop now and lack nothing. See AsyncAdmin.describe_quiescence."""
        return self._loop.run(self._core.describe_quiescence())

    def finalize(self, to: int = 0, *, validate_only: bool = False) -> FormatChange:
        """Chooses the format of stored metadata; 0 = the newest. See AsyncAdmin.finalize."""
        return self._loop.run(self._core.finalize(to, validate_only=validate_only))

    def plaintext_callers(self) -> list[PlaintextCallers]:
        """Who calls each live broker in plaintext, of those that have TLS beside it."""
        return self._loop.run(self._core.plaintext_callers())

    def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]:
        """What is stored on each live broker."""
        return self._loop.run(self._core.describe_logs(topics, broker_ids=broker_ids))

    def start_scrub(self, topic: str | None = None, partition: int | None = None) -> int:
        """Has brokers read their replicas now, to find damage. See AsyncAdmin.start_scrub."""
        return self._loop.run(self._core.start_scrub(topic, partition))

    def describe_scrub(self, broker_ids: Iterable[int] | None = None) -> list[ScrubDescription]:
        """How far brokers have read their logs; None = every live broker."""
        return self._loop.run(self._core.describe_scrub(broker_ids))

    def accept_loss(
        self,
        where: TopicPartition,
        offsets: OffsetSpan,
        *,
        without: Iterable[int] = (),
        validate_only: bool = False,
    ) -> tuple[OffsetSpan, ...]:
        """Gives up damaged batches that no replica has any more. See AsyncAdmin.accept_loss."""
        return self._loop.run(
            self._core.accept_loss(where, offsets, without=without, validate_only=validate_only)
        )

    def drop_orphans(
        self, broker_id: int, logs: Iterable[OrphanedLog], *, validate_only: bool = False
    ) -> list[OrphanOutcome]:
        """Deletes logs of a broker that belong to no topic. See AsyncAdmin.drop_orphans."""
        return self._loop.run(self._core.drop_orphans(broker_id, logs, validate_only=validate_only))

    # -- groups ------------------------------------------------------------------------------

    def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups, or those in one of these states, by name."""
        return self._loop.run(self._core.list_groups(states))

    def describe_group(self, group_id: str, *, include_offsets: bool = True) -> GroupDescription:
        """Members, partitions and committed offsets."""
        return self._loop.run(self._core.describe_group(group_id, include_offsets=include_offsets))

    def group_lag(self, group: str | GroupDescription) -> dict[TopicPartition, PartitionLag]:
        """How far behind the group is in every partition it reads or has read."""
        return self._loop.run(self._core.group_lag(group))

    def plan_reset(
        self, to: ResetTo, committed: Mapping[TopicPartition, int], *, clamp: bool = False
    ) -> dict[TopicPartition, Move]:
        """The offsets to which `to` moves these partitions; committed -1 = none."""
        return self._loop.run(self._core.plan_reset(to, committed, clamp=clamp))

    def reset_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        reset_id: str = "",
        reason: str = "",
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetChange]:
        """Sets committed offsets of a group without members: all or none."""
        return self._loop.run(
            self._core.reset_offsets(
                group_id, offsets, reset_id=reset_id, reason=reason, dry_run=dry_run
            )
        )

    def delete_group(self, group_id: str) -> None:
        """Deletes a group without members, and its offsets."""
        self._loop.run(self._core.delete_group(group_id))

    # -- transactions ------------------------------------------------------------------------

    def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        *,
        older_than_ms: int = 0,
        producer_id: int = 0,
    ) -> list[TransactionListing]:
        """Transactional ids of the whole cluster, by id and branch."""
        return self._loop.run(
            self._core.list_transactions(
                states, older_than_ms=older_than_ms, producer_id=producer_id
            )
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Owner, participants, and how the last ones ended."""
        return self._loop.run(self._core.describe_transaction(transactional_id))

    def abort_transaction(
        self, transactional_id: str, *, producer_epoch: int = -1, reason: str = ""
    ) -> int:
        """Aborts its open transactions; returns how many there were."""
        return self._loop.run(
            self._core.abort_transaction(
                transactional_id, producer_epoch=producer_epoch, reason=reason
            )
        )

    def partition_transactions(self, where: TopicPartition) -> PartitionTransactions:
        """The open transactions in a partition, as its leader has them."""
        return self._loop.run(self._core.partition_transactions(where))

    def blocking_transactions(self, *, older_than_ms: int = 0) -> list[BlockingTransaction]:
        """Transactions that block read_committed readers, by partition."""
        return self._loop.run(self._core.blocking_transactions(older_than_ms=older_than_ms))

    def list_ledgers(self) -> list[LedgerListing]:
        """The last batch that each application id has committed, by id."""
        return self._loop.run(self._core.list_ledgers())

    def forget_ledger(self, application_id: str) -> bool:
        """Deletes a ledger: the next batch counts as the first. False = there was none."""
        return self._loop.run(self._core.forget_ledger(application_id))

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the connections; can be called repeatedly."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._core.close())
            self._loop.release(self)

    def close_at_exit(self) -> None:
        """Internal: the process ends without a call of `close`."""
        self.close()
