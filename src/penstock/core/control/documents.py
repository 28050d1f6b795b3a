"""What the controller stores: one document for the cluster, one per topic, as JSON text.

    cluster ──▶ {"format": 2, "cluster_id": …, "controller_epoch": …, "brokers": […], …}
    topic   ──▶ {"format": 2, "name": …, "topic_id": …, "configs": {…}, "partitions": […]}

Each document is one object in the metadata store and changes by compare-and-swap (I21). Both
contain the controller epoch and the metadata version of the write that made them, so the newest
metadata version is the largest of all documents: it never goes back, and brokers that have seen a
newer one recognize a restored older store. People read these with kubectl: names are spelled out,
empty parts are omitted.

Whoever rewrites a document keeps only what it knows. So what an older release does not know is
stored only under a format that it refuses (I36). A document says the format of its last write; the
cluster's says which one counts, and changes only on request (`formats`).

    1  the first
    2  moves, damaged replicas, cordons, fresh brokers, the copy rate, deletion.protection and
       partitioner of topics, the operator's epoch, hibernation
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.authorization import Rule
from penstock.core.authorization.text import rules_from_json, rules_to_json
from penstock.core.control.partition import (
    PartitionDocument,
    partition_from_json,
    partition_to_json,
)
from penstock.core.quotas import QuotaRule, quotas_from_json, quotas_to_json
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    TopicId,
)
from penstock.core.value import value
from penstock.errors import ClusterError, ErrorCode

FORMAT_FIRST: Final = 1
FORMAT_MOVES: Final = 2
FORMATS: Final = (FORMAT_FIRST, FORMAT_MOVES)
"""Those that this release reads and writes, in order."""
FORMAT_NEWEST: Final = FORMATS[-1]
CLUSTER_KEY: Final = "cluster"
TOPIC_KEY_PREFIX: Final = "topic/"
TOMBSTONES_MAX: Final = 1_000
"""Deleted topic ids remembered, so that a broker that was down still learns of the deletion."""


@value(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker's last registration. `alive`: it had a session at the last write, or has one.

    `directory_id` names the data directory: a different one means a different disk.
    `incarnation` names the run of the process. `features`: `penstock.core.features`.
    `replication_port` 0: it has none, followers use gRPC; `stream_port` 0: the same for clients;
    `internal_port` 0: brokers and controllers call `port`, as clients do. `secure_port`: another
    one for clients, over TLS. `secure_internal_port`: `internal_port` of a broker that serves
    plaintext as well. `certificate_port`, on `host`, and `external_certificate_port`, on
    `external_host`: of users who show certificates; 0: none. `fresh`: it has not got its share of
    the partitions yet; not part of what a broker says when it registers. `generation`: the newest
    that was heard of the data directory (`generations`); "": of a release that keeps none.
    """

    broker_id: BrokerId
    host: str
    port: int
    rack: str
    directory_id: str
    incarnation: str
    alive: bool
    external_host: str = ""
    external_port: int = 0
    replication_port: int = 0
    stream_port: int = 0
    internal_port: int = 0
    secure_port: int = 0
    secure_internal_port: int = 0
    certificate_port: int = 0
    external_certificate_port: int = 0
    features: tuple[str, ...] = ()
    fresh: bool = False
    generation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """What a broker is kept from: `placement` of replicas, `leadership`; at least one of them.

    It counts for the data directory `directory_id`: another one is another broker. `why` and `by`
    are for people.
    """

    directory_id: str
    placement: bool
    leadership: bool
    why: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLease:
    """A holding of the Lease by which operators are elected.

    `created_s`: when the Lease was, in seconds since 1970, by the API server. `transitions`: how
    often it has had a new holder. `holder`: the process.
    """

    uid: str
    created_s: int
    transitions: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEpoch:
    """The last one given, from 1 on, and for what."""

    epoch: int
    lease: OperatorLease


@dataclass(frozen=True, slots=True)
class Tombstone:
    topic_id: TopicId
    metadata_version: int


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Who may do what, except the own rules of topics.

    `groups`: of those that have rules; a group itself has no document. `version`: the metadata
    version of the last change of rules, because the cluster's document changes more often.
    """

    rules: tuple[Rule, ...] = ()
    groups: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True, slots=True)
class ClusterQuotas:
    """What principals may take. `version`: as of `ClusterAccess`."""

    rules: tuple[QuotaRule, ...] = ()
    version: int = 0


@value(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """`next_producer_id`: the first id that was never assigned. `format`: see the module.
    `copy_rate`: bytes per second, 0 = no limit; None: each broker's own setting. `copy_rate_by`:
    what manages it; "": nothing does. `hibernating`: see `hibernation`.
    """

    cluster_id: str
    controller_epoch: ControllerEpoch
    metadata_version: int
    next_producer_id: int = 0
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    tombstones: tuple[Tombstone, ...] = ()
    access: ClusterAccess = ClusterAccess()
    quotas: ClusterQuotas = ClusterQuotas()
    format: int = FORMAT_FIRST
    cordons: Mapping[BrokerId, Cordon] = field(default_factory=dict)
    copy_rate: int | None = None
    copy_rate_by: str = ""
    operator_epoch: OperatorEpoch | None = None
    hibernating: bool = False


@value(frozen=True, slots=True, kw_only=True)
class TopicDocument:
    """`configs`: only the keys that were set. `partitions[i]` is partition i.

    `format`: of this document, at most the cluster's.
    """

    name: str
    topic_id: TopicId
    controller_epoch: ControllerEpoch
    metadata_version: int
    configs: Mapping[str, str]
    partitions: tuple[PartitionDocument, ...]
    access: tuple[Rule, ...] = ()
    format: int = FORMAT_FIRST

    @property
    def moving(self) -> int:
        """How many partitions have a target."""
        return sum(1 for partition in self.partitions if partition.target)


def topic_key(name: str) -> str:
    """The store's key of a topic's document: by name, so that a name exists once."""
    return TOPIC_KEY_PREFIX + name


# ---------------------------------------------------------------- JSON


def encode_cluster(document: ClusterDocument) -> str:
    """JSON text; `decode_cluster` reads it back."""
    assert document.format >= FORMAT_MOVES or not uses_moves(document)
    return _dump(
        {
            "format": document.format,
            "cluster_id": document.cluster_id,
            "controller_epoch": document.controller_epoch,
            "metadata_version": document.metadata_version,
            "next_producer_id": document.next_producer_id,
            "brokers": [
                {
                    "broker_id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "directory_id": broker.directory_id,
                    "incarnation": broker.incarnation,
                    "alive": broker.alive,
                    **_external_to_json(broker),
                    **_ports_to_json(broker),
                    **({"features": list(broker.features)} if broker.features else {}),
                    **({"fresh": True} if broker.fresh else {}),
                    **({"generation": broker.generation} if broker.generation else {}),
                }
                for _, broker in sorted(document.brokers.items())
            ],
            "deleted_topics": [
                [tombstone.topic_id, tombstone.metadata_version]
                for tombstone in document.tombstones
            ],
            **_access_to_json(document.access),
            **_quotas_to_json(document.quotas),
            **_cordons_to_json(document.cordons),
            **({} if document.copy_rate is None else {"copy_rate": document.copy_rate}),
            **({"copy_rate_by": document.copy_rate_by} if document.copy_rate_by else {}),
            **_operator_to_json(document.operator_epoch),
            **({"hibernating": True} if document.hibernating else {}),
        }
    )


def uses_moves(document: ClusterDocument) -> bool:
    """Something in it needs FORMAT_MOVES."""
    fresh = any(broker.fresh for broker in document.brokers.values())
    own = document.copy_rate is not None or document.operator_epoch is not None
    return fresh or own or bool(document.cordons) or document.hibernating


def _external_to_json(broker: BrokerRegistration) -> dict[str, object]:
    """Only if there is one: documents of clusters without it do not change."""
    if not broker.external_host:
        return {}
    return {"external_host": broker.external_host, "external_port": broker.external_port}


def _ports_to_json(broker: BrokerRegistration) -> dict[str, object]:
    """As `_external_to_json`."""
    ports = {
        "replication_port": broker.replication_port,
        "stream_port": broker.stream_port,
        "internal_port": broker.internal_port,
        "secure_port": broker.secure_port,
        "secure_internal_port": broker.secure_internal_port,
        "certificate_port": broker.certificate_port,
        "external_certificate_port": broker.external_certificate_port,
    }
    return {name: port for name, port in ports.items() if port}


def _access_to_json(access: ClusterAccess) -> dict[str, object]:
    """As `_external_to_json`, also once all rules are gone: only the version stays."""
    parts = {
        "version": access.version,
        "rules": rules_to_json(access.rules),
        "groups": {name: rules_to_json(own) for name, own in sorted(access.groups.items())},
    }
    found = {name: part for name, part in parts.items() if part}
    return {"access": found} if found else {}


def _access_from_json(found: Mapping[str, Any]) -> ClusterAccess:
    return ClusterAccess(
        rules_from_json(found.get("rules", ())),
        {str(name): rules_from_json(own) for name, own in found.get("groups", {}).items()},
        int(found.get("version", 0)),
    )


def _quotas_to_json(quotas: ClusterQuotas) -> dict[str, object]:
    """As `_access_to_json`."""
    parts = {"version": quotas.version, "rules": quotas_to_json(quotas.rules)}
    found = {name: part for name, part in parts.items() if part}
    return {"quotas": found} if found else {}


def _quotas_from_json(found: Mapping[str, Any]) -> ClusterQuotas:
    return ClusterQuotas(quotas_from_json(found.get("rules", ())), int(found.get("version", 0)))


def _cordons_to_json(cordons: Mapping[BrokerId, Cordon]) -> dict[str, object]:
    found = [
        {
            "broker_id": broker_id,
            "directory_id": cordon.directory_id,
            "placement": cordon.placement,
            "leadership": cordon.leadership,
            **({"why": cordon.why} if cordon.why else {}),
            **({"by": cordon.by} if cordon.by else {}),
        }
        for broker_id, cordon in sorted(cordons.items())
    ]
    return {"cordons": found} if found else {}


def _cordons_from_json(found: list[Mapping[str, Any]]) -> dict[BrokerId, Cordon]:
    return {
        BrokerId(int(entry["broker_id"])): Cordon(
            directory_id=str(entry["directory_id"]),
            placement=bool(entry["placement"]),
            leadership=bool(entry["leadership"]),
            why=str(entry.get("why", "")),
            by=str(entry.get("by", "")),
        )
        for entry in found
    }


def _operator_to_json(given: OperatorEpoch | None) -> dict[str, object]:
    if given is None:
        return {}
    lease = given.lease
    return {
        "operator_epoch": {
            "epoch": given.epoch,
            "lease": lease.uid,
            "created_s": lease.created_s,
            "transitions": lease.transitions,
            "holder": lease.holder,
        }
    }


def _operator_from_json(found: Mapping[str, Any] | None) -> OperatorEpoch | None:
    if found is None:
        return None
    lease = OperatorLease(
        uid=str(found["lease"]),
        created_s=int(found["created_s"]),
        transitions=int(found["transitions"]),
        holder=str(found["holder"]),
    )
    return OperatorEpoch(epoch=int(found["epoch"]), lease=lease)


def encode_topic(document: TopicDocument) -> str:
    """JSON text; `decode_topic` reads it back."""
    assert document.format >= FORMAT_MOVES or not any(
        partition.uses_moves for partition in document.partitions
    )
    return _dump(
        {
            "format": document.format,
            "name": document.name,
            "topic_id": document.topic_id,
            "controller_epoch": document.controller_epoch,
            "metadata_version": document.metadata_version,
            "configs": dict(sorted(document.configs.items())),
            "partitions": [partition_to_json(partition) for partition in document.partitions],
            **({"access": rules_to_json(document.access)} if document.access else {}),
        }
    )


def decode_cluster(text: str, where: str) -> ClusterDocument:
    """Raises ClusterError(DATA_CORRUPTED) naming `where` and what is wrong."""
    found = _load(text, where)
    moves = found["format"] >= FORMAT_MOVES
    try:
        brokers = [
            BrokerRegistration(
                broker_id=BrokerId(int(entry["broker_id"])),
                host=str(entry["host"]),
                port=int(entry["port"]),
                rack=str(entry["rack"]),
                directory_id=str(entry["directory_id"]),
                incarnation=str(entry["incarnation"]),
                alive=bool(entry["alive"]),
                external_host=str(entry.get("external_host", "")),
                external_port=int(entry.get("external_port", 0)),
                replication_port=int(entry.get("replication_port", 0)),
                stream_port=int(entry.get("stream_port", 0)),
                internal_port=int(entry.get("internal_port", 0)),
                secure_port=int(entry.get("secure_port", 0)),
                secure_internal_port=int(entry.get("secure_internal_port", 0)),
                certificate_port=int(entry.get("certificate_port", 0)),
                external_certificate_port=int(entry.get("external_certificate_port", 0)),
                features=tuple(str(feature) for feature in entry.get("features", ())),
                fresh=moves and bool(entry.get("fresh", False)),
                generation=str(entry.get("generation", "")),
            )
            for entry in found["brokers"]
        ]
        return ClusterDocument(
            cluster_id=str(found["cluster_id"]),
            controller_epoch=ControllerEpoch(int(found["controller_epoch"])),
            metadata_version=int(found["metadata_version"]),
            next_producer_id=int(found["next_producer_id"]),
            brokers={broker.broker_id: broker for broker in brokers},
            tombstones=tuple(
                Tombstone(TopicId(str(topic_id)), int(version))
                for topic_id, version in found["deleted_topics"]
            ),
            access=_access_from_json(found.get("access", {})),
            quotas=_quotas_from_json(found.get("quotas", {})),
            format=found["format"],
            cordons=_cordons_from_json(found.get("cordons", [])) if moves else {},
            copy_rate=int(found["copy_rate"]) if moves and "copy_rate" in found else None,
            copy_rate_by=str(found.get("copy_rate_by", "")) if moves else "",
            operator_epoch=_operator_from_json(found.get("operator_epoch")) if moves else None,
            hibernating=moves and bool(found.get("hibernating", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(where, error) from None


def decode_topic(text: str, where: str) -> TopicDocument:
    """Raises ClusterError(DATA_CORRUPTED) naming `where` and what is wrong."""
    found = _load(text, where)
    moves = found["format"] >= FORMAT_MOVES
    try:
        return TopicDocument(
            name=str(found["name"]),
            topic_id=TopicId(str(found["topic_id"])),
            controller_epoch=ControllerEpoch(int(found["controller_epoch"])),
            metadata_version=int(found["metadata_version"]),
            configs={str(key): str(value) for key, value in found["configs"].items()},
            partitions=tuple(
                partition_from_json(entry, moves=moves) for entry in found["partitions"]
            ),
            access=rules_from_json(found.get("access", ())),
            format=found["format"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(where, error) from None


def _dump(found: dict[str, Any]) -> str:
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _load(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _unreadable(where, error) from None
    seen = found.get("format") if isinstance(found, dict) else type(found).__name__
    if type(seen) is not int or seen not in FORMATS:
        raise ClusterError(
            f"metadata object {where} has format {seen!r}, but this version reads {FORMAT_FIRST} "
            f"to {FORMAT_NEWEST}; run the version that wrote it, or restore the object",
            ErrorCode.DATA_CORRUPTED,
        )
    assert isinstance(found, dict)
    return found


def _unreadable(where: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"metadata object {where} is unreadable ({type(error).__name__}: {error}); nothing was "
        "changed; restore it from a backup",
        ErrorCode.DATA_CORRUPTED,
    )
