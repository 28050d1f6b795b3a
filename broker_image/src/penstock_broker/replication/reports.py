"""What this broker tells the controller about its replicas: deleted, damaged, or sound again.

    dropped, Damage ─▶ what the newest image does not show ─▶ ReportReplicas
                            ▲                                       │
                            └── the next image, or a pause ◀────────┘

Facts, not events: what no image shows is said again, with growing pauses, to whoever is the
controller then. So neither a lost answer nor a lost session matters, and a run of this broker that
ended between deleting and reporting is made up for by the next one, which finds nothing to delete.

A run of this broker is not elected before it has opened all logs of the first image and a
controller has heard which of them are damaged or missing (`ControllerSession.opened`).
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.rpc.errors import error_from_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.session import ControllerConnection, ControllerSession
from penstock_broker.observability import EventLog
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.replicas import ReplicaSet

_RETRY_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 60.0
_NAMES_PER_CALL: Final = 5_000
_events = EventLog("reports")


@dataclass(frozen=True, slots=True)
class Report:
    """`dropped`: with the partition's version in the newest image, which asks for it."""

    dropped: tuple[tuple[ReplicaKey, int], ...]
    damaged: tuple[ReplicaKey, ...]
    sound: tuple[ReplicaKey, ...]
    missing: tuple[ReplicaKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.damaged or self.sound or self.missing)


_NOTHING: Final = Report((), (), ())


class ReplicaReports:
    """Reports until an image agrees; one call is in flight at a time."""

    def __init__(
        self,
        replicas: ReplicaSet,
        assignment: ReplicaAssignment,
        session: ControllerSession,
        view: ClusterView,
    ) -> None:
        self._replicas = replicas
        self._damage = replicas.damage
        self._assignment = assignment
        self._session = session
        self._view = view
        self._heard: set[ReplicaKey] = set()
        """Damaged replicas that a controller knows of."""
        self._wake = asyncio.Event()
        self._answers = True
        self._applied = False

    def changed(self) -> None:
        """Something was dropped or found damaged."""
        self._wake.set()

    def applied(self) -> None:
        """An image was applied: the logs of all its partitions are opened."""
        self._applied = True
        self._note_opened()
        self._wake.set()

    def _note_opened(self) -> None:
        if (
            self._applied
            and self._session.opening
            and not any(map(self._is_news, self._damage.found))
        ):
            self._session.opened()

    async def run(self) -> None:
        """Reports until cancelled."""
        pause_s, said = _RETRY_PAUSE_S, _NOTHING
        while True:
            self._note_new_leaderships()
            report = self._due()
            if not report:
                self._wake.clear()
                await self._wake.wait()
                continue
            pause_s = _RETRY_PAUSE_S if report != said else min(2 * pause_s, _PAUSE_MAX_S)
            if await self._send(report):
                said = report
                await self._until_other_than(said, pause_s)
            else:
                said = _NOTHING
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _until_other_than(self, said: Report, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self._due() == said:
                    self._wake.clear()
                    await self._wake.wait()
                    self._note_new_leaderships()

    def _due(self) -> Report:
        """What the newest image does not show: the controller has to be told, maybe again."""
        self._heard &= self._damage.found.keys()
        dropped = [
            (key, version)
            for key, version in self._assignment.dropped.items()
            if (state := self._view.state(key)) is not None and state.version == version
        ]
        missing = self._damage.missing
        found = [key for key in self._damage.found if key not in missing]
        damaged = [key for key in found if self._holds_a_seat(key)]
        damaged += [key for key in found if self._needs_word(key)]
        damaged += [key for key in found if self._is_news(key)]
        sound = [key for key in self._damage.sound if self._is_marked(key)]
        members = [
            key
            for key in missing
            if self._is_a_member(key) or self._is_out(key) or self._is_beside_damage(key)
        ]
        return Report(
            tuple(dropped[:_NAMES_PER_CALL]),
            tuple(dict.fromkeys(damaged[:_NAMES_PER_CALL])),
            tuple(sound[:_NAMES_PER_CALL]),
            tuple(members[:_NAMES_PER_CALL]),
        )

    def _is_a_member(self, key: ReplicaKey) -> bool:
        """In the ISR, or outside it and eligible, for all that is known."""
        state, local = self._view.state(key), self._replicas.broker_id
        return state is not None and local in state.replicas and local not in state.damaged

    def _is_out(self, key: ReplicaKey) -> bool:
        """Somebody sound has its seat, and the mark of the damage is still there."""
        state, local = self._view.state(key), self._replicas.broker_id
        return state is not None and local in state.damaged and local not in state.isr

    def _is_beside_damage(self, key: ReplicaKey) -> bool:
        """Marked as all of the ISR is: it may give its seat to the others, or lead the next
        epoch."""
        state, local = self._view.state(key), self._replicas.broker_id
        return state is not None and local in state.isr and {*state.isr} <= {*state.damaged}

    def _note_new_leaderships(self) -> None:
        """A missing log that was given the next epoch, without anybody beside it, begins there."""
        alone = (self._replicas.broker_id,)
        for key, epoch in list(self._damage.missing.items()):
            state = self._view.state(key)
            given = state is not None and state.isr == alone and state.leader_epoch > epoch
            if given and self._is_a_member(key):
                self._damage.begins_anew(key)

    def _is_marked(self, key: ReplicaKey) -> bool:
        state = self._view.state(key)
        return state is not None and self._replicas.broker_id in state.damaged

    def _holds_a_seat(self, key: ReplicaKey) -> bool:
        """As if nobody knew of the damage."""
        return self._is_in_sync(key) and not self._is_marked(key)

    def _is_in_sync(self, key: ReplicaKey) -> bool:
        state = self._view.state(key)
        return state is not None and self._replicas.broker_id in state.isr

    def _needs_word(self, key: ReplicaKey) -> bool:
        """Its log is given up only when a controller has stored that it is damaged and has no seat,
        or, if it only copies, has asked for it to be deleted, which older ones do not."""
        state = self._view.state(key)
        copies = state is not None and self._replicas.broker_id in state.adding
        return key in self._damage.given_up and (copies or key not in self._damage.confirmed)

    def _is_news(self, key: ReplicaKey) -> bool:
        """It may be one of those that are eligible outside the ISR, which no image shows."""
        return self._is_a_member(key) and key not in self._heard

    async def _send(self, report: Report) -> bool:
        """False: nobody is known to have heard it."""
        seatless = [key for key in report.missing if not self._is_in_sync(key)]
        try:
            connection = self._session.connection()
            answer = await self._session.call(
                "report about replicas",
                connection.controller.ReportReplicas(self._request(connection, report)),
            )
            self._session.check_follows(connection)
            if answer.HasField("error"):
                raise error_from_wire(answer.error)
        except PenstockError as error:
            if self._answers:
                # Once, even if there is no controller, or an older one, for an hour.
                _events.warning(
                    "reports about replicas wait",
                    dropped=len(report.dropped),
                    damaged=len(report.damaged),
                    sound=len(report.sound),
                    missing=len(report.missing),
                    reason=str(error),
                )
            self._answers = False
            return False
        self._answers = True
        self._session.saw(answer.metadata_version)
        self._heard.update(report.damaged, report.missing)
        self._note_opened()
        seated = {ReplicaKey(TopicId(one.topic_id), one.partition) for one in answer.seated}
        if answer.stored:
            # They stay damaged, and without a seat, until this broker says otherwise.
            confirmed = [key for key in report.damaged if key not in seated]
            self._damage.confirm(confirmed, answer.metadata_version)
        # A seat taken in a journal may come back, unless an image shows that it is gone.
        unseated = report.missing if answer.stored else seatless
        for key in unseated:
            if key not in seated:
                self._damage.begins_anew(key)
        return True

    async def confirm_damage(self, key: ReplicaKey) -> int:
        """Has the controller store now that this replica is damaged, and decide what follows.

        Returns the metadata version of that. Raises PenstockError: nobody is known to have stored
        it.
        """
        connection = self._session.connection()
        answer = await self._session.call(
            "report about replicas",
            connection.controller.ReportReplicas(
                self._request(connection, Report((), (key,), ())),
            ),
        )
        self._session.check_follows(connection)
        if answer.HasField("error"):
            raise error_from_wire(answer.error)
        if not answer.stored:
            raise ClusterError(
                "the metadata store is unavailable, and data is not given up on a journal's word; "
                "try again once it is back",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            )
        self._session.saw(answer.metadata_version)
        return answer.metadata_version

    def _request(
        self, connection: ControllerConnection, report: Report
    ) -> pb.ReportReplicasRequest:
        return pb.ReportReplicasRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._replicas.broker_id,
            broker_session=connection.broker_session,
            sound=[_name(key) for key in report.sound],
            missing=[_name(key) for key in report.missing],
            dropped=[
                pb.DroppedReplica(topic_id=key.topic_id, partition=key.partition, version=version)
                for key, version in report.dropped
            ],
            damaged=[_name(key) for key in report.damaged],
        )


def _name(key: ReplicaKey) -> pb.ReplicaName:
    return pb.ReplicaName(topic_id=key.topic_id, partition=key.partition)
