"""Requests on a gRPC stream, answered one by one: a message each instead of a call each.

    ask ──▶ stream open, to this connection? ──no──▶ open one
               │ yes
               └─ write ─▶ read ─▶ the answer, or an error: the stream is closed

Setting up a call costs gRPC more than a commit costs its coordinator.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Shown
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError

Request = TypeVar("Request")
Answer = TypeVar("Answer")

Method = Callable[[Connection], Any]
"""Picks a stream-stream call of a generated stub, whose type parameters carry no information."""


class AnswerStream(Generic[Request, Answer]):
    """To one coordinator. One request at a time: only the order tells which request an answer
    belongs to."""

    def __init__(self, method: Method, what: str) -> None:
        """`what` names a request in errors: "a commit"."""
        self._method = method
        self._what = what
        self._connection: Connection | None = None
        self._shown: Shown | None = None
        self._call: Any = None

    async def ask(self, connection: Connection, request: Request, timeout_s: float) -> Answer:
        """The coordinator's answer.

        Raises PenstockError: what it refused the request with, UnreachableError, or
        REQUEST_TIMED_OUT after `timeout_s`. The outcome of the last two is unknown; the next
        request opens another stream.
        """
        shown = self._open(connection)
        answer: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await connection.ask_on(self._call, request)
        except TimeoutError:
            raise ClusterError(
                f"{connection.address}: no answer to {self._what} within {timeout_s:g} s",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        except PenstockError as error:
            raise connection.credentials.judged(error, shown) from error
        finally:
            if answer is None:
                self.close()  # its answer, if it comes, belongs to no request
        if answer is grpc.aio.EOF:
            raise UnreachableError(f"{connection.address}: the coordinator ended the stream")
        found: Answer = answer
        return found

    def _open(self, connection: Connection) -> Shown:
        """What the stream to this connection shows; opens one if there is none that will do."""
        shown, credentials = self._shown, connection.credentials
        is_open = self._call is not None and not self._call.done()
        is_same = is_open and self._connection is connection
        if is_same and shown is not None and not credentials.is_outdated(shown):
            return shown
        self.close()
        shown = self._shown = credentials.shown()
        self._call = self._method(connection)(metadata=shown.metadata)
        self._connection = connection
        return shown

    def close(self) -> None:
        """Closes the stream; an answer in flight is lost."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
