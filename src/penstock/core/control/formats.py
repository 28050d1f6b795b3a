"""Which format the stored documents have: chosen on request, so that a release can be taken back.

    release N-1 everywhere ──▶ release N everywhere, format of N-1 ──Finalize──▶ format of N
                        ◀── everything still starts ──     ◀── Finalize to 1, while nothing uses it

A document of a newer format ends an older controller, and an older broker is refused when it
registers. So the format is raised only when every registered broker is there and reads it. Nothing
is rewritten then: a document gets the format when it is written for another reason. To go back, all
are rewritten, topics first: with the cluster's document everything has the older format (I36).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.core.control.contract import Severity
from penstock.core.control.documents import (
    FORMAT_FIRST,
    FORMAT_MOVES,
    FORMAT_NEWEST,
    FORMATS,
    ClusterDocument,
    TopicDocument,
)
from penstock.core.control.draft import Draft
from penstock.core.control.move_contract import Finalize, FormatChosen
from penstock.core.control.requests import check_cluster_id
from penstock.core.control.sessions import Sessions
from penstock.core.topic import DELETION_PROTECTION, PARTITIONER
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode

_NEW_SETTINGS = (DELETION_PROTECTION, PARTITIONER)
"""Of topics, in a document from FORMAT_MOVES on."""
_NAMED_MAX = 5
"""Obstacles that an error names; there may be thousands."""


def decide_finalize(draft: Draft, request: Finalize, sessions: Sessions) -> FormatChosen:
    """Raises ClusterError FORMAT_TOO_OLD, INVALID_REQUEST or MOVES_PAUSED; nothing has changed."""
    check_cluster_id(draft, request.cluster_id)
    before, wanted = draft.cluster.format, request.to or FORMAT_NEWEST
    if wanted not in FORMATS:
        raise ClusterError(
            f"format {wanted} does not exist for this release, which writes {FORMAT_FIRST} to "
            f"{FORMAT_NEWEST}; choose one of them",
            ErrorCode.INVALID_REQUEST,
        )
    if wanted == before:
        return FormatChosen(before, wanted)
    if draft.journaling:
        raise ClusterError(
            "the metadata store is unavailable, and a format is chosen only in the store itself; "
            "try again when it is back",
            ErrorCode.MOVES_PAUSED,
        )
    _check_brokers(draft, wanted, sessions)
    if wanted < before:
        _check_unused(draft, wanted)
    if not request.validate_only:
        _choose(draft, wanted)
    return FormatChosen(before, wanted)


def check_moves(draft: Draft) -> None:
    """Raises ClusterError(FORMAT_TOO_OLD) while the cluster's format has no moves and cordons."""
    if draft.format < FORMAT_MOVES:
        raise ClusterError(
            f"the metadata of this cluster has format {draft.format}, and moves and cordons need "
            f"{FORMAT_MOVES}: when all brokers run this release, run `penstock cluster finalize`",
            ErrorCode.FORMAT_TOO_OLD,
        )


def check_hibernation(draft: Draft) -> None:
    """Raises ClusterError(FORMAT_TOO_OLD): an older controller would elect while it sleeps."""
    if draft.format < FORMAT_MOVES:
        raise ClusterError(
            f"the metadata of this cluster has format {draft.format}, and a cluster can hibernate "
            f"from {FORMAT_MOVES} on: when all brokers run this release, run "
            "`penstock cluster finalize`",
            ErrorCode.FORMAT_TOO_OLD,
        )


def check_configs(draft: Draft, configs: Mapping[str, str]) -> None:
    """Raises ClusterError(FORMAT_TOO_OLD) for a topic setting that an older release, which reads
    the cluster's format, does not know: its controllers could decide nothing about the topic."""
    new = [key for key in _NEW_SETTINGS if key in configs]
    if new and draft.format < FORMAT_MOVES:
        raise ClusterError(
            f"the metadata of this cluster has format {draft.format}, and a topic can set "
            f"{new[0]} from {FORMAT_MOVES} on: when all brokers run this release, run "
            "`penstock cluster finalize`",
            ErrorCode.FORMAT_TOO_OLD,
        )


def _check_brokers(draft: Draft, wanted: int, sessions: Sessions) -> None:
    problems = []
    for broker_id, broker in sorted(draft.cluster.brokers.items()):
        session = sessions.get(broker_id)
        if not broker.alive or session is None:
            problems.append(f"broker {broker_id} has no session")
        elif not session.formats:
            problems.append(f"broker {broker_id} has not registered again yet")
        elif wanted not in session.formats:
            release = session.software_version or "unknown"
            formats = list(session.formats)
            problems.append(f"broker {broker_id} (release {release}) reads {formats}")
    if problems:
        raise ClusterError(
            f"format {wanted} needs every registered broker to be there and to read it: "
            f"{_named(problems)}; upgrade or start them, or unregister those that no longer exist",
            ErrorCode.FORMAT_TOO_OLD,
        )


def _check_unused(draft: Draft, wanted: int) -> None:
    found = list(_uses(draft))
    if found:
        raise ClusterError(
            f"format {wanted} cannot hold what this cluster uses: {_named(found)}; wait until "
            "moves have ended, or cancel them, lift cordons, and unset settings (the copy rate: "
            "`penstock partitions throttle default`)",
            ErrorCode.INVALID_REQUEST,
        )


def _uses(draft: Draft) -> Iterator[str]:
    if draft.cluster.hibernating:
        yield "the cluster hibernates"
    for broker_id in draft.cluster.cordons:
        yield f"broker {broker_id} is cordoned"
    if draft.cluster.copy_rate is not None:
        by = draft.cluster.copy_rate_by
        yield f"a copy rate is set, by {by}" if by else "a copy rate is set"
    for topic in draft.topics():
        yield from _used_by(topic)


def _used_by(topic: TopicDocument) -> Iterator[str]:
    for key in _NEW_SETTINGS:
        if key in topic.configs:
            yield f"topic {topic.name!r} sets {key}"
    for index, partition in enumerate(topic.partitions):
        if partition.target:
            yield f"{topic.name}/{index} is moved to {listed(partition.target)}"
        elif partition.state.dropping:
            yield f"{topic.name}/{index} is deleted on {listed(partition.state.dropping)}"
        elif partition.state.damaged:
            yield f"{topic.name}/{index} is damaged on {listed(partition.state.damaged)}"


def _choose(draft: Draft, wanted: int) -> None:
    before = draft.cluster
    cluster: ClusterDocument = replace(before, format=wanted)
    if wanted < before.format:
        # That a broker is fresh is only advice.
        brokers = {key: replace(broker, fresh=False) for key, broker in before.brokers.items()}
        # Operators ask again when it is refused.
        cluster = replace(cluster, brokers=brokers, operator_epoch=None)
        for topic in draft.topics():
            if topic.format > wanted:
                draft.put_topic(topic)
    draft.put_cluster(cluster)
    draft.stored_only = True
    draft.decide(Severity.INFO, "format chosen", before=before.format, after=wanted)


def _named(found: list[str]) -> str:
    more = len(found) - _NAMED_MAX
    return "; ".join(found[:_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
