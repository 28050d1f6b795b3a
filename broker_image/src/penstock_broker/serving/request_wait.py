"""The wait for the one request of a call, which its caller may withhold.

gRPC itself waits for it without a limit, and counts the call meanwhile: with enough of them, anyone
could keep all others out. So to gRPC such a call is a stream on this side, which waits `wait_s` for
its request; of more than `calls_max` calls that wait, the one that has waited longest makes room.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc

from penstock_broker.serving.open_streams import pass_on


class RequestWait:
    """Of the calls of one server."""

    def __init__(self, calls_max: int, wait_s: float) -> None:
        self._calls_max = calls_max
        self._wait_s = wait_s
        self._waiting: deque[asyncio.Timeout] = deque()
        """Calls whose request has not come yet, the oldest first."""

    async def _request(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """The request, as soon as it is here; ends the call if it does not come in time."""
        if len(self._waiting) >= self._calls_max:
            oldest = self._waiting.popleft()
            if not oldest.expired():
                oldest.reschedule(0.0)
        limit = asyncio.timeout(self._wait_s)
        try:
            async with limit:
                self._waiting.append(limit)
                request = await anext(requests, None)
        except TimeoutError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no request came in time")
        finally:
            if limit in self._waiting:
                self._waiting.remove(limit)
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return request

    def bounding(self, handler: Any) -> Any:
        """A handler whose calls wait here for their request, if they have only one."""
        if handler.unary_unary is not None:
            make, inner = grpc.stream_unary_rpc_method_handler, handler.unary_unary
        elif handler.unary_stream is not None:
            make, inner = grpc.stream_stream_rpc_method_handler, handler.unary_stream
        else:
            return handler

        async def call(requests: AsyncIterator[Any], context: Any) -> Any:
            return await pass_on(inner, await self._request(requests, context), context)

        return make(call, handler.request_deserializer, handler.response_serializer)
