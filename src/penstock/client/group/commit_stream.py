"""Commits on a stream to the coordinator: a message each instead of a call each.

    commit ──▶ stream open, to this connection? ──no──▶ open one
                  │ yes
                  └─ write ─▶ read ─▶ the answer, or an error: the stream is closed

Setting up a call costs gRPC more than a commit costs the coordinator.
"""

import asyncio
from typing import Any

import grpc

from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Shown
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.proto.v1 import group_pb2 as pb


class CommitStream:
    """Of one group's consumer. One commit at a time: only the order tells which commit an answer
    belongs to."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._shown: Shown | None = None
        # A stream-stream call of the generated stub; its type parameters carry no information.
        self._call: Any = None

    async def commit(
        self, connection: Connection, request: pb.CommitOffsetsRequest, timeout_s: float
    ) -> pb.CommitOffsetsResponse:
        """The coordinator's answer.

        Raises PenstockError: what it refused the request with, UnreachableError, or
        REQUEST_TIMED_OUT after `timeout_s`. The outcome of the last two is unknown; the next
        commit opens another stream.
        """
        shown = self._open(connection)
        answer: pb.CommitOffsetsResponse | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await connection.ask_on(self._call, request)
        except TimeoutError:
            raise ClusterError(
                f"{connection.address}: no answer to a commit within {timeout_s:g} s",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        except PenstockError as error:
            raise connection.credentials.judged(error, shown) from error
        finally:
            if answer is None:
                self.close()  # its answer, if it comes, belongs to no commit
        if answer is grpc.aio.EOF:
            raise UnreachableError(f"{connection.address}: the coordinator ended the stream")
        return answer

    def _open(self, connection: Connection) -> Shown:
        """What the stream to this connection shows; opens one if there is none that will do."""
        shown, credentials = self._shown, connection.credentials
        is_open = self._call is not None and not self._call.done()
        is_same = is_open and self._connection is connection
        if is_same and shown is not None and not credentials.is_outdated(shown):
            return shown
        self.close()
        shown = self._shown = credentials.shown()
        self._call = connection.group.CommitOffsetsStream(metadata=shown.metadata)
        self._connection = connection
        return shown

    def close(self) -> None:
        """Closes the stream; an answer in flight is lost."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
