"""A message stream of fetches: each waits for its records on its own, and is answered by its id.

    deliver ─▶ a task per fetch ─▶ Fetching.fetch ─▶ send ─▶ its bytes given back to the budget

A fetch that fails as a whole is answered with its error: the others of the stream go on.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Final

from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.errors import error_to_wire
from penstock.rpc.splice import stream_fetch_answer, stream_fetch_asked, stream_fetch_failure
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received
from penstock.rpc.streams.parsing import parsed
from penstock_broker.services.fetching import Fetching
from penstock_broker.serving.edge import Failed, answer_for, check_cluster_id, timed
from penstock_broker.serving.request_limits import RequestCheck

_check_size: Final = RequestCheck("/penstock.proto.v1.BrokerService/Fetch")


class FetchMessages:
    """Serves the fetches of one message stream; `run` once."""

    def __init__(
        self,
        fetching: Fetching,
        stream: MessageStream,
        observe: Callable[[float], None],
        inflight_max: int,
        cluster_id: Callable[[], str],
        failed: Failed,
    ) -> None:
        """`observe` gets the seconds of each fetch, without the wait for records.

        `cluster_id` returns "" while unknown.
        """
        self._fetching = fetching
        self._stream = stream
        self._observe = observe
        self._inflight_max = inflight_max
        self._failed = failed
        self._cluster_id = cluster_id
        self._context = copy_context()
        """Of the stream, in which its caller is known: bytes arrive in another one."""
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until the client ends the stream or the connection breaks.

        Then nothing is answered any more. Raises PenstockError.
        """
        async with asyncio.TaskGroup() as tasks:

            def take(message: Received) -> None:
                correlation_id, body = stream_fetch_asked(message)
                _check_size(body)
                request = parsed(pb.FetchRequest, body, "a consumer")
                check_cluster_id(request.cluster_id, self._cluster_id())
                task = tasks.create_task(
                    self._fetch(correlation_id, request), context=self._context.copy()
                )
                self._under_way.add(task)
                task.add_done_callback(self._done)
                if len(self._under_way) >= self._inflight_max:
                    self._stream.hold()

            await self._stream.deliver(take)
            for task in self._under_way:
                task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._stream.release()

    async def _fetch(self, correlation_id: int, request: pb.FetchRequest) -> None:
        try:
            with timed(self._observe):
                answer = await self._fetching.fetch(request)
        except Exception as error:  # noqa: BLE001 - the edge: nothing else may leave
            seen = answer_for("Fetch", error)
            self._failed("Fetch", seen.code.name)
            refused = error_to_wire(seen)
            await self._stream.send(stream_fetch_failure(correlation_id, refused))
            return
        try:
            await self._stream.send(stream_fetch_answer(correlation_id, answer.results))
        finally:
            answer.sent()
