"""Finds the broker that coordinates a group (or a transactional id), and asks it until it answers.

    call ──▶ address known? ──no──▶ Find…Coordinator at any broker
      ▲            │ yes
      └─ pause ◀── NOT_COORDINATOR, loading, no answer: forget the address, ask again

Every call here may be repeated: membership is told by member id and epoch, commits are the same
offsets again, resets carry an id. For transactions see `penstock.client.transaction.coordinator`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from penstock.client.cluster.cluster import Cluster, is_silence
from penstock.client.cluster.connections import Connection
from penstock.client.group.commit_stream import CommitStream
from penstock.errors import ClusterError, OverloadedError, PenstockError
from penstock.proto.v1 import errors_pb2
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.errors import error_from_wire

Answer = TypeVar("Answer")
Attempt = Callable[[Connection, float], Awaitable[Answer]]
"""Asks once and waits so many seconds for the answer."""

PATIENCE_S: Final = 2.0
"""With one attempt, in the beginning; doubles. A frozen coordinator is replaced in that time."""


class Coordinator(ABC):
    """Of one name. Owned by the client's event loop. `what` names it in errors."""

    def __init__(self, cluster: Cluster, what: str) -> None:
        self._what = what
        self._cluster = cluster
        self._address = ""

    @abstractmethod
    async def _find(self, connection: Connection, timeout_s: float) -> str:
        """The coordinator's address, as this broker knows it."""

    async def connection(self, timeout_s: float) -> Connection:
        """The coordinator, as far as known; raises what `Cluster.ask` raises."""
        if not self._address:
            self._address = await self._cluster.ask(self._find, timeout_s)
        return self._cluster.connections.to(self._address)

    def failed(self, error: PenstockError) -> None:
        """A call or stream ended with `error`: whoever was asked may not be the one any more."""
        if error.refresh_metadata:
            self._address = ""

    async def until_answered(self, attempt: "Attempt[Answer]", timeout_s: float) -> Answer:
        """The coordinator's answer; tried again for `timeout_s`.

        Raises what trying again cannot cure, or the last error after `timeout_s`.
        """
        deadline = monotonic() + timeout_s
        pause_s = self._cluster.config.retry_backoff_ms / 1000
        patience_s = PATIENCE_S
        while True:
            left_s = max(deadline - monotonic(), 0.1)
            try:
                connection = await self.connection(left_s)
                return await attempt(connection, min(patience_s, left_s))
            except PenstockError as error:
                self.failed(error)
                if not (error.retriable or is_silence(error)):
                    raise
                if isinstance(error, OverloadedError):
                    pause_s = max(pause_s, error.throttle_ms / 1000)
                if monotonic() + pause_s >= deadline:
                    raise ClusterError(
                        f"{self._what}: {error.message} (tried for {timeout_s:g} s)",
                        error.code,
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._cluster.config.retry_backoff_max_ms / 1000)
            patience_s *= 2


class GroupCoordinator(Coordinator):
    """Of one group."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        super().__init__(cluster, f"group {group_id!r}")
        self.group_id = group_id
        self._commits = CommitStream()

    async def _find(self, connection: Connection, timeout_s: float) -> str:
        request = pb.FindCoordinatorRequest(
            cluster_id=self._cluster.view.cluster_id, group_id=self.group_id
        )
        found = await connection.call(connection.group.FindCoordinator, request, timeout_s)
        return f"{found.host}:{found.port}"

    async def call(
        self,
        method: Callable[[GroupServiceStub], Any],
        request: Any,
        timeout_s: float,
    ) -> Any:
        """See `until_answered`."""

        async def attempt(connection: Connection, attempt_s: float) -> Any:
            request.cluster_id = self._cluster.view.cluster_id
            return await connection.call(method(connection.group), request, attempt_s)

        return await self.until_answered(attempt, timeout_s)

    async def commit(
        self, request: pb.CommitOffsetsRequest, timeout_s: float
    ) -> pb.CommitOffsetsResponse:
        """As `call`, on a stream; one at a time."""

        async def attempt(connection: Connection, attempt_s: float) -> pb.CommitOffsetsResponse:
            request.cluster_id = self._cluster.view.cluster_id
            return await self._commits.commit(connection, request, attempt_s)

        return await self.until_answered(attempt, timeout_s)

    async def commit_within(self, request: pb.CommitOffsetsRequest, timeout_s: float) -> None:
        """Commits inside a transaction: all partitions, or an error. As `call`; what another
        transaction may still change is waited for."""

        async def attempt(connection: Connection, attempt_s: float) -> None:
            request.cluster_id = self._cluster.view.cluster_id
            answer = await connection.call(connection.group.CommitOffsets, request, attempt_s)
            for result in answer.results:
                if result.HasField("error"):
                    raise error_from_wire(result.error)

        await self.until_answered(attempt, timeout_s)

    async def fetch(
        self, request: pb.FetchOffsetsRequest, timeout_s: float
    ) -> pb.FetchOffsetsResponse:
        """What is committed. What an open transaction may change is waited for, as `call` waits."""

        async def attempt(connection: Connection, attempt_s: float) -> pb.FetchOffsetsResponse:
            request.cluster_id = self._cluster.view.cluster_id
            answer = await connection.call(connection.group.FetchOffsets, request, attempt_s)
            for seen in answer.offsets:
                if seen.error.code == errors_pb2.ERROR_CODE_UNSTABLE_OFFSETS:
                    raise error_from_wire(seen.error)
            return answer

        return await self.until_answered(attempt, timeout_s)
