"""The objects of a manifest, as frozen data: the input of local mode and of the operator.

Built by `parse` only, which has checked every field; None and defaults mean here what the rows
in `schema` say. `effective_*` resolve what a field leaves to the cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.core.authorization.model import Rule
from penstock.core.manifest.access import rules_from_values
from penstock.core.manifest.client_certificates import (
    ClientCertificates,
    client_certificates_from_values,
)
from penstock.core.manifest.containers import BROKER, CONTROLLER, container_of
from penstock.core.manifest.fields import Values
from penstock.core.manifest.oidc import OidcIssuer, issuers_from_values
from penstock.core.manifest.quotas import quotas_from_values
from penstock.core.manifest.upkeep import (
    BalanceMode,
    FinalizePolicy,
    Parallel,
    UpgradePolicy,
    Upgrading,
    balance_from_values,
)
from penstock.core.offset_reset import ResetKind
from penstock.core.quotas import QuotaRule

REPLICATION_FACTOR = "default.replication.factor"
MIN_INSYNC = "min.insync.replicas"
PARTITIONS = "num.partitions"


class DeletionPolicy(Enum):
    RETAIN = "Retain"
    DELETE = "Delete"


class SecurityMode(Enum):
    """Whether callers are asked who they are; from the weakest to the strongest."""

    DISABLED = "Disabled"
    MIGRATE = "Migrate"
    """At ports with TLS; those in plaintext stay as they are."""
    STRICT = "Strict"

    @property
    def has_tls(self) -> bool:
        return self is not SecurityMode.DISABLED

    @property
    def strength(self) -> int:
        """To compare modes."""
        return list(SecurityMode).index(self)

    @classmethod
    def weakest(cls, modes: "Iterable[SecurityMode | None]") -> "SecurityMode | None":
        """Of those that are known, the one by which all can be called; None: none is known."""
        known = [mode for mode in modes if mode is not None]
        return min(known, key=lambda mode: mode.strength, default=None)

    @classmethod
    def of_pod(cls, pod: Mapping[str, Any]) -> "SecurityMode | None":
        """What a broker's pod was started as, whatever its Cluster asks for by now.

        None: it has no container of that name, so nobody can tell.
        """
        return cls._started_as(pod, BROKER, "--enrol-at=")

    @classmethod
    def of_controller(cls, pod: Mapping[str, Any]) -> "SecurityMode | None":
        """As `of_pod`, of a controller's pod."""
        return cls._started_as(pod, CONTROLLER, "--ca-key=")

    @classmethod
    def _started_as(cls, pod: Mapping[str, Any], name: str, sign: str) -> "SecurityMode | None":
        found = container_of((pod.get("spec") or {}).get("containers"), name)
        if found is None:
            return None
        args: Sequence[str] = found.get("args") or ()
        if "--migrate" in args:
            return cls.MIGRATE
        return cls.STRICT if any(word.startswith(sign) for word in args) else cls.DISABLED


class ReplaceLost(Enum):
    """When a broker gets a new volume in place of a lost one, without a request."""

    NODE_GONE = "NodeGone"
    NEVER = "Never"


class WhenScaledDown(Enum):
    """What happens to the volume of a broker that was emptied and is gone."""

    RETAIN = "Retain"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class Resources:
    """Kubernetes' requests and limits: quantities by resource. Empty = none."""

    requests: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_values(cls, values: Values) -> "Resources":
        return cls(values.settings("requests"), values.settings("limits"))


@dataclass(frozen=True, slots=True)
class External:
    """A listener for clients outside. `host` empty = the node's address.

    Bootstrap has `node_port`, broker N has `node_port` + 1 + N.
    """

    type: str
    host: str = ""
    node_port: int = 31_092

    @classmethod
    def from_values(cls, values: Values) -> "External":
        return cls(values.text("type"), values.text("host"), values.integer("nodePort"))


@dataclass(frozen=True, slots=True)
class PodSpec:
    """Where pods may run. Tolerations as they were written."""

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, object], ...] = ()

    @classmethod
    def from_values(cls, values: Values) -> "PodSpec":
        return cls(values.settings("nodeSelector"), values.mappings("tolerations"))


@dataclass(frozen=True, slots=True)
class AllowFrom:
    """Peers as in a NetworkPolicy, as they were written; empty = everybody."""

    clients: tuple[Mapping[str, object], ...] = ()
    metrics: tuple[Mapping[str, object], ...] = ()

    @classmethod
    def from_values(cls, values: Values) -> "AllowFrom":
        return cls(values.mappings("clients"), values.mappings("metrics"))


@dataclass(frozen=True, slots=True)
class Controllers:
    replicas: int = 2
    resources: Resources = field(default_factory=Resources)

    @classmethod
    def from_values(cls, values: Values) -> "Controllers":
        return cls(values.integer("replicas"), Resources.from_values(values.nested("resources")))


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`rack_names` are given to brokers in turn (local mode); `config` holds Kafka's names.

    `storage_class`, `image`, `image_pull_policy` empty = not given. Fields from `storage_class`
    on are only for Kubernetes; local mode ignores them.
    `copy_rate`: bytes per second, 0 = no limit, None = not managed.
    """

    brokers: int
    storage_size: str = "10Gi"
    config: dict[str, str] = field(default_factory=dict)
    rack_topology_key: str = ""
    rack_names: tuple[str, ...] = ()
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    storage_class: str = ""
    image: str = ""
    image_pull_policy: str = ""
    resources: Resources = field(default_factory=Resources)
    controllers: Controllers = field(default_factory=Controllers)
    external: External | None = None
    pod: PodSpec = field(default_factory=PodSpec)
    allow_from: AllowFrom = field(default_factory=AllowFrom)
    security: SecurityMode = SecurityMode.DISABLED
    oidc: tuple[OidcIssuer, ...] = ()
    client_certificates: ClientCertificates | None = None
    access: tuple[Rule, ...] | None = None
    quotas: tuple[QuotaRule, ...] | None = None
    upgrade_policy: UpgradePolicy = UpgradePolicy.WHEN_ASKED
    max_parallel: Parallel = field(default_factory=Parallel)
    finalize: FinalizePolicy = FinalizePolicy.MANUAL
    soak_s: int = 0
    balance_mode: BalanceMode = BalanceMode.ON_SCALE
    replace_lost: ReplaceLost = ReplaceLost.NODE_GONE
    when_scaled_down: WhenScaledDown = WhenScaledDown.RETAIN
    hibernate: bool = False
    copy_rate: int | None = None

    @classmethod
    def from_values(cls, values: Values) -> "ClusterSpec":
        rack, storage = values.nested("rack"), values.nested("storage")
        external, security = values.optional("external"), values.optional("security")
        upgrading = Upgrading.from_values(values.optional("upgrade"))
        balance_mode, copy_rate = balance_from_values(values.optional("balance"))
        return cls(
            brokers=values.integer("brokers"),
            storage_size=storage.text("size"),
            config=values.settings("config"),
            rack_topology_key=rack.text("topologyKey"),
            rack_names=rack.texts("names"),
            deletion_policy=DeletionPolicy(values.text("deletionPolicy")),
            storage_class=storage.text("storageClassName"),
            image=values.text("image"),
            image_pull_policy=values.text("imagePullPolicy"),
            resources=Resources.from_values(values.nested("resources")),
            controllers=Controllers.from_values(values.nested("controllers")),
            external=None if external is None else External.from_values(external),
            pod=PodSpec.from_values(values.nested("pod")),
            allow_from=AllowFrom.from_values(values.nested("allowFrom")),
            security=_security_mode(security),
            oidc=issuers_from_values(security),
            client_certificates=client_certificates_from_values(security),
            access=rules_from_values(values),
            quotas=quotas_from_values(values),
            upgrade_policy=upgrading.policy,
            max_parallel=upgrading.max_parallel,
            finalize=upgrading.finalize,
            soak_s=upgrading.soak_s,
            balance_mode=balance_mode,
            copy_rate=copy_rate,
            replace_lost=ReplaceLost(storage.text("replaceLost") or ReplaceLost.NODE_GONE.value),
            when_scaled_down=WhenScaledDown(
                storage.text("whenScaledDown") or WhenScaledDown.RETAIN.value
            ),
            hibernate=values.flag("hibernate"),
        )

    def effective_config(self) -> dict[str, str]:
        """`config` with the defaults that depend on the number of brokers.

        Three replicas and min ISR 2 are the product's defaults; a smaller cluster gets what it
        can have, so that one broker works without further settings.
        """
        factor = self.config.get(REPLICATION_FACTOR, str(min(3, self.brokers)))
        min_isr = self.config.get(MIN_INSYNC, str(min(2, _number(factor, 1))))
        return {PARTITIONS: "1", **self.config, REPLICATION_FACTOR: factor, MIN_INSYNC: min_isr}


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """`partitions`, `replicas` None = the cluster's defaults; `access` None = not managed."""

    cluster: str
    topic_name: str
    partitions: int | None = None
    replicas: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    access: tuple[Rule, ...] | None = None

    @classmethod
    def from_values(cls, values: Values, object_name: str) -> "TopicSpec":
        return cls(
            cluster=values.text("cluster"),
            topic_name=values.text("topicName") or object_name,
            partitions=values.optional_integer("partitions"),
            replicas=values.optional_integer("replicas"),
            config=values.settings("config"),
            deletion_policy=DeletionPolicy(values.text("deletionPolicy")),
            access=rules_from_values(values),
        )

    def effective_partitions(self, cluster: ClusterSpec) -> int:
        return self.partitions or _number(cluster.effective_config()[PARTITIONS], 1)

    def effective_replicas(self, cluster: ClusterSpec) -> int:
        return self.replicas or _number(cluster.effective_config()[REPLICATION_FACTOR], 1)


@dataclass(frozen=True, slots=True)
class Topic:
    """`name` is the object's; `spec.topic_name` is what clients use."""

    name: str
    spec: TopicSpec


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Carried out once per `id`. `value` as written, empty for earliest and latest.

    `topics` empty = all topics in which the group has offsets.
    """

    id: str
    to: ResetKind
    value: str = ""
    topics: tuple[str, ...] = ()
    dry_run: bool = False

    @classmethod
    def from_values(cls, values: Values) -> "OffsetReset":
        return cls(
            id=values.text("id"),
            to=ResetKind(values.text("to") or "latest"),
            value=values.text("value"),
            topics=values.texts("topics"),
            dry_run=values.boolean("dryRun"),
        )


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """A Deployment scaled by lag, in records."""

    kind: str
    name: str
    min_replicas: int
    max_replicas: int
    lag_per_replica: int
    stabilization_window_s: int = 300

    @classmethod
    def from_values(cls, values: Values) -> "ScaleTarget":
        least = values.integer("minReplicas")
        return cls(
            kind=values.text("kind"),
            name=values.text("name"),
            min_replicas=least,
            max_replicas=values.optional_integer("maxReplicas") or max(least, 1),
            lag_per_replica=values.optional_integer("lagPerReplica") or 1,
            stabilization_window_s=values.integer("stabilizationWindowSeconds"),
        )


@dataclass(frozen=True, slots=True)
class ConsumerGroupSpec:
    """`group_id` is the members' name of the group; resets and scaling only on request.

    `access` None = not managed.
    """

    cluster: str
    group_id: str
    offset_reset: OffsetReset | None = None
    scale_target: ScaleTarget | None = None
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    access: tuple[Rule, ...] | None = None

    @classmethod
    def from_values(cls, values: Values, object_name: str) -> "ConsumerGroupSpec":
        reset, target = values.optional("offsetReset"), values.optional("scaleTarget")
        return cls(
            cluster=values.text("cluster"),
            group_id=values.text("groupId") or object_name,
            offset_reset=None if reset is None else OffsetReset.from_values(reset),
            scale_target=None if target is None else ScaleTarget.from_values(target),
            deletion_policy=DeletionPolicy(values.text("deletionPolicy")),
            access=rules_from_values(values),
        )


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """`name` is the object's; `spec.group_id` is what members use."""

    name: str
    spec: ConsumerGroupSpec


@dataclass(frozen=True, slots=True)
class Manifest:
    """All objects of one source, in file order. `source` is the file's name, for messages."""

    source: str
    clusters: tuple[Cluster, ...]
    topics: tuple[Topic, ...]
    consumer_groups: tuple[ConsumerGroup, ...] = ()

    def topics_of(self, cluster: str) -> tuple[Topic, ...]:
        return tuple(topic for topic in self.topics if topic.spec.cluster == cluster)

    def groups_of(self, cluster: str) -> tuple[ConsumerGroup, ...]:
        return tuple(group for group in self.consumer_groups if group.spec.cluster == cluster)


def _security_mode(security: Values | None) -> SecurityMode:
    """What is asked for (`parse` has already reported a mode that does not exist)."""
    asked = "" if security is None else security.text("mode")
    known = {mode.value: mode for mode in SecurityMode}
    return known.get(asked, SecurityMode.DISABLED)


def _number(text: str, otherwise: int) -> int:
    """A setting as a number; `otherwise` if it is not one (`parse` has already reported that)."""
    return int(text) if text.isascii() and text.isdecimal() else otherwise
