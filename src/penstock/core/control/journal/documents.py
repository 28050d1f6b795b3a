"""Stored documents beside a journal: which is newer, who is registered, what a store lacks.

A document that cannot be read is older than any: loading it reports what is wrong.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.control.documents import (
    CLUSTER_KEY,
    ClusterDocument,
    decode_cluster,
)
from penstock.core.control.journal.contract import Holders, Journal, Stages
from penstock.core.control.storage import Change, Delete, Put, StoredText
from penstock.errors import ClusterError

HOLDERS_MIN: Final = 3
"""With fewer brokers, the death of one ends the majority: a journal would be useless, and waiting
for both of two brokers at a takeover would cost availability."""


def missing(journal: Journal, found: Mapping[str, StoredText]) -> Stages:
    """The changes that bring a store to the journal's state; topics before the cluster.

    The cluster's document defines the holders: it changes when nothing else is missing.
    """
    puts = [
        Put(key, text, version_of(found, key))
        for key, text in journal.documents.items()
        if key not in found or metadata_version(found[key].text) < metadata_version(text)
    ]
    deletes = [
        Delete(key, found[key].version)
        for key, version in journal.removed.items()
        if key in found and metadata_version(found[key].text) <= version
    ]
    stages: list[Sequence[Change]] = [
        [put for put in puts if put.key != CLUSTER_KEY],
        deletes,
        [put for put in puts if put.key == CLUSTER_KEY],
    ]
    return [stage for stage in stages if stage]


def metadata_version(text: str) -> int:
    """The metadata version of a document; -1 if it cannot be read: anything is newer."""
    try:
        found = json.loads(text)
        return int(found["metadata_version"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return -1


def restamped(text: str, version: int) -> str:
    found = json.loads(text)
    found["metadata_version"] = version
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def cluster_of(found: Mapping[str, StoredText]) -> ClusterDocument | None:
    """None also if it is unreadable: loading it reports what is wrong."""
    stored = found.get(CLUSTER_KEY)
    try:
        return None if stored is None else decode_cluster(stored.text, CLUSTER_KEY)
    except ClusterError:
        return None


def registered(found: Mapping[str, StoredText]) -> Holders | None:
    """None if there are too few, or the document cannot be read."""
    cluster = cluster_of(found)
    if cluster is None or len(cluster.brokers) < HOLDERS_MIN:
        return None
    return Holders(cluster.cluster_id, tuple(cluster.brokers.values()))


def registered_ids(found: Mapping[str, StoredText]) -> frozenset[int]:
    """The ids of all brokers, few or many."""
    cluster = cluster_of(found)
    return frozenset() if cluster is None else frozenset(cluster.brokers)


def version_of(found: Mapping[str, StoredText], key: str) -> str | None:
    stored = found.get(key)
    return None if stored is None else stored.version


def flat(stages: Stages) -> list[Change]:
    return [change for stage in stages for change in stage]


def applied(
    found: Mapping[str, StoredText], stages: Stages, versions: Mapping[str, str]
) -> dict[str, StoredText]:
    state = dict(found)
    for change in flat(stages):
        if isinstance(change, Put):
            state[change.key] = StoredText(change.text, versions[change.key])
        else:
            state.pop(change.key, None)
    return state
