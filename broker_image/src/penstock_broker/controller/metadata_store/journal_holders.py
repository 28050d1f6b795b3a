"""Calls the brokers' `JournalService`: all at once, until a majority has answered.

A broker that does not have the service is of an older version: it keeps nothing, and that counts as
a promise. An unavailable broker costs no time once the others have answered. Calls to slow brokers
continue until the timeout, and a broker that has not answered is asked for its promise again, in
the background: without it, it stays with the older controller, and the newer one considers it dead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc

from penstock.core.control.documents import BrokerRegistration
from penstock.core.control.journal.contract import (
    AskKeep,
    AskPromises,
    Holders,
    Kept,
    Promises,
)
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode
from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.journal import journal_from_wire, journal_to_wire
from penstock.rpc.peers import peer_address, towards
from penstock.rpc.tls import generation_of
from penstock.rpc.transport import Transport

TIMEOUT_S: Final = 1.5
"""For all brokers together. Less time than a controller continues without its lease."""
_ASK_AGAIN_S: Final = 6.0
"""As long as the lease: by then a controller without it has ended its sessions by itself, and the
brokers look for the newer one without being asked."""
_PAUSE_S: Final = 0.2
_KEEPS_NOTHING: Final = pb.PromiseJournalResponse()
_REFUSED: Final = object()
_Outcomes: TypeAlias = "asyncio.Queue[tuple[BrokerId, Any]]"
"""Whom calls asked, and how they ended: a message, `_REFUSED`, a defect, or None: no answer that
counts."""


class GrpcJournalHolders:
    """One channel per run of a broker, kept open. Two callers may use it at once.

    A channel that was idle while a pod was replaced tries the old pod's address first, for longer
    than the timeout: so a broker that has registered again is resolved again.
    """

    def __init__(
        self, transport: Transport, tasks: asyncio.TaskGroup, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`tasks` owns the calls, which `close` ends."""
        self._transport = transport
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._channels: dict[str, tuple[tuple[str, int], grpc.aio.Channel]] = {}
        """By address: the broker's incarnation and the generation of TLS; the channel to it."""
        self._rounds = 0
        """Of promises; the newest one alone asks again."""

    async def promise(self, ask: AskPromises) -> Promises:
        """See `AskPromises`. Brokers that do not answer are asked again for a while: the result is
        decided without them, but a broker that is asked too late is considered dead."""
        self._rounds += 1
        request = pb.PromiseJournalRequest(
            cluster_id=ask.holders.cluster_id, controller_epoch=ask.epoch
        )
        answers, refused = await self._ask_all(
            ask.holders,
            lambda stub: stub.PromiseJournal(request, timeout=self._timeout_s),
            without_service=_KEEPS_NOTHING,
            again_s=_ASK_AGAIN_S,
        )
        journals = {broker: journal_from_wire(one.journal) for broker, one in answers.items()}
        return Promises(journals, refused)

    async def keep(self, ask: AskKeep) -> Kept:
        """See `AskKeep`."""
        request = pb.KeepJournalRequest(
            cluster_id=ask.holders.cluster_id, journal=journal_to_wire(ask.journal)
        )
        answers, refused = await self._ask_all(
            ask.holders,
            lambda stub: stub.KeepJournal(request, timeout=self._timeout_s),
            without_service=None,
        )
        return Kept(len(answers), refused)

    async def close(self) -> None:
        """Closes the channels, which ends the calls on them."""
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()

    async def _ask_all(
        self,
        holders: Holders,
        call: Callable[[Any], Any],
        *,
        without_service: Any,
        again_s: float = 0.0,
    ) -> tuple[dict[BrokerId, Any], bool]:
        """The answers, and whether one broker refused.

        `without_service`: the answer assumed for a broker that does not have the service.
        `again_s`: for how long those are asked again that do not answer.
        """
        channels, replaced = self._channels_to(holders.brokers)
        outcomes: _Outcomes = asyncio.Queue(len(channels))
        for broker, channel in zip(holders.brokers, channels, strict=True):
            calling = call(JournalServiceStub(channel))
            first = _hear(broker.broker_id, calling, without_service, outcomes)
            reaching = self._reach(first, channel, call, again_s)
            self._tasks.create_task(reaching, name="a broker's journal")
        try:
            return await self._decisive(outcomes, len(channels), holders.majority)
        finally:
            for channel in replaced:
                await channel.close()

    async def _reach(
        self,
        first: Awaitable[Any],
        channel: grpc.aio.Channel,
        call: Callable[[Any], Any],
        again_s: float,
    ) -> None:
        """Asks again until the broker has answered, for `again_s` at most.

        A newer round asks for itself. A channel is replaced when the broker has registered again,
        as a new run, and closed at the end.
        """
        rounds, loop = self._rounds, asyncio.get_running_loop()
        until_s = loop.time() + again_s
        outcome = await first
        while outcome is None and loop.time() < until_s:
            await asyncio.sleep(_PAUSE_S)
            if rounds != self._rounds or not self._uses(channel):
                return
            outcome = await _end(call(JournalServiceStub(channel)), _KEEPS_NOTHING)

    def _uses(self, channel: grpc.aio.Channel) -> bool:
        return any(channel is used for _, used in self._channels.values())

    async def _decisive(
        self, outcomes: _Outcomes, asked: int, enough: int
    ) -> tuple[dict[BrokerId, Any], bool]:
        """As `_ask_all`; returns as soon as further answers cannot change the result."""
        answers: dict[BrokerId, Any] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(asked):
                    broker, outcome = await outcomes.get()
                    if isinstance(outcome, Exception):
                        raise outcome
                    if outcome is _REFUSED:
                        return answers, True
                    if outcome is not None:
                        answers[broker] = outcome
                    if len(answers) >= enough:
                        break
        except TimeoutError:
            pass
        return answers, False

    def _channels_to(
        self, brokers: tuple[BrokerRegistration, ...]
    ) -> tuple[list[grpc.aio.Channel], list[grpc.aio.Channel]]:
        """The channels to use, and those of earlier runs, to close."""
        channels, replaced = [], []
        generation = generation_of(self._transport.tls)
        for broker in brokers:
            found = peer_address(broker, tls=self._transport.tls is not None)
            address = found.address
            wanted = broker.incarnation, generation
            known, channel = self._channels.get(address, (None, None))
            if channel is None or known != wanted:
                if channel is not None:
                    replaced.append(channel)
                channel = towards(self._transport, secured=found.secured).open(address)
                self._channels[address] = wanted, channel
            channels.append(channel)
        return channels, replaced


async def _hear(broker: BrokerId, calling: Any, without_service: Any, outcomes: _Outcomes) -> Any:
    """Queues once how the call ended, also if its channel was closed meanwhile; returns it."""
    outcome: Any = None
    try:
        outcome = await _end(calling, without_service)
    except Exception as error:  # noqa: BLE001 - the caller gets the defect
        outcome = error
    finally:
        outcomes.put_nowait((broker, outcome))
    return outcome


async def _end(calling: Any, without_service: Any) -> Any:
    """How a call ended, as in `_Outcomes`; raises a defect."""
    try:
        return await calling
    except grpc.aio.AioRpcError as error:
        if error_from_rpc(error).code is ErrorCode.STALE_CONTROLLER_EPOCH:
            return _REFUSED
        return without_service if error.code() is grpc.StatusCode.UNIMPLEMENTED else None
