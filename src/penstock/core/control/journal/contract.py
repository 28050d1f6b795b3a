"""What a journal is, what its proposer asks of the shell, and the answers.

JournaledDocuments ──▶ Ask: ReadStore, WriteStore, AskPromises, AskKeep ──▶ shell ──▶ answer
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.core.control.documents import BrokerRegistration
from penstock.core.control.storage import Change
from penstock.core.types import BrokerId, ControllerEpoch

Stages = Sequence[Sequence[Change]]
NOBODY: Final = ControllerEpoch(0)


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


NO_JOURNAL: Final = Journal(NOBODY)
"""Older than any."""


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
    left_out: int = 0
    """How many more count, and are not asked."""

    @property
    def majority(self) -> int:
        return (len(self.brokers) + self.left_out) // 2 + 1

    def without(self, ids: Collection[BrokerId]) -> "Holders":
        """The same majority, of which these are not asked."""
        others = tuple(one for one in self.brokers if one.broker_id not in ids)
        gone = len(self.brokers) - len(others)
        return replace(self, brokers=others, left_out=self.left_out + gone)


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
    """`journals`: of each broker that promised. `refused`: one has promised a newer epoch."""

    journals: Mapping[BrokerId, Journal]
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """`count` brokers keep it. `refused`: one has promised a newer epoch."""

    count: int
    refused: bool = False
