"""The async admin: the methods that users call and their documentation; the `…_calls` modules
beside it do the work.

    topics, configs, cluster ─▶ any broker, which passes changes on to the controller
    a partition's data ───────▶ its leader
    groups, transactions ─────▶ their coordinators; lists: every broker

Every operation is retried, also at other brokers, until it succeeds, is refused, or
`request_timeout_ms` has passed. An admin client keeps asking the same broker, and waits until that
broker has learned of a change, so that it reads its own writes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Self, Unpack

from penstock.client.admin import (
    access_calls,
    cluster_calls,
    config_calls,
    damage_calls,
    group_calls,
    move_calls,
    quota_calls,
    topic_calls,
    transaction_calls,
)
from penstock.client.admin.access_calls import AccessDecision
from penstock.client.admin.asking import asking_of
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
from penstock.client.documented import with_settings
from penstock.client.group.model import GroupDescription, GroupListing, GroupState, OffsetChange
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
from penstock.core.control.documents import OperatorLease
from penstock.core.lag import PartitionLag
from penstock.core.offset_reset import Move, ResetTo
from penstock.core.quotas import QuotaRule
from penstock.core.types import MoveReason, TopicPartition
from penstock.errors import MisuseError


@with_settings(ClientConfig)
class AsyncAdmin:
    """Creates, changes and describes topics, groups and transactions; describes the cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Connects on first use. Raises MisuseError for invalid settings."""
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or ClientConfig(**options)
        self._asking = asking_of(bootstrap, self.config)
        self._cluster = self._asking.cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Creates a topic and waits until it is visible and every partition has a leader.

        Args:
            topic: 1 to 249 characters out of a-z, A-Z, 0-9, '.', '_', '-'.
            partitions: 0 = the cluster's default; also with an `assignment`.
            replication_factor: Likewise.
            configs: Kafka's names, e.g. {"retention.ms": "3600000"}.
            assignment: Broker ids per partition, the preferred leader first.
            validate_only: Check everything, change nothing; the description is then empty.

        Raises ClusterError: TOPIC_ALREADY_EXISTS, INVALID_…, or LEADER_NOT_AVAILABLE if the
        topic exists but has no leaders within `request_timeout_ms`.
        """
        return await topic_calls.create_topic(
            self._asking,
            topic,
            partitions,
            replication_factor,
            configs,
            assignment=assignment,
            validate_only=validate_only,
        )

    async def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        """Grows a topic to `partitions` in total, and waits until the new ones have leaders.

        This moves keys to other partitions. Raises ClusterError(INVALID_PARTITIONS) for fewer.
        """
        await topic_calls.create_partitions(
            self._asking, topic, partitions, validate_only=validate_only
        )

    async def delete_topic(
        self, topic: str, *, topic_id: str = "", validate_only: bool = False
    ) -> None:
        """Deletes a topic and its data. `topic_id` guards against a topic created again since.

        Raises ClusterError UNKNOWN_TOPIC, TOPIC_ID_MISMATCH, DELETION_PROTECTED: what lifts the
        protection is in its message.
        """
        await topic_calls.delete_topic(
            self._asking, topic, topic_id=topic_id, validate_only=validate_only
        )

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted."""
        return await topic_calls.list_topics(self._asking, include_internal=include_internal)

    async def describe_topics(
        self, topics: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        """Topics by name; None = all. Raises ClusterError(UNKNOWN_TOPIC) for a missing one."""
        return await topic_calls.describe_topics(self._asking, topics)

    async def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Sets some configs of a topic and resets others to their defaults (`unset`).

        Raises ClusterError INVALID_CONFIG, UNKNOWN_TOPIC; then nothing was changed.
        """
        await topic_calls.alter_configs(
            self._asking, topic, changes, unset=unset, validate_only=validate_only
        )

    async def describe_configs(self, topic: str) -> list[ConfigEntry]:
        """Every config of a topic, set or default, with its documentation."""
        return await topic_calls.describe_configs(self._asking, topic)

    async def describe_broker_configs(
        self, broker_ids: Iterable[int] | None = None
    ) -> dict[int, list[BrokerConfigEntry]]:
        """Every setting of brokers, with the value that counts now; None = every live broker.

        Raises UnreachableError if one does not answer, ClusterError(INVALID_REQUEST) if one is of a
        release that does not say.
        """
        return await config_calls.describe_broker_configs(self._asking, broker_ids)

    # -- who may do what ----------------------------------------------------------------

    async def alter_access(
        self,
        resource: Resource,
        rules: Sequence[Rule],
        *,
        validate_only: bool = False,
        expected: Sequence[Rule] | None = None,
    ) -> None:
        """Replaces all rules of a topic, a group, or the cluster; none: its rules go.

        `expected`: the rules as `describe_access` gave them. If they are others by now,
        ClusterError STALE_RULES: nothing has changed; read them again. None: whatever they are.

        Other brokers learn of it within a second or two. A topic's rules are deleted with it, those
        of a group stay until they are replaced. Raises ClusterError INVALID_REQUEST, UNKNOWN_TOPIC.
        """
        await access_calls.alter_access(
            self._asking, resource, rules, validate_only=validate_only, expected=expected
        )

    async def describe_access(
        self, resources: Iterable[Resource] | None = None
    ) -> dict[Resource, tuple[Rule, ...]]:
        """Rules of these resources, as they are stored; None: of all that have some."""
        return await access_calls.describe_access(self._asking, resources)

    async def alter_quotas(
        self,
        rules: Sequence[QuotaRule],
        *,
        validate_only: bool = False,
        expected: Sequence[QuotaRule] | None = None,
    ) -> None:
        """Replaces all quotas. `expected`: as of `alter_access`.

        Raises ClusterError INVALID_REQUEST, STALE_RULES.
        """
        await quota_calls.alter_quotas(self._asking, rules, expected, validate_only=validate_only)

    async def describe_quotas(self) -> tuple[QuotaRule, ...]:
        """All quotas, as they are stored."""
        return await quota_calls.describe_quotas(self._asking)

    async def check_access(
        self, operation: Operation, resource: Resource, *, principal: str = ""
    ) -> AccessDecision:
        """Whether a principal may do this, and by which rule; "": you.

        Of somebody else, only rules for the principal itself are known, not those for groups.
        """
        return await access_calls.check_access(self._asking, operation, resource, principal)

    # -- brokers and their data ---------------------------------------------------------

    async def cluster_id(self) -> str:
        """The id of the cluster; unlike `describe_cluster`, it needs no permission."""
        return await self._asking.cluster_id()

    async def describe_cluster(self) -> ClusterDescription:
        """Brokers, and how many topics and partitions are in which state."""
        return await cluster_calls.describe_cluster(self._asking)

    async def list_offsets(
        self, offsets: Mapping[TopicPartition, OffsetSpec | int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Where each partition begins (EARLIEST), ends (LATEST) or reaches a time (ms)."""
        return await cluster_calls.list_offsets(self._asking, offsets)

    async def delete_records(
        self, before_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Deletes records before an offset; -1 = all committed ones.

        Returns the new log start offsets. Raises OffsetOutOfRangeError past the high watermark.
        """
        return await cluster_calls.delete_records(self._asking, before_offsets)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        away_from_broker: int | None = None,
    ) -> int:
        """Moves the leadership of partitions (None = all) back to their preferred leaders.

        Args:
            partitions: Which; ignored with `away_from_broker`.
            away_from_broker: Move all leaderships off this broker instead.

        Returns how many partitions moved.
        """
        return await cluster_calls.elect_leaders(
            self._asking, partitions, away_from_broker=away_from_broker
        )

    async def unregister_broker(self, broker_id: int, *, directory_id: str = "") -> None:
        """Unregisters a broker that will never come back; does nothing if it is not registered.

        Raises ClusterError(INVALID_REQUEST) while it is alive, holds or shall get a replica, or if
        it has another data directory than `directory_id` ("": any).
        """
        await cluster_calls.unregister_broker(self._asking, broker_id, directory_id)

    async def alter_replicas(
        self,
        moves: Iterable[ReplicaMove],
        *,
        reason: MoveReason = MoveReason.MANUAL,
        change_factor: bool = False,
        validate_only: bool = False,
    ) -> list[MoveOutcome]:
        """Moves replicas, or cancels moves: stored at once, carried out by the cluster itself.

        Args:
            moves: At most 1,000, each of another partition. Each succeeds or fails on its own.
            reason: The most urgent begin first.
            change_factor: A target may have more or fewer replicas than the partition.
            validate_only: Check only.

        Returns one outcome per move, in order; its error is NO_MOVE if there was nothing to cancel,
        QUEUE_FULL if the topic has too many open moves, STALE_PARTITION_VERSION if the replicas are
        not the expected ones. Raises ClusterError FORMAT_TOO_OLD before the cluster is finalized,
        MOVES_PAUSED while the metadata store is unavailable.
        """
        return await move_calls.alter_replicas(
            self._asking, moves, reason, change_factor=change_factor, validate_only=validate_only
        )

    async def describe_moves(self, topics: Iterable[str] | None = None) -> MovesDescription:
        """Moves that have not ended (None: of all topics), and brokers as places for replicas. What
        `describe_topics` of this client tells from then on is not older."""
        return await move_calls.describe_moves(self._asking, topics)

    async def alter_brokers(
        self, changes: Iterable[BrokerChange], *, validate_only: bool = False
    ) -> None:
        """Cordons brokers, or lifts cordons: all changes, or none.

        Raises ClusterError INVALID_REQUEST, and FORMAT_TOO_OLD before the cluster is finalized.
        """
        await move_calls.alter_brokers(self._asking, changes, validate_only=validate_only)

    async def alter_throttle(
        self, copy_rate: int | None, *, by: str = "", validate_only: bool = False
    ) -> None:
        """How fast partitions move, from now on: bytes per second that each broker copies, in and
        out; 0: no limit; None: each broker's `replica.copy.bytes.per.second`.

        `by`: what manages the rate, for people. Others are refused from then on, until None is set
        by it.

        Raises ClusterError INVALID_REQUEST, and FORMAT_TOO_OLD before the cluster is finalized.
        """
        await move_calls.alter_throttle(self._asking, copy_rate, by, validate_only=validate_only)

    async def alter_cluster(self, *, hibernating: bool, validate_only: bool = False) -> None:
        """Puts the cluster to sleep before all its brokers stop, or wakes it.

        Asleep, it refuses new records, producers and group members, and no replica that stops
        loses its place in an ISR. Waking elects leaders among the brokers that are there, so wait
        for them. Raises ClusterError FORMAT_TOO_OLD before the cluster is finalized,
        CONTROLLER_UNAVAILABLE if it cannot be stored now.
        """
        await cluster_calls.alter_cluster(
            self._asking, hibernating=hibernating, validate_only=validate_only
        )

    async def describe_quiescence(self) -> list[BrokerQuiescence]:
        """Whether each live broker of a cluster that hibernates could stop now and lack nothing.

        Twice in a row with the same log ends proves it for the cluster. Raises UnreachableError if
        one does not answer.
        """
        return await cluster_calls.describe_quiescence(self._asking)

    async def finalize(self, to: int = 0, *, validate_only: bool = False) -> FormatChange:
        """Chooses the format of stored metadata; 0 = the newest that the controller writes.

        From then on releases that do not read it are refused. Raises ClusterError FORMAT_TOO_OLD
        unless every registered broker is alive and reads it, INVALID_REQUEST if it does not exist
        or cannot hold what the cluster uses.
        """
        return await move_calls.finalize(self._asking, to, validate_only=validate_only)

    async def acquire_operator_epoch(self, lease: OperatorLease) -> int:
        """For operators: an epoch, for a Lease that the caller has just renewed.

        From then on changes by former operators are refused. 0: the cluster's format has no epochs.
        Raises ClusterError STALE_OPERATOR_EPOCH if a newer Lease, or holder of it, has got one.
        """
        return await move_calls.acquire_operator_epoch(self._asking, lease)

    def name_operator(
        self, epoch: Callable[[], Awaitable[int]], refused: Callable[[str], None]
    ) -> None:
        """For operators: changes of metadata name `epoch`, asked for before each; 0: none.

        `refused` is called with the reason when another one counts by now; the change raises
        ClusterError(STALE_OPERATOR_EPOCH).
        """
        self._asking.name_operator(epoch, refused)

    async def plaintext_callers(self) -> list[PlaintextCallers]:
        """Who calls each live broker in plaintext, of those that have TLS beside it.

        Raises UnreachableError if one does not answer.
        """
        return await cluster_calls.plaintext_callers(self._asking)

    async def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]:
        """What is stored on each broker; None = every live broker.

        Raises UnreachableError if one of them does not answer.
        """
        return await cluster_calls.describe_logs(self._asking, topics, broker_ids=broker_ids)

    async def start_scrub(self, topic: str | None = None, partition: int | None = None) -> int:
        """Has each live broker read its replicas now, to find damage; None = all of them.

        Returns how many replicas that are. Safe to repeat. Raises UnreachableError if a broker does
        not answer, ClusterError(INVALID_REQUEST) if one is of a release without a scrub.
        """
        return await damage_calls.start_scrub(self._asking, topic, partition)

    async def describe_scrub(
        self, broker_ids: Iterable[int] | None = None
    ) -> list[ScrubDescription]:
        """How far they have read their logs; None = every live broker. Raises as `start_scrub`."""
        return await damage_calls.describe_scrub(self._asking, broker_ids)

    async def accept_loss(
        self,
        where: TopicPartition,
        offsets: OffsetSpan,
        *,
        without: Iterable[int] = (),
        validate_only: bool = False,
    ) -> tuple[OffsetSpan, ...]:
        """Gives up the damaged batches in these offsets, which no replica has any more.

        Readers and new copies then pass them. Returns what was given up: () if nothing is lost
        there, maybe because it was given up before. `without`: brokers that need not say that they
        lack the batches, because they never come back. Raises ClusterError if a broker has one, or
        may have it: nothing was given up.
        """
        return await damage_calls.accept_loss(
            self._asking, where, offsets, without, validate_only=validate_only
        )

    async def drop_orphans(
        self, broker_id: int, logs: Iterable[OrphanedLog], *, validate_only: bool = False
    ) -> list[OrphanOutcome]:
        """Deletes logs of a broker that belong to no topic, `orphans` of `describe_logs`, for ever.

        Those of a topic that is to be restored are among them. Returns one outcome per log, in
        order; one with an error is kept: it is no orphan (INVALID_REQUEST), or the disk failed.
        Raises ClusterError: CONTROLLER_UNAVAILABLE if the broker has not heard which topics there
        are, INVALID_REQUEST if its release cannot do it. UnreachableError: some may be deleted.
        """
        return await cluster_calls.drop_orphans(
            self._asking, broker_id, logs, validate_only=validate_only
        )

    # -- groups ------------------------------------------------------------------------------

    async def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups of the cluster, or those in one of these states, by name.

        Raises COORDINATOR_LOADING if a broker cannot answer yet, UnreachableError if a live broker
        does not answer: an incomplete list would look complete.
        """
        return await group_calls.list_groups(self._asking, states)

    async def describe_group(
        self, group_id: str, *, include_offsets: bool = True
    ) -> GroupDescription:
        """Members, partitions and committed offsets. Raises ClusterError(UNKNOWN_GROUP)."""
        return await group_calls.describe_group(
            self._asking, group_id, include_offsets=include_offsets
        )

    async def group_lag(
        self, group: "str | GroupDescription"
    ) -> dict[TopicPartition, PartitionLag]:
        """How far behind the group is in every partition it reads or has read.

        Raises UNKNOWN_GROUP. Partitions of topics that no longer exist are left out.
        """
        return await group_calls.group_lag(self._asking, group)

    async def plan_reset(
        self,
        to: ResetTo,
        committed: Mapping[TopicPartition, int],
        *,
        clamp: bool = False,
    ) -> dict[TopicPartition, Move]:
        """The offsets to which `to` moves these partitions, for `reset_offsets`; committed -1 =
        none.

        Raises MisuseError naming a partition whose log does not contain that offset, UNKNOWN_TOPIC.
        """
        return await group_calls.plan_reset(self._asking, to, committed, clamp=clamp)

    async def reset_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        reset_id: str = "",
        reason: str = "",
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetChange]:
        """Sets committed offsets, also backwards, of a group without members: all or none.

        Args:
            group_id: An unknown group is created.
            offsets: 0 or more, -1 = delete the committed offset. The caller must make sure that
                they are in the log.
            reset_id: A reset with the id of the group's last one does nothing. "" = a new id.
            reason: Stored with the group.
            dry_run: Checks everything, changes nothing.

        Raises ClusterError: GROUP_NOT_EMPTY, UNKNOWN_TOPIC, or the error of a partition.
        """
        return await group_calls.reset_offsets(
            self._asking, group_id, offsets, reset_id=reset_id, reason=reason, dry_run=dry_run
        )

    async def delete_group(self, group_id: str) -> None:
        """Deletes a group without members, and its offsets.

        Raises UNKNOWN_GROUP, GROUP_NOT_EMPTY.
        """
        await group_calls.delete_group(self._asking, group_id)

    # -- transactions ------------------------------------------------------------------------

    async def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        *,
        older_than_ms: int = 0,
        producer_id: int = 0,
    ) -> list[TransactionListing]:
        """Transactional ids of the whole cluster, by id and branch.

        Args:
            states: Only these; none = all.
            older_than_ms: Only transactions open or finishing for at least this long.
            producer_id: Only this one's; 0 = all.

        Raises COORDINATOR_LOADING, UnreachableError: an incomplete list would look complete.
        """
        return await transaction_calls.list_transactions(
            self._asking, states, older_than_ms=older_than_ms, producer_id=producer_id
        )

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Owner, participants, and how the last ones ended. Raises UNKNOWN_TRANSACTIONAL_ID."""
        return await transaction_calls.describe_transaction(self._asking, transactional_id)

    async def abort_transaction(
        self, transactional_id: str, *, producer_epoch: int = -1, reason: str = ""
    ) -> int:
        """Aborts its open transactions; returns how many there were.

        Its producer gets TRANSACTION_ABORTED. `producer_epoch`: only if this is its epoch; -1 =
        whatever is open. Raises UNKNOWN_TRANSACTIONAL_ID.
        """
        return await transaction_calls.abort_transaction(
            self._asking, transactional_id, producer_epoch=producer_epoch, reason=reason
        )

    async def partition_transactions(self, where: TopicPartition) -> PartitionTransactions:
        """The open transactions in a partition, as its leader has them. Raises UNKNOWN_TOPIC and
        the like."""
        return await transaction_calls.partition_transactions(self._asking, where)

    async def blocking_transactions(self, *, older_than_ms: int = 0) -> list[BlockingTransaction]:
        """Transactions that block read_committed readers, by partition; [] = none.

        Args:
            older_than_ms: Only transactions open, or decided but not stored by the partition, for
                at least this long; also orphaned ones, whose age is unknown.

        Partitions without a leader, which cannot be read, are left out. Raises as
        `list_transactions`, or what the leaders answer: an incomplete list would look complete.
        """
        return await transaction_calls.blocking_transactions(
            self._asking, older_than_ms=older_than_ms
        )

    async def list_ledgers(self) -> list[LedgerListing]:
        """The last batch that each application id has committed, by id; raises as
        `list_transactions`."""
        return await transaction_calls.list_ledgers(self._asking)

    async def forget_ledger(self, application_id: str) -> bool:
        """Deletes a ledger: the next batch counts as the first. False = there was none."""
        return await transaction_calls.forget_ledger(self._asking, application_id)

    # -- the end -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the connections; can be called repeatedly."""
        await self._cluster.aclose()
