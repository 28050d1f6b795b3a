"""Damaged replicas: read from start to end, mended from others or copied again, opened again.

    Damage.found ─▶ read all ─▶ a batch that cannot be read: `Donors` ─▶ written, fsynced
                       │                 └─ nobody has it, too many, or no header: rebuild
                       └─▶ all of it was read ─▶ the leader goes on; who has stopped is opened

What is asked, and when a log may be given up: `core.replication.mending`. A damaged batch is looked
for from the start of the log, because where one is there may be more. What is not available now is
asked for again when an image comes, or a pause is over. A marked replica is then reported as sound;
before FORMAT_MOVES no mark is stored, and it only comes back into the ISR.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication.follower import UnreadableLogError
from penstock.core.replication.losses import emptied, span, without_payload
from penstock.core.replication.mending import donors, is_mendable, may_open_again, may_rebuild
from penstock.core.types import BrokerId, Offset, ReplicaKey
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.exact import Donors
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.verifying import read_resting

_RETRY_S: Final = 5.0
_events = EventLog("mending")


class Reopen(Protocol):
    """Opens a replica again, as `ReplicaAssignment.reopen`, with what the broker does around it."""

    async def __call__(
        self, replica: Replica, *, empty: bool, may_still: Callable[[], bool]
    ) -> Replica | None:
        """Returns the new replica; None: the old one is not here any more, or must not be opened
        again by now: others may change replicas first."""
        ...


@dataclass(slots=True)
class _Case:
    """What is known of one damaged replica. `lost`: batches that nobody has given yet."""

    replica: Replica
    lost: list[BatchHeader] = field(default_factory=list)
    mended: int = 0
    hopeless: str = ""
    """Why its log cannot be mended; empty: it may be."""


class Mending:
    """Mends damaged replicas, one after the other."""

    def __init__(
        self,
        replicas: ReplicaSet,
        reader: LogReader,
        view: ClusterView,
        donors: Donors,
        reopen: Reopen,
    ) -> None:
        self._replicas = replicas
        self._reader = reader
        self._view = view
        self._donors = donors
        self._reopen = reopen
        self._cases: dict[ReplicaKey, _Case] = {}
        self._reading: tuple[ReplicaKey, Offset, Offset] | None = None
        """The log that is read now, how far, and up to where."""
        self._opened_again: set[ReplicaKey] = set()
        """Replicas that a defect has stopped in this run of the broker."""
        self._opening: Replica | None = None
        """The one treated now, once it is opened again: before, only others remove it."""
        self._wake = asyncio.Event()
        self.on_mended: Callable[[ReplicaKey], None] = lambda _key: None
        """Called when a log can be read again as a whole."""
        self.mended_batches = 0
        self.rebuilt_replicas = 0

    def changed(self) -> None:
        """A replica was found damaged, or an image was applied."""
        self._wake.set()

    async def run(self) -> None:
        """Mends until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_S if self._cases else None):
                        await self._wake.wait()
                self._wake.clear()
                await self._round()
        finally:
            await self._donors.close()

    async def _round(self) -> None:
        replicas = self._replicas
        wanted = [
            replica
            for key in replicas.damage.found
            if key not in replicas.damage.missing
            and (replica := replicas.by_key.get(key)) is not None
        ]
        keys = {replica.key for replica in wanted}
        self._cases = {key: case for key, case in self._cases.items() if key in keys}
        for replica in wanted:
            state = self._view.state(replica.key)
            again = replica.key in self._opened_again
            if state is None or not may_open_again(
                replica.machine.error, state, replicas.broker_id, before=again
            ):
                continue
            self._opening = None
            try:
                await self._treat(replica)
            except PenstockError as error:
                if self._opening is replica and replicas.by_key.get(replica.key) is not replica:
                    raise  # neither the old one is there nor a new one
                _events.warning("replica not mended yet", replica=replica, reason=str(error))

    async def _treat(self, replica: Replica) -> None:
        """Does what can be done for it now. Raises PenstockError: the rest has to wait."""
        case, could_rebuild = self._cases.get(replica.key), self._may_rebuild(replica)
        if case is None or case.replica is not replica:
            try:
                case = self._cases[replica.key] = await self._read_all(replica)
            finally:
                self._reading = None
        else:
            await self._try_again(case)
        if not could_rebuild and self._may_rebuild(replica):
            # Somebody has become sound since: it may have been asked before, and have it now.
            await self._try_again(case)
        if case.hopeless or case.lost:
            await self._rebuild(case)
            return
        _events.info("replica mended", replica=replica, batches=case.mended)
        self._cases.pop(replica.key, None)
        self.on_mended(replica.key)
        error = replica.machine.error
        if error is None:
            self._replicas.mended(replica)
            return
        if not isinstance(error, UnreadableLogError):
            self._opened_again.add(replica.key)
        opened = await self._open_again(replica, empty=False, may_still=lambda: True)
        if opened is not None:
            self._replicas.found_sound(opened)

    async def _open_again(
        self, replica: Replica, *, empty: bool, may_still: Callable[[], bool]
    ) -> Replica | None:
        self._opening = replica
        return await self._reopen(replica, empty=empty, may_still=may_still)

    def lost(self, key: ReplicaKey) -> tuple[BatchHeader, ...] | None:
        """The batches of a damaged log that nobody has given; None: not known yet, or undamaged.

        There can be more of them, if the log is not worth mending.
        """
        case = self._cases.get(key)
        return None if case is None else tuple(case.lost)

    def why_hopeless(self, key: ReplicaKey) -> str:
        """Why a damaged log cannot be mended batch by batch; empty: it can, for all that is
        known."""
        case = self._cases.get(key)
        return "" if case is None else case.hopeless

    def says(self, key: ReplicaKey) -> str:
        """What is done about a damaged log, for people; empty: it is not known to be damaged."""
        replicas = self._replicas
        if key not in replicas.damage.found:
            return ""
        if key in replicas.damage.missing:
            return "its log is missing; it is copied once somebody sound leads"
        if self._reading is not None and self._reading[0] == key:
            _, offset, end = self._reading
            return f"its log is being read, offset {offset} of {end}"
        case = self._cases.get(key)
        if case is None:
            return "its log has yet to be read"
        if case.hopeless:
            return f"{case.hopeless}; it is copied again once somebody sound leads"
        if case.lost:
            offsets = ", ".join(map(span, case.lost))
            return f"nobody has offsets {offsets} now; all replicas are asked again and again"
        return "it is about to be opened again"

    def gave_up(self, key: ReplicaKey, headers: Collection[BatchHeader]) -> None:
        """These batches are not lost any more: a person has given them up, and they are emptied."""
        case = self._cases.get(key)
        if case is not None:
            case.lost = [one for one in case.lost if one not in headers]
            if case.hopeless:
                del self._cases[key]  # not all of its damage is known: read the whole log again
        self._wake.set()

    # ------------------------------------------------------------ mending

    async def _read_all(self, replica: Replica) -> _Case:
        """Reads the whole log, and mends on the way what can be mended."""
        case, found = await self._trimmed(replica), list[BatchHeader]()
        marks = replica.marks
        offset, end = marks.log_start_offset, marks.written_end
        _events.info("reading a damaged replica", replica=replica, offset=offset, up_to=end)
        while offset < end and not case.hopeless:
            self._reading = replica.key, offset, end
            try:
                offset = await read_resting(self._reader, replica, offset, end)
            except PenstockError as error:
                if error.code is not ErrorCode.DATA_CORRUPTED:
                    raise
                header = await self._header(case, offset)
                if header is None:
                    break
                offset = header.next_offset
                if await self._is_readable(replica, header):
                    continue  # what is damaged is further on in what was read at once
                found.append(header)
                if not is_mendable(found):
                    case.hopeless = f"{len(found)} damaged batches up to offset {offset}"
                    case.lost.append(header)
                elif not await self._mend(case, header):
                    case.lost.append(header)
        return case

    async def _trimmed(self, replica: Replica) -> _Case:
        """A new case, with nothing left before the log start, which nobody would mend."""
        if not replica.is_opened:
            return _Case(replica, hopeless="its log could not be opened")
        try:
            await self._replicas.trim(replica)
        except PenstockError as error:
            if error.code is not ErrorCode.DATA_CORRUPTED:
                raise
            replica.index_damaged = True
        damaged = "nothing can be removed from its log, whose index is damaged"
        return _Case(replica, hopeless=damaged if replica.index_damaged else "")

    async def _header(self, case: _Case, offset: Offset) -> BatchHeader | None:
        """What the batch that cannot be read must be; None: that is damaged, too, or it is gone."""
        try:
            return await self._reader.stored_header(case.replica, offset)
        except PenstockError as error:
            if error.code is not ErrorCode.DATA_CORRUPTED:
                raise
            case.hopeless = f"the index of its log cannot be read at offset {offset}"
            return None

    async def _try_again(self, case: _Case) -> None:
        if not case.hopeless:
            lost = [one for one in case.lost if not await self._is_readable(case.replica, one)]
            case.lost = [one for one in lost if not await self._mend(case, one)]

    async def _mend(self, case: _Case, header: BatchHeader) -> bool:
        """Whether somebody has the batch, and it can be read here now. Raises PenstockError."""
        replica = case.replica
        batch = without_payload(header) or await self._from_others(replica, header)
        if batch is not None:
            await self._replicas.mend(replica, batch)
        elif await self._from_others(replica, emptied(header).header) is not None:
            await self._replicas.accept_loss(replica, [header])
        else:
            _events.error("nobody has a damaged batch now", replica=replica, offsets=span(header))
            return False
        if not await self._is_readable(replica, header):
            case.hopeless = f"what is written at offset {header.base_offset} cannot be read"
            return False
        case.mended += 1
        self.mended_batches += 1
        what = "loss of a batch accepted" if batch is None else "batch mended"
        _events.info(what, replica=replica, offsets=span(header))
        return True

    async def _from_others(self, replica: Replica, header: BatchHeader) -> Batch | None:
        """The batch with this header, if another replica has it."""
        for broker_id in self._asked(replica):
            try:
                return await self._donors.exact(broker_id, replica.key, header)
            except PenstockError as error:
                _events.info(
                    "no batch from another replica",
                    replica=replica,
                    offset=header.base_offset,
                    donor=broker_id,
                    reason=str(error),
                )
        return None

    async def _is_readable(self, replica: Replica, header: BatchHeader) -> bool:
        try:
            await self._reader.read_stored(replica, header.base_offset, 1, header.next_offset)
        except PenstockError as error:
            if error.code is not ErrorCode.DATA_CORRUPTED:
                raise
            return False
        return True

    def _asked(self, replica: Replica) -> tuple[BrokerId, ...]:
        state = self._view.state(replica.key)
        return () if state is None else donors(state, self._replicas.broker_id, self._live())

    def _live(self) -> frozenset[BrokerId]:
        return frozenset(one for one, info in self._view.brokers.items() if info.alive)

    # ------------------------------------------------------------ rebuilding

    async def _rebuild(self, case: _Case) -> None:
        """Drops the log, if nobody relies on it, and copies it again. Raises PenstockError."""
        replica = case.replica
        self._replicas.damage.give_up(replica.key)
        if not self._may_rebuild(replica):
            return
        why = case.hopeless or f"nobody has {len(case.lost)} of its damaged batches"
        _events.warning("replica is copied again", replica=replica, reason=why)
        opened = await self._open_again(
            replica, empty=True, may_still=lambda: self._may_rebuild(replica)
        )
        if opened is None:
            return
        self._cases.pop(replica.key, None)  # not before: a full disk may have refused to drop it
        self.rebuilt_replicas += 1
        # Nothing damaged is left, and who copies a log gets no seat before it has all of it, from a
        # leader that knows of the new one.
        self._replicas.damage.note_rebuilt(opened.key)

    def _may_rebuild(self, replica: Replica) -> bool:
        state = self._view.state(replica.key)
        if state is None:
            return False
        local, version = self._replicas.broker_id, self._replicas.damage.confirmed.get(replica.key)
        known = version is not None and version <= self._view.metadata_version
        return (
            known and replica.machine.error is not None and may_rebuild(state, local, self._live())
        )
