"""Asks the brokers' `JournalService`: all at once, until a majority has answered.

A broker that does not know the service is of an older version: it keeps nothing, and can promise
that. One that is away costs no time once the others have answered.
"""

import queue
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Any, Final

import grpc

from penstock.core.control.documents import BrokerRegistration
from penstock.core.control.journal.contract import (
    NOBODY,
    AskKeep,
    AskPromises,
    Journal,
    Kept,
    Promises,
)
from penstock.errors import ErrorCode
from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.journal import journal_from_wire, journal_to_wire

TIMEOUT_S: Final = 1.5
"""Of all brokers together. Less than a controller goes on without its lease."""


class GrpcJournalHolders:
    """One channel per run of a broker, kept. May be used by two threads.

    A channel that has been idle while a pod was replaced still tries the old pod's address first,
    for longer than the time there is: so a broker that has registered anew is looked up anew.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._channels: dict[str, tuple[str, grpc.Channel]] = {}
        """By address: the broker's incarnation, and the channel to it."""
        self._lock = Lock()

    def promise(self, ask: AskPromises) -> Promises:
        """See `AskPromises`."""
        request = pb.PromiseJournalRequest(
            cluster_id=ask.holders.cluster_id, controller_epoch=ask.epoch
        )
        answers, refused = self._ask_all(
            ask.holders.brokers,
            ask.holders.majority,
            lambda stub: stub.PromiseJournal.future(request, timeout=self._timeout_s),
        )
        journals = [
            Journal(NOBODY) if answer is None else journal_from_wire(answer.journal)
            for answer in answers
        ]
        return Promises(journals, refused)

    def keep(self, ask: AskKeep) -> Kept:
        """See `AskKeep`."""
        request = pb.KeepJournalRequest(
            cluster_id=ask.holders.cluster_id, journal=journal_to_wire(ask.journal)
        )
        answers, refused = self._ask_all(
            ask.holders.brokers,
            ask.holders.majority,
            lambda stub: stub.KeepJournal.future(request, timeout=self._timeout_s),
        )
        return Kept(sum(answer is not None for answer in answers), refused)

    def close(self) -> None:
        """Closes the channels."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            channel.close()

    def _ask_all(
        self,
        brokers: tuple[BrokerRegistration, ...],
        enough: int,
        call: Callable[[Any], Any],
    ) -> tuple[list[Any], bool]:
        """What was answered (None: by a broker without the service), and whether one refused."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for broker in brokers:
            call(self._stub(broker)).add_done_callback(done.put)
        answers: list[Any] = []
        ends = monotonic() + self._timeout_s
        for _ in brokers:
            try:
                future = done.get(timeout=max(0.0, ends - monotonic()))
            except queue.Empty:
                break
            try:
                answers.append(future.result())
            except grpc.RpcError as error:
                if error_from_rpc(error).code is ErrorCode.STALE_CONTROLLER_EPOCH:
                    return answers, True
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    answers.append(None)
            if len(answers) >= enough:
                break
        return answers, False

    def _stub(self, broker: BrokerRegistration) -> Any:
        address = f"{broker.host}:{broker.port}"
        with self._lock:
            incarnation, channel = self._channels.get(address, ("", None))
            if channel is None or incarnation != broker.incarnation:
                if channel is not None:
                    channel.close()
                channel = open_channel(address)
                self._channels[address] = broker.incarnation, channel
            return JournalServiceStub(channel)
