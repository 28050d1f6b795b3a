"""Connects a broker to its controller: the session, its journal, ISR changes, reports.

    controller ── image ──▶ version remembered (directory) ──▶ applied (replication)
               ◀── ISR changes, reports, one call of each at a time ── replicas
               ── promise, keep ──▶ journal ── newer epoch ──▶ ends a session with an older one

The simulator creates the same object, with seams of its own.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.core.types import ControllerEpoch
from penstock.errors import ClusterError, ErrorCode, StaleDataDirectoryError
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.broker.replication import BrokerSeams, Replication
from penstock_broker.config import BrokerConfig
from penstock_broker.datadir import DataDirectory
from penstock_broker.metadata.condition import Condition
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.session import BrokerIdentity, ControllerSession, Ports
from penstock_broker.observability import EventLog
from penstock_broker.replication.accepting import Losses
from penstock_broker.replication.exact import RemoteDonors
from penstock_broker.replication.isr import IsrChanges
from penstock_broker.replication.mending import Mending
from penstock_broker.replication.reports import ReplicaReports
from penstock_broker.replication.verifying import LogVerification
from penstock_broker.services.journal import JournalService
from penstock_broker.serving.edge import first_error

_events = EventLog("membership")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The broker that is the member.

    `incarnation` names this run of the process. The ports are known once the servers are bound.
    """

    config: BrokerConfig
    directory: DataDirectory
    incarnation: str
    ports: Callable[[], Ports]
    condition: Callable[[], Condition]


class Membership:
    """See the module. The session's `ImageSink`."""

    def __init__(
        self,
        member: Member,
        view: ClusterView,
        replication: Replication,
        seams: BrokerSeams,
        serving: Callable[[], Awaitable[None]],
    ) -> None:
        """`serving` is awaited once the first image is applied."""
        self.tasks: asyncio.TaskGroup | None = None
        """The process's group, in which links to leaders run. Set it before `parts` run."""
        self._member = member
        self._directory = member.directory
        self._view = view
        self._replication = replication
        self._maintaining, self._journaling = seams.maintaining, seams.journaling
        self._serving = serving
        self._serves = False
        self.session = ControllerSession(
            member.config, self._identity, self, seams.transport, seams.chance, seams.clock.wall
        )
        self.journal = JournalService(
            member.directory.journal_file,
            seams.journaling,
            self.session.leave_older_than,
            lambda: view.controller_epoch,
        )
        self._isr = IsrChanges(replication.replicas, self.session, view)
        replication.replicas.isr = self._isr
        self._reports = ReplicaReports(
            replication.replicas, replication.assignment, self.session, view
        )
        replication.replicas.damage.reports = self._reports
        self._verification = LogVerification(replication.replicas, replication.reader)
        donors = RemoteDonors(replication.replicas.broker_id, view, seams.transport)
        self.mending = replication.replicas.damage.mending = Mending(
            replication.replicas, replication.reader, view, donors, replication.reopen
        )
        self.losses = Losses(replication.replicas, view, self.mending, donors, self._reports)

    def parts(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The coroutines to run until they are cancelled."""
        return (
            self._in_session(),
            self._isr.run(),
            self._reports.run(),
            self._verification.run(),
            self.mending.run(),
        )

    def _identity(self) -> BrokerIdentity:
        return BrokerIdentity(
            cluster_id=self._directory.cluster_id,
            incarnation=self._member.incarnation,
            directory_id=self._directory.directory_id,
            data_intact=self._directory.data_intact,
            promised_controller_epoch=self.journal.promised,
            generations=self._directory.generations,
        )

    async def _in_session(self) -> None:
        """Raises refusals that asking again does not change, in groups: the process ends."""
        try:
            await self.session.run()
        except* StaleDataDirectoryError as group:
            refused = first_error(group)
            assert isinstance(refused, StaleDataDirectoryError)
            raise await self._distrust(refused) from group

    async def _distrust(self, refused: StaleDataDirectoryError) -> StaleDataDirectoryError:
        """Prepares the next run, which has lost its data; what to say of this one."""
        directory = self._directory
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._journaling, directory.distrust, refused.generation
            )
        except OSError as error:
            # The next run is refused again, and tries to store it again.
            _events.error("the refusal is not stored", reason=str(error))
        return StaleDataDirectoryError(
            f"{refused.message}. What was acknowledged may be missing in {directory.path}, so "
            "nothing of it is trusted: this run ends, and the next one gives up its seats in ISRs "
            "and copies what is missing from the other brokers",
            refused.generation,
        )

    async def leave(self, timeout_s: float) -> bool:
        """Notes the stop, then hands over all leaderships: see `ControllerSession.hand_over`."""
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._journaling, self._directory.stop_asked
            )
        except OSError as error:
            # The disk may be full: the broker must be able to stop then as well.
            _events.warning("the stop is not noted in the data directory", reason=str(error))
        return await self.session.hand_over(timeout_s)

    # ------------------------------------------------------------ session.ImageSink

    @property
    def controller_epoch(self) -> int:
        return self._view.controller_epoch

    @property
    def metadata_version(self) -> int:
        return self._view.metadata_version

    @property
    def condition(self) -> Condition:
        return self._member.condition()

    @property
    def ports(self) -> Ports:
        return self._member.ports()

    async def registered(self, answer: pb.Registered) -> None:
        """A controller accepted this broker, which now belongs to its cluster."""
        self._view.check_epoch(answer.controller_epoch)
        self.journal.check_follows(answer.controller_epoch)
        with _stored():
            self._directory.adopt_cluster_id(answer.cluster_id)
            self._directory.registration_accepted()
        self._view.cluster_id = answer.cluster_id

    async def apply(self, image: pb.ClusterImage) -> None:
        """Remembers the version, then applies the image: machines, then links, then waiters."""
        with _stored():
            await asyncio.get_running_loop().run_in_executor(
                self._maintaining,
                self._directory.remember_metadata,
                ControllerEpoch(image.controller_epoch),
                image.metadata_version,
            )
        assert self.tasks is not None, "images come while the process runs"
        await self._replication.apply(image, self.tasks)
        self._reports.applied()
        self._verification.changed()
        self.mending.changed()
        if not self._serves:  # not only with the first image: that may have failed half-way
            await self._serving()
            self._serves = True


@contextmanager
def _stored() -> Iterator[None]:
    """What cannot be stored ends the session, which tries again, and not the process: that could
    not start again on a full disk, and serves reads meanwhile. Raises ClusterError."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        code = ErrorCode.DISK_FULL if is_full else ErrorCode.STORAGE_FAILED
        raise ClusterError(
            f"what a controller says cannot be noted in the data directory: {error}; free or add "
            "space, or look at the disk",
            code,
        ) from error
