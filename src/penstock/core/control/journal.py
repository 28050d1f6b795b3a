"""A journal on the brokers: what a controller decides while its metadata store is away. Pure.

    proposer  JournaledDocuments  one per controller: read, write, hold (journaled.py)
    acceptor  JournalHolder       one per broker: promised epoch, newest journal

The journal is one value, cumulative: all documents as they are after every change since the
store went away. It counts once a majority of the brokers registered in the *store* keep it. One
register, one proposer per epoch: Paxos with the controller epoch as ballot.

- A controller that takes over reads the store at epoch e, then asks a majority to promise
  e + 1 and to say what they keep. Two majorities share a broker: it learns of everything that
  counts, and nothing of a lower epoch counts from then on. It reads the store again, because a
  broker may act on what was stored before it promised; puts the newest journal there; raises the
  epoch; and only then decides anything.
- Raising the epoch in the store is a compare-and-swap on what was read before the promises, so
  an epoch has one owner, and a proposer writes its journals under an epoch that it owns.
- Journals of older epochs than the store's count no more: whoever raised it has read them. And
  whoever has sent a journal never again writes to the store under that epoch, only under the next.
- A document of a journal goes into the store if its metadata version is newer. A write to the
  store that was never answered may still pass: documents it would change are in the journal from
  its beginning, restamped with a version above that write's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.core.control.documents import (
    CLUSTER_KEY,
    BrokerRegistration,
    ClusterDocument,
    decode_cluster,
)
from penstock.core.control.storage import Change, Delete, Put, StoredText
from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError

HOLDERS_MIN: Final = 3
"""Of fewer brokers one that dies takes the majority with it: a journal would be no use, and
waiting for both of two at a take-over would cost availability."""
Stages = Sequence[Sequence[Change]]
NOBODY = ControllerEpoch(0)


@dataclass(frozen=True, slots=True)
class Journal:
    """`documents`: text by key. `removed`: the metadata version up to which a key is gone."""

    controller_epoch: ControllerEpoch
    sequence: int = 0
    documents: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)

    @property
    def number(self) -> tuple[int, int]:
        """Newer journals have larger ones."""
        return (self.controller_epoch, self.sequence)


# ---------------------------------------------------------------- acceptor


@dataclass(frozen=True, slots=True)
class JournalHolder:
    """A broker's part. The new state must be durable before the answer leaves."""

    promised: ControllerEpoch = NOBODY
    journal: Journal = Journal(NOBODY)

    def promise(self, epoch: ControllerEpoch) -> "JournalHolder | None":
        """Refuses everything older than `epoch` from now on; None: promised a newer one."""
        return None if epoch < self.promised else replace(self, promised=epoch)

    def keep(self, journal: Journal) -> "JournalHolder | None":
        """Keeps it unless a newer one is kept; None: promised a newer epoch."""
        if journal.controller_epoch < self.promised:
            return None
        newest = max(self.journal, journal, key=lambda one: one.number)
        return JournalHolder(journal.controller_epoch, newest)


# ---------------------------------------------------------------- what a proposer asks


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Answer: Mapping[str, StoredText]."""


@dataclass(frozen=True, slots=True)
class WriteStore:
    """Answer: the new versions by key."""

    stages: Stages


@dataclass(frozen=True, slots=True)
class Holders:
    """The brokers that count, by the store."""

    cluster_id: str
    brokers: tuple[BrokerRegistration, ...]

    @property
    def majority(self) -> int:
        return len(self.brokers) // 2 + 1


@dataclass(frozen=True, slots=True)
class AskPromises:
    """Answer: `Promises`, as soon as a majority promised, one refused, or time is up."""

    holders: Holders
    epoch: ControllerEpoch


@dataclass(frozen=True, slots=True)
class AskKeep:
    """Answer: `Kept`, as soon as a majority keeps it, one refused, or time is up."""

    holders: Holders
    journal: Journal


Ask = ReadStore | WriteStore | AskPromises | AskKeep


@dataclass(frozen=True, slots=True)
class Promises:
    """`journals`: one of each broker that promised. `refused`: one has promised a newer epoch."""

    journals: Sequence[Journal]
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """`count` brokers keep it. `refused`: one has promised a newer epoch."""

    count: int
    refused: bool = False


# ---------------------------------------------------------------- documents


def missing(journal: Journal, found: Mapping[str, StoredText]) -> Stages:
    """The changes that bring a store to the journal's state; topics before the cluster.

    The cluster's document says who the holders are: it changes when nothing else is missing.
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
    except (ValueError, TypeError, KeyError):
        return -1


def restamped(text: str, version: int) -> str:
    found = json.loads(text)
    found["metadata_version"] = version
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def cluster_of(found: Mapping[str, StoredText]) -> ClusterDocument | None:
    """None as well if it is unreadable: who loads it says what is wrong with it."""
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
    """Of all brokers, few or many."""
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
