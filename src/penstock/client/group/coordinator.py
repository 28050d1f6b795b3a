"""The calls to a group's coordinator, each repeated until it is answered.

commit ────────▶ a message on a stream; one after the other
commit_within ─▶ a call: it may wait for a transaction, and must not delay others
fetch, call ───▶ calls
"""

from collections.abc import Callable
from typing import Any

from penstock.client.cluster.answer_stream import AnswerStream
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.coordinator import CoordinatorCalls
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.errors import error_from_wire


class GroupCalls(CoordinatorCalls):
    """Of one group."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        super().__init__(cluster, f"group {group_id!r}")
        self.group_id = group_id
        self._commits: AnswerStream[pb.CommitOffsetsRequest, pb.CommitOffsetsResponse] = (
            AnswerStream(lambda to: to.group.CommitOffsetsStream, "a commit")
        )

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
        self, make: Callable[[], pb.CommitOffsetsRequest], timeout_s: float
    ) -> pb.CommitOffsetsResponse:
        """Like `call`, but on a stream; one at a time. `make`: is called for each attempt."""

        async def attempt(connection: Connection, attempt_s: float) -> pb.CommitOffsetsResponse:
            request = make()
            request.cluster_id = self._cluster.view.cluster_id
            return await self._commits.ask(connection, request, attempt_s)

        return await self.until_answered(attempt, timeout_s)

    async def commit_within(self, request: pb.CommitOffsetsRequest, timeout_s: float) -> None:
        """Commits in a transaction: all partitions, or an error. Like `call`; waits for offsets
        that are pending in another transaction."""

        async def attempt(connection: Connection, attempt_s: float) -> None:
            request.cluster_id = self._cluster.view.cluster_id
            answer = await connection.call(connection.group.CommitOffsets, request, attempt_s)
            for result in answer.results:
                if result.HasField("error"):
                    raise error_from_wire(result.error)

        await self.until_answered(attempt, timeout_s)

    async def fetch(
        self, request: pb.FetchOffsetsRequest, timeout_s: float, *, repeat: bool = True
    ) -> pb.FetchOffsetsResponse:
        """The committed offsets: all of them, or an error. Like `call`; waits for offsets that are
        pending in an open transaction, and for partitions that the coordinator does not know yet.

        `repeat` False: raises at once if it does not know one, for callers that ask again anyway.
        """

        async def attempt(
            connection: Connection, attempt_s: float
        ) -> pb.FetchOffsetsResponse | PenstockError:
            request.cluster_id = self._cluster.view.cluster_id
            answer = await connection.call(connection.group.FetchOffsets, request, attempt_s)
            refused: PenstockError | None = None
            for seen in answer.offsets:
                if seen.HasField("error"):
                    refused = error_from_wire(seen.error)
                    pending = refused.code is ErrorCode.UNSTABLE_OFFSETS
                    if not (refused.retriable if repeat else pending):
                        return refused
            if refused is not None:
                raise refused
            return answer

        found = await self.until_answered(attempt, timeout_s)
        if isinstance(found, PenstockError):
            raise found
        return found
