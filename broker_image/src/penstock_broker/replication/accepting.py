"""A person gives up batches that nobody has any more: the leader empties them.

    AcceptLoss ─▶ lost, as far as mending knows ─▶ controller: stored as damaged, nobody sound leads
        ─▶ every other holder says that it lacks the batch ─▶ emptied, fsynced, read again
                                     other damaged replicas: `mending` ◀─┘

Nothing is stored about the wish itself. That nobody has a batch stays true, so it does not matter
what dies between two batches, or who leads then: the next leader is told the same again, finds
what is left, and makes the same batches of it. And as all holders have to say that they lack the
batch, no sound copy is given up, by a leader that was deposed neither. Only a holder that the
person names may stay silent.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.batch import BatchHeader
from penstock.core.replication.losses import (
    check_nobody_sound_may_lead,
    chosen,
    holders,
    says_it_lacks,
    span,
)
from penstock.core.types import BrokerId, Offset, PartitionState, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.exact import Donors
from penstock_broker.replication.mending import Mending
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_IMAGE_S: Final = 10.0
_events = EventLog("losses")


class Controller(Protocol):
    """Who says who leads (`reports.ReplicaReports`)."""

    async def confirm_damage(self, key: ReplicaKey) -> int:
        """See there."""
        ...


@dataclass(frozen=True, slots=True)
class Loss:
    """What is given up, and which brokers may stay silent about it. Both offsets are included."""

    first: Offset
    last: Offset
    without: Collection[BrokerId] = ()


class Losses:
    """Of a broker."""

    def __init__(
        self,
        replicas: ReplicaSet,
        view: ClusterView,
        mending: Mending,
        donors: Donors,
        controller: Controller,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._mending = mending
        self._donors = donors
        self._controller = controller

    async def accept(
        self, replica: Replica, loss: Loss, *, validate_only: bool
    ) -> tuple[BatchHeader, ...]:
        """Empties the lost batches in these offsets of a log led here; returns their headers.

        (): nothing is lost there, maybe because this was said before. Raises PenstockError: nothing
        was emptied.
        """
        if not replica.is_opened:
            raise ClusterError(
                f"the log of {replica} could not be opened, so there are no offsets to give up: "
                "restore the volume of a broker that has it, or replace one and let the empty "
                'replica lead ("A partition none of whose logs can be opened" in Operations)',
                ErrorCode.INVALID_REQUEST,
            )
        marks = replica.marks
        if not 0 <= loss.first <= loss.last < marks.high_watermark:
            raise ClusterError(
                f"offsets {loss.first}-{loss.last} of {replica}: they must be in order, and below "
                f"the high watermark {marks.high_watermark}; what is not committed was promised to "
                "nobody",
                ErrorCode.INVALID_REQUEST,
            )
        if replica.key not in self._replicas.damage.found:
            return ()
        headers = chosen(self._known_lost(replica, loss), loss.first, loss.last)
        if not headers:
            return ()
        state = await self._state_now(replica)
        check_nobody_sound_may_lead(state, self._replicas.broker_id)
        for header in headers:
            await self._check_nobody_has(replica, header, state, loss)
        self._check_still_led(replica, state)
        if not validate_only:
            for header in headers:
                _events.warning("loss accepted", replica=replica, offsets=span(header))
            await self._replicas.accept_loss(replica, headers)
            replica.recent.clear()
            self._mending.gave_up(replica.key, headers)
        return headers

    def _known_lost(self, replica: Replica, loss: Loss) -> tuple[BatchHeader, ...]:
        lost = self._mending.lost(replica.key)
        if lost is None:
            raise ClusterError(
                f"the log of {replica} is being read, and other replicas are asked for what is "
                "damaged in it; try again when that is over",
                ErrorCode.REQUEST_TIMED_OUT,
            )
        why = self._mending.why_hopeless(replica.key)
        if why and not chosen(lost, loss.first, loss.last):
            raise ClusterError(
                f"nothing in offsets {loss.first}-{loss.last} of {replica} is known to be lost, "
                f"but {why}: what cannot be named cannot be given up",
                ErrorCode.INVALID_REQUEST,
            )
        return lost

    async def _state_now(self, replica: Replica) -> PartitionState:
        """The state that the controller has left this partition in, knowing of the damage."""
        version = await self._controller.confirm_damage(replica.key)
        try:
            async with asyncio.timeout(_IMAGE_S):
                while self._view.metadata_version < version:
                    await self._view.next_image()
        except TimeoutError:
            raise ClusterError(
                f"metadata version {version} has not come here in {_IMAGE_S:.0f} s; try again",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        state = self._view.state(replica.key)
        if state is None:
            raise ClusterError(f"{replica} was deleted", ErrorCode.UNKNOWN_TOPIC)
        return state

    async def _check_nobody_has(
        self,
        replica: Replica,
        header: BatchHeader,
        state: PartitionState,
        loss: Loss,
    ) -> None:
        for broker_id in holders(state, self._replicas.broker_id):
            try:
                await self._donors.exact(broker_id, replica.key, header)
            except PenstockError as error:
                if says_it_lacks(state, broker_id, error.code) or broker_id in loss.without:
                    continue
                if error.code is ErrorCode.DATA_CORRUPTED:
                    raise ClusterError(
                        f"broker {broker_id} has offsets {span(header)} of {replica} in another "
                        f"form, compacted, or they are damaged there and that is not stored yet "
                        f"({error.message}). Wait until it leads, or has been scrubbed, or give up "
                        f"what it has: --without {broker_id}",
                        ErrorCode.INVALID_REQUEST,
                    ) from error
                raise ClusterError(
                    f"broker {broker_id} may have offsets {span(header)} of {replica}, and did not "
                    f"say ({error.message}). Wait until it serves, or, if it never will again: "
                    f"--without {broker_id}",
                    ErrorCode.INVALID_REQUEST,
                ) from error
            raise ClusterError(
                f"broker {broker_id} has offsets {span(header)} of {replica}: they are not lost, "
                "and are mended from there within seconds",
                ErrorCode.INVALID_REQUEST,
            )

    def _check_still_led(self, replica: Replica, state: PartitionState) -> None:
        now, here = self._view.state(replica.key), self._replicas.by_key.get(replica.key)
        seen = (state.leader, state.leader_epoch)
        if here is replica and now is not None and (now.leader, now.leader_epoch) == seen:
            return
        raise ClusterError(
            f"the leader of {replica} has changed meanwhile; nothing was given up, ask again",
            ErrorCode.NOT_LEADER,
        )
