"""The proposer's part of the journal: the documents of a store, even while it is unavailable.

    attached ──hold: a majority follows──▶ holding ──the first read or write──▶ detached
       ▲                                      │ lease renewed                     │
       └──────────────────────────────────────┴──── the next take-over ◀──lease renewed

Generators of questions (`Ask`), which the shell answers: a process with calls, the simulator with
events. Errors of the store are thrown into them. A defect ends the object (core.defect): what the
journal contains is no longer certain, and the next controller's take-over finds out.
"""

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.core.control.documents import CLUSTER_KEY
from penstock.core.control.journal.checks import problem_of
from penstock.core.control.journal.contract import (
    NO_JOURNAL,
    NOBODY,
    Ask,
    AskKeep,
    AskPromises,
    Holders,
    Journal,
    Kept,
    Promises,
    ReadStore,
    Stages,
    WriteStore,
)
from penstock.core.control.journal.documents import (
    applied,
    cluster_of,
    flat,
    metadata_version,
    missing,
    registered,
    registered_ids,
    restamped,
    version_of,
)
from penstock.core.control.storage import (
    Change,
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock.core.defect import stopped_by
from penstock.core.types import BrokerId, ControllerEpoch
from penstock.errors import ErrorCode, PenstockError

_R = TypeVar("_R")
Steps = Generator[Ask, object, _R]


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Writes, to the store or the journal, with unknown outcome: what they expected, the newest
    version and the sets of registered brokers that they would set."""

    expected: str | None
    metadata_version: int
    registered: frozenset[frozenset[int]]

    @classmethod
    def about(cls, change: Change) -> "_Doubt":
        """The part about one change of the write."""
        if isinstance(change, Delete):
            return cls(change.expected, 0, frozenset())
        wanted = {change.key: StoredText(change.text, "")}
        ids = frozenset({registered_ids(wanted)})
        return cls(change.expected, metadata_version(change.text), ids)


class JournaledDocuments:
    """The documents of a store, even while it is unavailable.

    `read` and `write` are for one thread (or task) at a time; `hold` may run beside them.
    """

    def __init__(self, takeover_min_brokers: int = 0) -> None:
        """`takeover_min_brokers`: how many must answer at a take-over; 0 = a majority."""
        self._takeover_min_brokers = takeover_min_brokers
        self._epoch = NOBODY
        """The epoch that this controller has written to the store; 0: it has not taken over."""
        self._found: dict[str, StoredText] = {}
        self._holders: Holders | None = None
        self._doubts: dict[str, _Doubt] = {}
        self._journal: Journal | None = None
        self._sequence = 0
        """Of the last journal sent, even if no majority stored it: a broker may have it."""
        self._holding = False
        self._ended = False
        self._error: PenstockError | None = None
        self.distrusted: Mapping[BrokerId, str] = {}
        """Brokers whose journals the last take-over did not adopt, and why."""

    @property
    def error(self) -> PenstockError | None:
        """Why nothing is read or written any more; None if there is no error."""
        return self._error

    @property
    def detached(self) -> bool:
        """Changes go to the journal, until the next take-over; from the first attempt on."""
        return self._sequence > 0

    @property
    def journaling(self) -> bool:
        """The next change goes to the journal."""
        return self._holding or self.detached

    def begin_take_over(self) -> None:
        """The next `read` belongs to a new take-over: what is known here no longer counts."""
        self._epoch, self._sequence, self._doubts = NOBODY, 0, {}
        self._journal, self._holding, self._ended = None, False, False

    def lease_answered(self) -> None:
        """The store answers again. A journal ends: a controller that takes over reads its
        content."""
        self._holding = False
        self._ended = self.detached

    def hold(self) -> Steps[bool]:
        """Whether a majority still follows this controller while the store is unavailable.

        From the first True on, changes are journaled.
        """
        return self._guarded("hold", self._hold())

    def read(self) -> Steps[dict[str, StoredText]]:
        """All documents. Raises StoreUnavailableError."""
        return self._guarded("read", self._read())

    def write(self, stages: Stages) -> Steps[Mapping[str, str]]:
        """The new versions. Raises WriteConflictError, StoreUnavailableError (unknown)."""
        return self._guarded("write", self._write(stages))

    def _guarded(self, what: str, steps: Steps[_R]) -> Steps[_R]:
        """Any exception but those of the store ends this object; `error` is raised from then on."""
        if self._error is not None:
            raise self._error
        try:
            result = yield from steps
        except PenstockError:
            raise
        except Exception as defect:
            self._error = stopped_by(defect, "the journal", what, ErrorCode.INTERNAL)
            raise self._error from defect
        if self._error is not None:
            raise self._error  # meanwhile: what is known here no longer counts
        return result

    def _hold(self) -> Steps[bool]:
        holders = self._holders
        if not self._epoch or holders is None or self._ended or self._doubts_who_is_registered:
            return False
        kept = yield AskKeep(holders, self._journal or Journal(self._epoch))
        assert isinstance(kept, Kept)
        self._holding = kept.count >= holders.majority
        return self._holding

    # ------------------------------------------------------------ reading

    def _read(self) -> Steps[dict[str, StoredText]]:
        self._check_not_ended()
        if self.journaling:
            yield from self._begin_journal()
            return dict(self._found)
        answer = yield ReadStore()
        assert isinstance(answer, Mapping)
        found: dict[str, StoredText] = dict(answer)
        if not self._epoch:
            found = yield from self._learn(found)
        self._adopt(found)
        # What has a different version now cannot be changed by a write that expected the old one.
        self._doubts = {
            key: doubt
            for key, doubt in self._doubts.items()
            if version_of(found, key) == doubt.expected
        }
        return dict(found)

    def _learn(self, found: dict[str, StoredText]) -> Steps[dict[str, StoredText]]:
        """Taking over: asks for what counts, and writes what is missing to the store."""
        cluster, holders = cluster_of(found), registered(found)
        if cluster is None or holders is None:
            return found
        epoch = ControllerEpoch(cluster.controller_epoch + 1)
        newest = yield from self._newest_promised(holders, epoch, found)
        # A broker that has promised accepts no answers of the controller before: all that it acts
        # on is stored.
        again = yield ReadStore()
        assert isinstance(again, Mapping)
        if version_of(again, CLUSTER_KEY) != version_of(found, CLUSTER_KEY):
            raise StoreUnavailableError(
                "the cluster changed while brokers gave their promises; reading again"
            )
        found = dict(again)
        stages = missing(newest, found) if newest is not None else ()
        if not stages:
            return found
        try:
            versions = yield WriteStore(stages)
        except WriteConflictError as error:
            raise StoreUnavailableError(f"while storing journaled changes: {error}") from None
        assert isinstance(versions, Mapping)
        return applied(found, stages, versions)

    def _newest_promised(
        self, holders: Holders, epoch: ControllerEpoch, found: Mapping[str, StoredText]
    ) -> Steps[Journal | None]:
        """Of a majority that has promised; None: there is none of the epoch before.

        A broker whose journal must not be adopted has not reported: others are asked instead.
        """
        wanted = self._takeover_min_brokers or holders.majority
        self.distrusted = {}
        while True:
            asked = holders.without(self.distrusted)
            promises = yield AskPromises(asked, epoch)
            assert isinstance(promises, Promises)
            if promises.refused:
                raise StoreUnavailableError(
                    f"a broker has promised a newer controller epoch than {epoch}: another "
                    "controller is taking over, or this metadata is older than what the brokers "
                    "have; reading again"
                )
            # Journals of older epochs were learned by the controller that raised the epoch to this.
            current = {
                broker: journal
                for broker, journal in promises.journals.items()
                if journal.controller_epoch == epoch - 1
            }
            trusted, bad = _trusted(current, found, holders.cluster_id)
            self.distrusted = {**self.distrusted, **bad}
            reported = len(promises.journals) - len(bad)
            if reported >= wanted:
                return max(trusted, key=lambda journal: journal.sequence, default=None)
            if not bad or len(bad) == len(asked.brokers):
                raise StoreUnavailableError(self._too_few(reported, wanted, holders))

    def _too_few(self, reported: int, wanted: int, holders: Holders) -> str:
        text = (
            f"{reported} of {len(holders.brokers)} registered brokers have reported the changes "
            "they stored while the metadata store was unavailable; "
            f"waiting until {wanted} have (controller.takeover.min.brokers)"
        )
        if self.distrusted:
            text += (
                f"; what {_listed(self.distrusted)} kept cannot be used: restore the file "
                "journal.json in the data directory, or remove it if its changes may be lost"
            )
        return text

    # ------------------------------------------------------------ writing

    def _write(self, stages: Stages) -> Steps[Mapping[str, str]]:
        self._check_not_ended()
        if self.journaling:
            journal = yield from self._begin_journal()
            return (yield from self._write_journal(journal, stages))
        try:
            versions = yield WriteStore(stages)
        except (StoreUnavailableError, WriteConflictError):
            # Even after a conflict, a part may have been written and not been read again yet.
            for change in flat(stages):
                self._remember_doubt(change)
            raise
        assert isinstance(versions, Mapping)
        self._found = applied(self._found, stages, versions)
        if CLUSTER_KEY in versions:
            self._adopt(self._found)
            cluster = cluster_of(self._found)
            self._epoch = NOBODY if cluster is None else cluster.controller_epoch
        return versions

    def _remember_doubt(self, change: Change) -> None:
        doubt, before = _Doubt.about(change), self._doubts.get(change.key)
        if before is not None and before.expected == doubt.expected:
            newest = max(before.metadata_version, doubt.metadata_version)
            doubt = replace(
                doubt, metadata_version=newest, registered=before.registered | doubt.registered
            )
        self._doubts[change.key] = doubt

    def _write_journal(self, journal: Journal, stages: Stages) -> Steps[Mapping[str, str]]:
        documents, removed = dict(journal.documents), dict(journal.removed)
        for change in flat(stages):
            version = version_of(self._found, change.key)
            if change.expected != version:
                raise WriteConflictError(change.key, change.expected, version)
            if isinstance(change, Put):
                documents[change.key] = change.text
                removed.pop(change.key, None)
            else:
                documents.pop(change.key, None)
                removed[change.key] = metadata_version(self._found[change.key].text)
        try:
            token = _token((yield from self._keep(documents, removed)))
        except StoreUnavailableError:
            # A broker may keep it: later decisions must be newer.
            for change in flat(stages):
                self._remember_doubt(change)
            raise
        versions = {change.key: token for change in flat(stages) if isinstance(change, Put)}
        self._found = applied(self._found, stages, versions)
        return versions

    def _begin_journal(self) -> Steps[Journal]:
        """The journal, with what is in doubt restamped. Raises StoreUnavailableError."""
        if self._journal is not None and not self._doubts:
            return self._journal
        if not self._epoch or self._doubts_who_is_registered:
            raise StoreUnavailableError(
                "the metadata store is unavailable, and it is not certain which brokers are "
                "registered in it"
            )
        versions = [metadata_version(stored.text) for stored in self._found.values()]
        versions += [doubt.metadata_version for doubt in self._doubts.values()]
        stamp = max(versions, default=0) + 1
        before = self._journal or Journal(self._epoch)
        known = {
            key: restamped(self._found[key].text, stamp)
            for key in self._doubts
            if key in self._found
        }
        gone = {key: stamp for key in self._doubts if key not in self._found}
        journal = yield from self._keep({**before.documents, **known}, {**before.removed, **gone})
        self._doubts = {}
        for key, text in known.items():
            self._found[key] = StoredText(text, _token(journal))
        return journal

    def _keep(self, documents: Mapping[str, str], removed: Mapping[str, int]) -> Steps[Journal]:
        assert self._holders is not None, (
            "a controller that has taken over knows the registered brokers"
        )
        self._sequence += 1
        journal = Journal(self._epoch, self._sequence, documents, removed)
        kept = yield AskKeep(self._holders, journal)
        assert isinstance(kept, Kept)
        if kept.count < self._holders.majority:
            why = "one follows another controller" if kept.refused else "the others do not answer"
            raise StoreUnavailableError(
                f"the metadata store is unavailable, and only {kept.count} of "
                f"{len(self._holders.brokers)} brokers have stored the change "
                f"({self._holders.majority} must): {why}"
            )
        self._journal = journal
        return journal

    # ------------------------------------------------------------ state

    def _adopt(self, found: dict[str, StoredText]) -> None:
        """Adopts a stored state. While detached, the holders stay those in the store."""
        self._found = found
        self._holders = registered(found)

    @property
    def _doubts_who_is_registered(self) -> bool:
        doubt = self._doubts.get(CLUSTER_KEY)
        if doubt is None or self._journal is not None:
            return False  # while detached, the holders are those in the store
        return doubt.registered != {registered_ids(self._found)}

    def _check_not_ended(self) -> None:
        if self._ended:
            raise StoreUnavailableError("this controller is taking over again; nothing was done")


def _trusted(
    journals: Mapping[BrokerId, Journal], found: Mapping[str, StoredText], cluster_id: str
) -> tuple[list[Journal], dict[BrokerId, str]]:
    """The journals that may be adopted, and why the others may not."""
    trusted, bad = [NO_JOURNAL], {}
    for broker, journal in journals.items():
        if why := problem_of(journal, trusted[-1], found, cluster_id):
            bad[broker] = why
        else:
            trusted.append(journal)
    return trusted[1:], bad


def _listed(brokers: Collection[BrokerId]) -> str:
    return ", ".join(f"broker {number}" for number in sorted(brokers))


def _token(journal: Journal) -> str:
    """The version of documents changed by this journal; no store has such a version."""
    return f"journal-{journal.controller_epoch}-{journal.sequence}"
