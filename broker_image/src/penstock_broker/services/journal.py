"""What a broker keeps for controllers while their metadata store is away (core.control.journal).

    data-dir/journal.json    promised epoch, newest journal; made with the first promise

One caller at a time: the file is durable before the answer leaves. A promise of a newer epoch
ends the session with an older controller, so that nobody waits for the one to notice the other.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.core.control.journal.holder import JournalHolder
from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import JournalServiceServicer
from penstock.rpc.journal import journal_from_wire, journal_to_wire
from penstock_broker.datadir import replace_file
from penstock_broker.observability import EventLog

FILE: Final = "journal.json"
_events = EventLog("journal")


class JournalService(JournalServiceServicer):
    """Served to controllers."""

    def __init__(self, folder: Path, promised: Callable[[int], None]) -> None:
        """`promised` is told every epoch. Raises ClusterError(DATA_CORRUPTED)."""
        self._path = folder / FILE
        self._promised = promised
        self._holder = _load(self._path)
        self._one_at_a_time = asyncio.Lock()

    def check_follows(self, controller_epoch: int) -> None:
        """Raises ClusterError(STALE_CONTROLLER_EPOCH) for one older than was promised."""
        if controller_epoch < self._holder.promised:
            raise self._stale(controller_epoch)

    # ------------------------------------------------------------ JournalService

    async def PromiseJournal(  # noqa: N802 - gRPC's name
        self,
        request: pb.PromiseJournalRequest,
        context: Any,  # noqa: ARG002
    ) -> pb.PromiseJournalResponse:
        """Durable when it is answered. Refuses with STALE_CONTROLLER_EPOCH."""
        epoch = ControllerEpoch(request.controller_epoch)
        async with self._one_at_a_time:
            await self._store(self._holder.promise(epoch), epoch)
            return pb.PromiseJournalResponse(journal=journal_to_wire(self._holder.journal))

    async def KeepJournal(  # noqa: N802 - gRPC's name
        self,
        request: pb.KeepJournalRequest,
        context: Any,  # noqa: ARG002
    ) -> pb.KeepJournalResponse:
        """Durable when it is answered. Refuses with STALE_CONTROLLER_EPOCH."""
        journal = journal_from_wire(request.journal)
        async with self._one_at_a_time:
            await self._store(self._holder.keep(journal), journal.controller_epoch)
        return pb.KeepJournalResponse()

    async def _store(self, holder: JournalHolder | None, epoch: ControllerEpoch) -> None:
        if holder is None:
            raise self._stale(epoch)
        if holder != self._holder:
            if holder.journal.documents and holder.journal != self._holder.journal:
                _events.warning(
                    "storing changes for a controller whose metadata store is unavailable",
                    controller_epoch=epoch,
                    sequence=holder.journal.sequence,
                    documents=len(holder.journal.documents),
                )
            try:
                await asyncio.to_thread(replace_file, self._path, msgspec.json.encode(holder))
            except OSError as error:
                raise ClusterError(
                    f"{self._path} cannot be written: {error.strerror}; this broker does not "
                    "count towards the majority that stores a controller's decisions while its "
                    "metadata store is unavailable",
                    ErrorCode.STORAGE_FAILED,
                ) from error
            self._holder = holder
        self._promised(epoch)

    def _stale(self, epoch: int) -> ClusterError:
        return ClusterError(
            f"controller epoch {epoch} is older than {self._holder.promised}, which this broker "
            "has promised to follow: another controller is taking over",
            ErrorCode.STALE_CONTROLLER_EPOCH,
        )


def _load(path: Path) -> JournalHolder:
    try:
        return msgspec.json.decode(path.read_bytes(), type=JournalHolder)
    except FileNotFoundError:
        return JournalHolder()
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{path} is damaged ({error}); restore it. It is needed only if the metadata store "
            "was unavailable when this broker stopped; otherwise, you can delete it",
            ErrorCode.DATA_CORRUPTED,
        ) from error
