"""A member's stream to its coordinator: carries out what `membership.py` decides.

    Membership ──open──▶ find coordinator ──▶ Join stream ──events──▶ Membership
        │ send ──▶ outbox ──▶ write             │ read: joined, assignment, alive, the end
        └ take, revoke, lost, failed ──▶ GroupOwner (the consumer's GroupSession)

Runs on an event loop without any user's code (`heartbeats.py`): heartbeats are sent however slow a
handler is. One stream at a time; messages of an older one are dropped.

When there is a newer token, the stream is opened again as after a broken connection: as the same
member, at the same epoch, so the group does not notice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import uuid4

import grpc

from penstock.client.clock import loop_time_s
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Shown
from penstock.client.config import ConsumerConfig
from penstock.client.group.contract import (
    Event,
    Heartbeat,
    Hello,
    HelloSaid,
    Leave,
    Partitions,
    Ready,
    StreamEnded,
    Tick,
    Timing,
)
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.membership import Membership, Phase
from penstock.client.group.wire import heard_from_wire, hello_to_wire, said_to_wire
from penstock.client.tasks import BackgroundTasks
from penstock.errors import (
    ClusterError,
    ErrorCode,
    OverloadedError,
    PenstockError,
    UnreachableError,
)
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc.cancelling import heeding_cancellation
from penstock.rpc.errors import error_from_rpc

FIND_S: Final = 5.0
RENEWAL_CHECK_S: Final = 2.0
"""How often to look whether there is something newer to show."""

_log = logging.getLogger("penstock.client")


class GroupOwner(Protocol):
    """The consumer's side of its membership; returns at once."""

    def take(self, partitions: Partitions) -> None:
        """Owned from now on."""

    def revoke(self, partitions: Partitions) -> None:
        """Must be given up in the next poll; then `Released` is sent."""

    def lose(self, partitions: Partitions) -> None:
        """No longer owned."""

    def fail(self, error: PenstockError) -> None:
        """Out of the group for good."""


class SeatedOwner(GroupOwner, Protocol):
    """One that is also told who commits, and where."""

    def reached(self, address: str) -> None:
        """The coordinator that the member says hello to, before anything comes from it. A deposed
        one may still be found, and answers from what it knew; it does not know the member."""

    def seated(self, member_id: str, member_epoch: int) -> None:
        """Who the member is now, after every event; epoch 0: it has no seat in the group."""


class GroupLink:
    """One per consumer. `run` is its clock, as a task; each stream is a separate task."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: GroupCalls,
        config: ConsumerConfig,
        tasks: BackgroundTasks,
        owner: SeatedOwner,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._config = config
        self._tasks = tasks
        self._owner = owner
        timing = Timing(
            config.session_timeout_ms,
            config.max_poll_interval_ms,
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
        )
        self.membership = Membership(
            timing, is_static=bool(config.group_instance_id), polls_repeat=True
        )
        self.member_id = ""
        self.yielded: Callable[[], int] = lambda: 0
        self._streaming: asyncio.Task[None] | None = None
        self._outbox: deque[Heartbeat | Leave] = deque()
        self._mail = asyncio.Event()
        self._clock = asyncio.Event()
        self._wake_at_ms: int | None = None
        self._news = asyncio.Event()

    def handle(self, event: Event) -> None:
        """Passes the event to the machine and carries out its Ready."""
        self._obey(self.membership.handle(event, _now_ms()))
        self._owner.seated(self.member_id, self.membership.member_epoch)
        self._news.set()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """The clock, until cancelled."""
        while True:
            self._clock.clear()
            wake_at_ms = self._wake_at_ms
            pause_s = None if wake_at_ms is None else max(0, wake_at_ms - _now_ms()) / 1000
            try:
                async with asyncio.timeout(pause_s):
                    await self._clock.wait()
            except TimeoutError:
                self.handle(Tick(self.yielded()))

    async def left(self, timeout_s: float) -> None:
        """Waits until a leave was confirmed, for at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.membership.phase is Phase.LEAVING:
                    await self._news.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------ inside

    def _obey(self, ready: Ready) -> None:
        if ready.notice:
            _log.warning("group %s: %s", self._coordinator.group_id, ready.notice)
        if ready.close:
            self._close()
        if ready.lost:
            self._owner.lose(ready.lost)
        if ready.revoke:
            self._owner.revoke(ready.revoke)
        if ready.take:
            self._owner.take(ready.take)
        for said in ready.send:
            self._say(said)
        if ready.open is not None:
            self._open(ready.open)
        if ready.failed is not None:
            self._owner.fail(ready.failed)
        self._wake_at_ms = ready.wake_at_ms
        self._clock.set()

    def _say(self, said: Heartbeat | Leave) -> None:
        """Queues it; a heartbeat that is already waiting is updated instead (I23)."""
        waiting = self._outbox[-1] if self._outbox else None
        if isinstance(said, Heartbeat) and isinstance(waiting, Heartbeat):
            newer = said if said.owned is not None else waiting
            said = Heartbeat(newer.owned, newer.number, said.wish or waiting.wish)
            self._outbox.pop()
        self._outbox.append(said)
        self._mail.set()

    def _close(self) -> None:
        stream, self._streaming = self._streaming, None
        self._outbox.clear()
        if stream is not None:
            stream.cancel()

    def _open(self, hello: Hello) -> None:
        self._close()
        if hello.new_member_id or not self.member_id:
            self.member_id = self._new_member_id()
        self._streaming = self._tasks.spawn(self._stream(hello), "group")

    def _new_member_id(self) -> str:
        return str(uuid4())

    async def _stream(self, hello: Hello) -> None:
        """One stream from its hello to its end; reports its end to the machine."""
        error: PenstockError | None = None
        try:
            connection = await self._coordinator.connection(FIND_S)
            shown = connection.credentials.shown()
            try:
                await self._talk(connection, hello, shown)
            except PenstockError as ended:
                raise connection.credentials.judged(ended, shown) from ended
        except PenstockError as ended:
            error = ended
            self._coordinator.failed(ended)
        if self._streaming is asyncio.current_task():
            self._streaming = None
            self._outbox.clear()
            throttle_ms = error.throttle_ms if isinstance(error, OverloadedError) else 0
            self.handle(StreamEnded(error, throttle_ms))

    async def _talk(self, connection: Connection, hello: Hello, shown: Shown) -> None:
        # A stream-stream call of the generated stub; its type parameters carry no information.
        call: Any = connection.group.Join(metadata=shown.metadata)
        first = hello_to_wire(hello, self._config, self.member_id, self._cluster.view.cluster_id)
        if self._streaming is asyncio.current_task():
            self._owner.reached(connection.address)
            self.handle(HelloSaid())
        writing = self._tasks.spawn(self._write(call, first), "group-write")
        renewing = None
        if connection.credentials.tls is not None:
            streaming = asyncio.current_task()
            renewal = self._reopen_when_outdated(connection, shown, streaming)
            renewing = self._tasks.spawn(renewal, "group-renew")
        patience_s: float | None = self._config.request_timeout_ms / 1000
        try:
            while True:
                answer = await _read(call, connection.address, patience_s)
                patience_s = None  # from here on, the machine watches for missing answers
                if answer is None:
                    if self.membership.phase is Phase.LEAVING:
                        return
                    raise UnreachableError(
                        f"{connection.address}: the coordinator ended the stream"
                    )
                self.handle(heard_from_wire(answer))
        finally:
            for task in (writing, renewing):
                if task is not None:
                    task.cancel()
            call.cancel()

    async def _reopen_when_outdated(
        self, connection: Connection, shown: Shown, streaming: "asyncio.Task[Any] | None"
    ) -> None:
        while not connection.credentials.is_outdated(shown):  # noqa: ASYNC110 - of files
            await asyncio.sleep(RENEWAL_CHECK_S)
        if self._streaming is streaming and self.membership.phase is Phase.MEMBER:
            self._close()
            self.handle(StreamEnded(None, on_purpose=True))

    async def _write(self, call: Any, first: pb.JoinRequest) -> None:
        try:
            await call.write(first)
            while True:
                while self._outbox:
                    said = self._outbox.popleft()
                    await call.write(said_to_wire(said))
                    if isinstance(said, Leave):
                        await call.done_writing()
                        return
                self._mail.clear()
                await self._mail.wait()
        except (asyncio.InvalidStateError, grpc.RpcError, grpc.aio.UsageError):
            return  # the stream has ended: the reader knows why


def _now_ms() -> int:
    return int(loop_time_s() * 1000)


async def _read(call: Any, address: str, patience_s: float | None) -> pb.JoinResponse | None:
    """The next answer; None = the stream ended with OK. Raises PenstockError."""
    try:
        async with asyncio.timeout(patience_s):
            with heeding_cancellation():
                answer = await call.read()
    except TimeoutError:
        raise ClusterError(
            f"{address}: no answer to a join within {patience_s:g} s", ErrorCode.REQUEST_TIMED_OUT
        ) from None
    except grpc.RpcError as error:
        raise error_from_rpc(error, address) from error
    return None if answer is grpc.aio.EOF else answer
