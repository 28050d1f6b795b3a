"""A broker registers or dies: what this does to the cluster, decided on a draft.

    another cluster, an older store        refused
    it follows only a newer controller     refused; the next take-over has the epoch it promised
    a release too old for the cluster      refused (`penstock.core.features`, formats)
    the id is in use by another directory  refused (I26: identity is the directory, not the id)
    an older copy of its directory         refused (`generations`)
    same incarnation                       the connection had broken: nothing changes
    new incarnation                        the old run died: its leaderships move or take a new
                                           epoch; without its data it also leaves ISR and ELR

A broker has lost its data if it says so (`data_intact`), or if its directory is a different one.
The stored incarnation shows whether this was handled: topics are written before the registration
(`Draft.finish`), so after a crash in between it is repeated.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.core.control.contract import BrokerRegistered, Severity, UnregisterBroker
from penstock.core.control.cordons import without_cordon
from penstock.core.control.documents import FORMAT_MOVES, BrokerRegistration
from penstock.core.control.draft import Draft
from penstock.core.control.election import forget
from penstock.core.control.generations import check_generations, newest_generation
from penstock.core.control.moves import dropped
from penstock.core.control.requests import check_cluster_id
from penstock.core.control.sessions import Sessions
from penstock.core.features import FEATURE_OF_TOPIC
from penstock.core.types import BrokerId
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode

_PORT_MAX = 65_535
BROKERS_MAX: Final = 500
"""Registered, alive or not: they are one document, and a Kubernetes object holds at most 1 MiB."""
_TEXTS_MAX: Final = {
    "host": 253,
    "external_host": 253,
    "rack": 128,
    "incarnation": 64,
    "directory_id": 64,
    "software_version": 64,
}
"""Characters; 253 is the longest name of a host."""
FEATURES_MAX: Final = 16
FORMATS_MAX: Final = 16
_FEATURE_CHARS_MAX: Final = 32


class NextEpochPromisedError(ClusterError):
    """The broker follows only a controller with the next epoch: somebody must take over."""


def decide_registration(draft: Draft, event: BrokerRegistered, sessions: Sessions) -> None:
    """Checks and records the registration.

    Raises ClusterError if it is refused, NextEpochPromisedError if this controller must give way.
    """
    _check(draft, event)
    known = draft.cluster.brokers.get(event.broker_id)
    if known is not None and known.directory_id != event.directory_id:
        _check_id_is_free(event, sessions)
    check_generations(event, known)
    _check_promise(draft, event)
    new_run = known is None or known.incarnation != event.incarnation
    if known is not None and new_run:
        _end_former_run(draft, event, known, sessions)
    elif known is None and not event.data_intact:
        # The cluster's document was written by hand, without brokers: replicas still name this one.
        _forget_data(draft, event.broker_id, same_directory=True)
    registration = BrokerRegistration(
        broker_id=event.broker_id,
        host=event.host,
        port=event.port,
        rack=event.rack,
        directory_id=event.directory_id,
        incarnation=event.incarnation,
        alive=True,
        external_host=event.external_host,
        external_port=event.external_port,
        replication_port=event.replication_port,
        stream_port=event.stream_port,
        internal_port=event.internal_port,
        secure_port=event.secure_port,
        secure_internal_port=event.secure_internal_port,
        certificate_port=event.certificate_port,
        external_certificate_port=event.external_certificate_port,
        features=event.features,
        fresh=_is_fresh(draft, event, known),
        generation=newest_generation(event, known),
    )
    if known is not None and known.directory_id != event.directory_id:
        draft.put_cluster(without_cordon(draft.cluster, event.broker_id))
    came_back = known is None or not known.alive or new_run
    draft.put_broker(registration)
    this = frozenset({event.broker_id})
    opened = event.broker_id in draft.opening and not event.opening
    draft.opening = draft.opening | this if event.opening else draft.opening - this
    if came_back or opened:
        # With its new session it may lead partitions without a leader.
        leaving = sessions.leaving - (this if new_run else set())
        draft.settle_all(draft.liveness(leaving), this)
    if came_back:
        draft.decide(
            Severity.INFO,
            "broker registered",
            broker=event.broker_id,
            address=f"{event.host}:{event.port}",
            rack=event.rack,
            incarnation=event.incarnation,
            new_run=new_run,
            data_intact=event.data_intact,
        )


def decide_deaths(
    draft: Draft, deaths: Mapping[BrokerId, str], leaving: frozenset[BrokerId]
) -> None:
    """These sessions have ended (value: why): other brokers get their leaderships.

    All at once: members that die together stay equal candidates, whichever comes back first.
    """
    died = set()
    for broker_id, why in deaths.items():
        registration = draft.cluster.brokers.get(broker_id)
        if registration is not None and registration.alive:
            draft.put_broker(replace(registration, alive=False))
            draft.decide(Severity.WARNING, "broker dead", broker=broker_id, why=why)
            died.add(broker_id)
    if died:
        draft.settle_all(draft.liveness(leaving), frozenset(died))


def decide_unregistration(draft: Draft, event: UnregisterBroker, sessions: Sessions) -> None:
    """Unregisters a broker; does nothing if it is unknown.

    Raises ClusterError(INVALID_REQUEST) while it has a session or holds a replica (I26), and if it
    has another data directory. What it had to delete, it never will.
    """
    check_cluster_id(draft, event.cluster_id)
    broker_id = event.broker_id
    if sessions.get(broker_id) is not None:
        raise ClusterError(
            f"broker {broker_id} has a session; stop it before you unregister it",
            ErrorCode.INVALID_REQUEST,
        )
    known = draft.cluster.brokers.get(broker_id)
    if known is None:
        return
    if event.directory_id not in {"", known.directory_id}:
        raise ClusterError(
            f"broker {broker_id} has data directory {known.directory_id}, not "
            f"{event.directory_id}: it was replaced; look at it again",
            ErrorCode.INVALID_REQUEST,
        )
    for topic in draft.topics():
        for index, partition in enumerate(topic.partitions):
            if broker_id in (*partition.state.replicas, *partition.target):
                what = "holds" if broker_id in partition.state.replicas else "shall get"
                raise ClusterError(
                    f"broker {broker_id} {what} a replica of {topic.name}/{index}; it can be "
                    "unregistered only when it holds and copies no replica: move them, or cancel "
                    "their moves",
                    ErrorCode.INVALID_REQUEST,
                )
    _forget_dropping(draft, broker_id)
    draft.drop_broker(broker_id)
    draft.put_cluster(without_cordon(draft.cluster, broker_id))
    draft.decide(Severity.INFO, "broker unregistered", broker=broker_id)


def _forget_dropping(draft: Draft, broker_id: BrokerId) -> None:
    for topic in draft.topics():
        partitions = tuple(dropped(partition, broker_id) for partition in topic.partitions)
        if any(a is not b for a, b in zip(partitions, topic.partitions, strict=True)):
            draft.put_topic(replace(topic, partitions=partitions))


def _is_fresh(draft: Draft, event: BrokerRegistered, known: BrokerRegistration | None) -> bool:
    if draft.format < FORMAT_MOVES:
        return False
    if known is None or known.directory_id != event.directory_id:
        return True
    return known.fresh


def _check(draft: Draft, event: BrokerRegistered) -> None:
    check_cluster_id(draft, event.cluster_id)
    if event.broker_id < 0 or not event.incarnation or not event.directory_id:
        raise ClusterError(
            f"registration of broker {event.broker_id} must have an id of 0 or more, an "
            "incarnation and a directory id",
            ErrorCode.INVALID_REQUEST,
        )
    _check_texts(event)
    if event.broker_id not in draft.cluster.brokers and len(draft.cluster.brokers) >= BROKERS_MAX:
        raise ClusterError(
            f"broker {event.broker_id} is new, and the cluster has {len(draft.cluster.brokers)} "
            f"registered brokers, the limit is {BROKERS_MAX}; unregister those that no longer "
            "exist",
            ErrorCode.INVALID_REQUEST,
        )
    if not event.host or not 0 < event.port <= _PORT_MAX:
        raise ClusterError(
            f"broker {event.broker_id} advertises {event.host!r}:{event.port}; it must be a host "
            f"and a port from 1 to {_PORT_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    if event.external_host and not 0 < event.external_port <= _PORT_MAX:
        raise ClusterError(
            f"broker {event.broker_id} advertises {event.external_host!r}:{event.external_port} "
            f"to external clients; the port must be 1 to {_PORT_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    for what, port in (
        ("replication port", event.replication_port),
        ("stream port", event.stream_port),
        ("internal port", event.internal_port),
        ("secure port", event.secure_port),
        ("secure internal port", event.secure_internal_port),
        ("certificate port", event.certificate_port),
        ("external certificate port", event.external_certificate_port),
    ):
        if not 0 <= port <= _PORT_MAX:
            raise ClusterError(
                f"broker {event.broker_id} advertises {what} {port}; it must be 0 (none) to "
                f"{_PORT_MAX}",
                ErrorCode.INVALID_REQUEST,
            )
    _check_features(draft, event)
    _check_formats(draft, event)
    seen = (event.seen_controller_epoch, event.seen_metadata_version)
    mine = (draft.cluster.controller_epoch, draft.base.metadata_version)
    if seen[0] > mine[0] or seen[1] > mine[1]:
        raise ClusterError(
            f"broker {event.broker_id} has seen controller epoch {seen[0]}, metadata version "
            f"{seen[1]}; this controller is at {mine[0]}, {mine[1]}: it was deposed, or its "
            "metadata store was restored from an older state; restore the newer one. If only an "
            "older document of the cluster is left, it needs these numbers, and its brokers no "
            "`generation` (docs/operations.md)",
            ErrorCode.STALE_CONTROLLER_EPOCH,
        )


def _check_texts(event: BrokerRegistered) -> None:
    for name, limit in _TEXTS_MAX.items():
        text: str = getattr(event, name)
        plain = name == "rack" or text.isascii()
        if len(text) > limit or not text.isprintable() or not plain:
            raise ClusterError(
                f"broker {event.broker_id} registers with {name} {text[:40]!r} of {len(text)} "
                f"characters; it must have at most {limit}, all printable"
                + ("" if name == "rack" else " and of ASCII"),
                ErrorCode.INVALID_REQUEST,
            )
    longest = max(map(len, event.features), default=0)
    plain = "".join(event.features).isascii()
    if len(event.features) > FEATURES_MAX or longest > _FEATURE_CHARS_MAX or not plain:
        raise ClusterError(
            f"broker {event.broker_id} names {len(event.features)} features, the longest with "
            f"{longest} characters; the limits are {FEATURES_MAX} and {_FEATURE_CHARS_MAX}, all of "
            "ASCII",
            ErrorCode.INVALID_REQUEST,
        )


def _check_features(draft: Draft, event: BrokerRegistered) -> None:
    for topic, feature in FEATURE_OF_TOPIC.items():
        if feature not in event.features and draft.topic(topic) is not None:
            raise ClusterError(
                f"broker {event.broker_id} does not support {feature!r}, which this cluster has "
                f"used since {topic} was created (it names {listed(event.features)}): start a "
                "release that supports it",
                ErrorCode.INVALID_REQUEST,
            )


def _check_formats(draft: Draft, event: BrokerRegistered) -> None:
    if len(event.formats) > FORMATS_MAX:
        raise ClusterError(
            f"broker {event.broker_id} names {len(event.formats)} formats; the limit is "
            f"{FORMATS_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    wanted = draft.cluster.format
    if wanted not in event.formats:
        release = (
            f"release {event.software_version}" if event.software_version else "an old release"
        )
        raise ClusterError(
            f"broker {event.broker_id} runs {release}, which reads metadata of formats "
            f"{listed(event.formats)}; this cluster was finalized to format {wanted}: start a "
            "release that reads it",
            ErrorCode.FORMAT_TOO_OLD,
        )


def _check_id_is_free(event: BrokerRegistered, sessions: Sessions) -> None:
    session = sessions.get(event.broker_id)
    if session is None:
        return
    if session.stream_id is None:
        # Broken or only assumed: within two seconds it is back or has ended.
        raise ClusterError(
            f"broker {event.broker_id} had a session a moment ago with a different data "
            "directory; try again in two seconds",
            ErrorCode.CONTROLLER_UNAVAILABLE,
        )
    raise ClusterError(
        f"broker id {event.broker_id} is in use by a live broker with a different data "
        "directory; give this broker a different id, or stop the other one",
        ErrorCode.BROKER_ID_IN_USE,
    )


def _check_promise(draft: Draft, event: BrokerRegistered) -> None:
    """Whoever takes over asks brokers to promise the epoch after the one stored (`journal`).

    If it then loses the lease, nobody becomes active at that epoch, and without a take-over the
    broker would never follow anybody again. A promise is at most one ahead of the store: following
    any other would let one broken or malicious peer use up all epochs.
    """
    promised, mine = event.promised_controller_epoch, draft.cluster.controller_epoch
    if promised <= mine:
        return
    if promised == mine + 1:
        raise NextEpochPromisedError(
            f"broker {event.broker_id} has promised to follow controller epoch {promised}, this "
            f"controller is at {mine}: the controller that has the lease takes over at {promised}",
            ErrorCode.STALE_CONTROLLER_EPOCH,
        )
    raise ClusterError(
        f"broker {event.broker_id} has promised to follow controller epoch {promised}, but the "
        f"stored one is {mine}, and a promise is never more than one ahead. If the metadata store "
        "was restored from an older state, restore the newer one; otherwise stop the broker, "
        f"set `promised` to {mine} in journal.json of its data directory, and start it",
        ErrorCode.STALE_CONTROLLER_EPOCH,
    )


def _end_former_run(
    draft: Draft, event: BrokerRegistered, known: BrokerRegistration, sessions: Sessions
) -> None:
    broker_id = event.broker_id
    same_directory = known.directory_id == event.directory_id
    if not (event.data_intact and same_directory):
        _forget_data(draft, broker_id, same_directory=same_directory)
    if known.alive:
        draft.put_broker(replace(known, alive=False))
        draft.decide(Severity.WARNING, "broker dead", broker=broker_id, why="it restarted")
        this = frozenset({broker_id})
        liveness = replace(draft.liveness(sessions.leaving - this), returning=this)
        draft.settle_all(liveness, this)


def _forget_data(draft: Draft, broker_id: BrokerId, *, same_directory: bool) -> None:
    lost, named = 0, False
    for topic in draft.topics():
        partitions = tuple(
            forget(partition, broker_id, same_directory=same_directory)
            for partition in topic.partitions
        )
        lost += sum(
            broker_id in partition.state.isr or broker_id in partition.elr
            for partition in topic.partitions
        )
        if any(a is not b for a, b in zip(partitions, topic.partitions, strict=True)):
            draft.put_topic(replace(topic, partitions=partitions))
            named = True
    if named:
        draft.decide(
            Severity.WARNING,
            "broker came back without its data",
            broker=broker_id,
            same_directory=same_directory,
            seats_lost=lost,
        )
