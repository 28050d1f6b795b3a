"""The journal for controllers while their metadata store is unavailable (core.control.journal).

    data-dir/journal.json    promised epoch, newest journal; created with the first promise

One call at a time, in a thread: the file is durable before the answer is sent, and a write that has
begun is finished even if the caller has gone. A promise of a newer epoch ends the session with an
older controller, so that nothing waits for one controller to notice the other; so it does once it
is durable, whoever still waits for the answer.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeAlias

import msgspec

from penstock.core.control.journal.checks import check_documents, check_epoch
from penstock.core.control.journal.holder import JournalHolder
from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import JournalServiceServicer
from penstock.rpc.journal import journal_from_wire, journal_to_wire
from penstock_broker.durable_files import SmallFile
from penstock_broker.observability import EventLog
from penstock_broker.serving.callers import Role
from penstock_broker.serving.servers import require_role

_Change: TypeAlias = Callable[[JournalHolder], JournalHolder | None]
_events = EventLog("journal")


class JournalService(JournalServiceServicer):
    """The service that controllers call."""

    def __init__(
        self,
        file: SmallFile,
        executor: Executor,
        promised: Callable[[int], None],
        seen: Callable[[], int] = lambda: 0,
    ) -> None:
        """`executor` has one thread. `promised` is called with every promised epoch; `seen` returns
        the newest that this broker has heard of.

        Raises ClusterError(DATA_CORRUPTED).
        """
        self._file = file
        self._executor = executor
        self._promised = promised
        self._seen = seen
        self._holder = _load(file)

    @property
    def promised(self) -> ControllerEpoch:
        """The oldest controller epoch that this broker still follows; 0: any."""
        return self._holder.promised

    def check_follows(self, controller_epoch: int) -> None:
        """Raises ClusterError(STALE_CONTROLLER_EPOCH) for an epoch older than the promised one."""
        if controller_epoch < self._holder.promised:
            raise self._stale(controller_epoch)

    # ------------------------------------------------------------ JournalService

    async def PromiseJournal(  # noqa: N802 - gRPC's name
        self,
        request: pb.PromiseJournalRequest,
        context: Any,  # noqa: ARG002
    ) -> pb.PromiseJournalResponse:
        """Durable before it is answered. Refuses with STALE_CONTROLLER_EPOCH, INVALID_REQUEST."""
        require_role(Role.CONTROLLER, "use the journal")
        epoch = ControllerEpoch(request.controller_epoch)
        self._check_epoch(epoch)
        kept = await self._change(epoch, lambda holder: holder.promise(epoch))
        return pb.PromiseJournalResponse(journal=journal_to_wire(kept.journal))

    async def KeepJournal(  # noqa: N802 - gRPC's name
        self,
        request: pb.KeepJournalRequest,
        context: Any,  # noqa: ARG002
    ) -> pb.KeepJournalResponse:
        """Durable before it is answered. Refuses with STALE_CONTROLLER_EPOCH, INVALID_REQUEST."""
        require_role(Role.CONTROLLER, "use the journal")
        journal = journal_from_wire(request.journal)
        self._check_epoch(journal.controller_epoch)

        def keep(holder: JournalHolder) -> JournalHolder | None:
            check_documents(journal, holder.journal, request.cluster_id)
            return holder.keep(journal)

        await self._change(journal.controller_epoch, keep)
        return pb.KeepJournalResponse()

    def _check_epoch(self, epoch: ControllerEpoch) -> None:
        check_epoch(epoch, max(self._holder.promised, self._seen()))

    async def _change(self, epoch: ControllerEpoch, change: _Change) -> JournalHolder:
        loop = asyncio.get_running_loop()
        storing = loop.run_in_executor(self._executor, self._store, epoch, change)
        storing.add_done_callback(partial(self._stored, epoch))
        return await asyncio.shield(storing)

    def _stored(self, epoch: ControllerEpoch, storing: "asyncio.Future[JournalHolder]") -> None:
        if not storing.cancelled() and storing.exception() is None:
            self._promised(epoch)

    def _store(self, epoch: ControllerEpoch, change: _Change) -> JournalHolder:
        """Applies and stores a change. Only in the executor's thread, so one at a time."""
        holder = change(self._holder)
        if holder is None:
            raise self._stale(epoch)
        if holder == self._holder:
            return holder
        if holder.journal.documents and holder.journal != self._holder.journal:
            _events.warning(
                "keeping changes for a controller whose store is unavailable",
                controller_epoch=epoch,
                sequence=holder.journal.sequence,
                documents=len(holder.journal.documents),
            )
        try:
            self._file.replace(msgspec.json.encode(holder))
        except OSError as error:
            raise ClusterError(
                f"{self._file.path} cannot be written: {error.strerror}; this broker does not "
                "count in the majority that keeps the metadata journal",
                ErrorCode.STORAGE_FAILED,
            ) from error
        self._holder = holder
        return holder

    def _stale(self, epoch: int) -> ClusterError:
        return ClusterError(
            f"controller epoch {epoch} is older than {self._holder.promised}, which this broker "
            "has promised to follow: another controller is taking over",
            ErrorCode.STALE_CONTROLLER_EPOCH,
        )


def _load(file: SmallFile) -> JournalHolder:
    content = file.read()
    if content is None:
        return JournalHolder()
    try:
        return msgspec.json.decode(content, type=JournalHolder)
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{file.path} is damaged ({error}); restore it. It matters only if the metadata store "
            "was unavailable when this broker stopped: otherwise it can be deleted",
            ErrorCode.DATA_CORRUPTED,
        ) from error
