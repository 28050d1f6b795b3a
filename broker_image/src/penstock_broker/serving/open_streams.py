"""How many streams callers hold open: of all callers together, and of one host.

Streams may be idle for ever, and count as calls to gRPC, which refuses any call above its limit.
So streams get half of it, and unary calls are answered whoever holds how many streams. One host
gets half of those, so that others can still open theirs. A connection has a limit of its own
(`rpc.channel`), at which only its client waits.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isasyncgenfunction
from typing import Any

import grpc

from penstock.errors import OverloadedError
from penstock.rpc.errors import abort
from penstock_broker.serving.listener import host_of_peer


async def pass_on(inner: Any, request: Any, context: Any) -> Any:
    """Calls a service that is not ours, in whichever way it answers."""
    if not isasyncgenfunction(inner):
        return await inner(request, context)
    async for answer in inner(request, context):
        await context.write(answer)
    return None


def counted(handler: Any, streams: "OpenStreams") -> Any:
    """A handler of a service that is not ours; if it answers with a stream, it counts as one."""
    if handler.stream_stream is not None:
        make, inner = grpc.stream_stream_rpc_method_handler, handler.stream_stream
    elif handler.unary_stream is not None:
        make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
    else:
        return handler

    async def call(request: Any, context: Any) -> None:
        try:
            with streams.opened(context.peer()):
                await pass_on(inner, request, context)
        except OverloadedError as error:
            await abort(context, error)

    return make(call, handler.request_deserializer, handler.response_serializer)


class OpenStreams:
    """The streams of one server."""

    def __init__(self, rpcs_max: int) -> None:
        """`rpcs_max`: all calls that the server accepts at one time."""
        self._most = max(1, rpcs_max // 2)
        self._most_per_host = max(1, self._most // 2)
        self._rpcs_max = rpcs_max
        self._by_host: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many there are now."""
        return self._by_host.total()

    @contextmanager
    def opened(self, peer: str) -> Iterator[None]:
        """While a stream is served. Raises OverloadedError if it is one too many.

        `peer`: gRPC's name of the caller.
        """
        host = host_of_peer(peer)
        total = self._by_host.total()
        if total >= self._most or self._by_host[host] >= self._most_per_host:
            raise OverloadedError(
                f"{total} streams are open here, {self._by_host[host]} of them from {host}; the "
                f"limits are {self._most} and {self._most_per_host}, of {self._rpcs_max} calls and "
                "streams; close streams that are not used, or try again later",
                throttle_ms=1_000,
            )
        self._by_host[host] += 1
        try:
            yield
        finally:
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]
