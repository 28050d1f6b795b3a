"""The edge of a server process: what every call passes on its way in and out.

    who calls ─▶ bytes ─▶ limits ─▶ parse (garbage: INVALID_REQUEST) ─▶ may they? ─▶ cluster id
        ─▶ quota ─▶ handler ─▶ answer
                └─ PenstockError ─▶ status + trailer
                └─ anything else ─▶ INTERNAL, logged here

An interceptor, so that no service repeats it. For a body that is not the right message, gRPC itself
would answer INTERNAL; here the caller reads what is wrong. A defect of the server is logged with
its trace, and answered without it.

To gRPC, a unary call is a stream on this side: so its request is received only once the caller is
known. Of a stranger, nothing is read, parsed or kept, however long the refusal is held back; what
has come is what gRPC's window lets in.

Unary calls are timed here, without the time they waited on purpose (`note_wait`); the server of a
stream times its requests, since only it knows where a request ends.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.rpc.errors import abort
from penstock.rpc.streams.contract import Handle, MessageStream
from penstock_broker.observability import EventLog
from penstock_broker.serving import callers
from penstock_broker.serving.callers import NOBODY, Caller, Door, Identify
from penstock_broker.serving.expiry import bounded_by_credentials
from penstock_broker.serving.open_streams import OpenStreams, counted
from penstock_broker.serving.operators import note_operator
from penstock_broker.serving.request_limits import RequestCheck
from penstock_broker.serving.request_wait import RequestWait

Failed = Callable[[str, str], None]
"""Counts a request that is answered with an error: by method, and by the name of the code."""
REQUEST_S: Final = 30.0
"""How long the request of a unary call is waited for: what proved who calls counts meanwhile."""
FOREIGN_REQUEST_S: Final = 2.0
"""The same for services of others, where nobody is asked who they are."""
FOREIGN_CALLS_MAX: Final = 256
"""Of those, calls that wait for their request."""
_OURS: Final = "/penstock."
_waited_s: Final[ContextVar[float]] = ContextVar("waited_s", default=0.0)
_others_s: Final[ContextVar[float]] = ContextVar("others_s", default=0.0)
_events = EventLog("edge")


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """A wait of the running call for other servers or replicas: it counts in the call's time, but
    not as work for its caller's quota."""
    began_s = monotonic()
    try:
        yield
    finally:
        _others_s.set(_others_s.get() + monotonic() - began_s)


def note_wait(seconds: float) -> None:
    """Subtracts a wait that the caller asked for from the running call's time."""
    _waited_s.set(_waited_s.get() + seconds)


@contextmanager
def timed(observe: Callable[[float], None]) -> Iterator[None]:
    """Gives `observe` the seconds that a request of a stream took, without its waits.

    For the request's own task.
    """
    started = monotonic()
    _waited_s.set(0.0)
    try:
        yield
    finally:
        observe(monotonic() - started - _waited_s.get())


def _nobody_counts(_method: str, _code: str) -> None:
    """For servers without metrics."""


Parse = Callable[[bytes], Message]
"""Raises ClusterError(INVALID_REQUEST)."""


class Edge(grpc.aio.ServerInterceptor):
    """Wraps the handlers of Penstock's services. Of others (health, reflection), streams count, and
    calls must send their request at once."""

    def __init__(
        self,
        cluster_id: Callable[[], str],
        observe: Callable[[str, float], None],
        entered: Callable[[], None] = lambda: None,
        *,
        failed: Failed = _nobody_counts,
        streams: OpenStreams | None = None,
        identify: Identify | None = None,
        access: Door | None = None,
    ) -> None:
        """`cluster_id` returns "" while unknown; `observe(method, seconds)` gets the time at work.

        `failed(method, code)` counts what is answered with an error.

        `entered` is called in the context of every call, before it is handled. `streams` counts
        open ones, also those of other services; None: nobody does. `identify` None: nobody is asked
        who they are. `access` None: whoever is let in may do everything; it is asked about every
        request, those of a stream as well.
        """
        self._streams = streams
        self._identify = identify
        self._access = access
        self._entered = entered
        self._cluster_id = cluster_id
        self._observe = observe
        self._failed = failed
        self._foreign = RequestWait(FOREIGN_CALLS_MAX, FOREIGN_REQUEST_S)
        self._wrapped: dict[str, Any] = {}
        self._nameless: set[type] = set()
        """Types of requests without a cluster id: to look for it in one takes microseconds."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the wrapped handler; each method is wrapped once."""
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if not method.startswith(_OURS):
            if self._streams is not None:
                handler = counted(handler, self._streams)
            wrapped = self._foreign.bounding(handler)
        else:
            wrapped = self._wrap(handler, method)
        self._wrapped[method] = wrapped
        return wrapped

    def _wrap(self, handler: Any, method: str) -> Any:
        name = method.rpartition("/")[2]
        parse = _checked(handler.request_deserializer, RequestCheck(method))
        serialize = _passing_bytes(handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(
                self._unary(handler.unary_unary, name, parse), None, serialize
            )
        assert handler.stream_stream is not None, f"{name}: streams are bidirectional here"
        return grpc.stream_stream_rpc_method_handler(
            self._stream(handler.stream_stream, name, parse), None, serialize
        )

    def _unary(self, inner: Callable[[Any, Any], Awaitable[Any]], name: str, parse: Parse) -> Any:
        async def call(_requests: object, context: Any) -> Any:
            started = monotonic()
            _waited_s.set(0.0)
            _others_s.set(0.0)
            request: Message | None = None
            try:
                self._entered()
                who = await self._let_in(context)
                request = parse(await _received(context))
                return await self._answer(inner, request, context, name, who)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:  # noqa: BLE001 - the edge: nothing else may leave
                seen = answer_for(name, error)
                self._failed(name, seen.code.name)
                if self._access is not None and request is not None:
                    self._access.finished(callers.caller(), name, request, seen)
                await abort(context, seen)
            finally:
                seconds = monotonic() - started - _waited_s.get()
                self._observe(name, seconds)
                if self._access is not None:
                    self._access.worked(callers.caller(), seconds - _others_s.get())

        return call

    async def _answer(
        self,
        inner: Callable[[Any, Any], Awaitable[Any]],
        request: Message,
        context: Any,
        name: str,
        who: Caller,
    ) -> Any:
        self._check(who, name, request)
        if self._access is not None:
            self._access.admit(who, name, request)
        note_operator(name, context)
        answer = await inner(request, context)
        if self._access is not None:
            self._access.finished(who, name, request, answer)
        return answer

    def _stream(self, inner: Callable[[Any, Any], Awaitable[None]], name: str, parse: Parse) -> Any:
        async def call(_requests: object, context: Any) -> None:
            try:
                self._entered()
                who = await self._let_in(context)
                with ExitStack() as stack:
                    if self._streams is not None:
                        stack.enter_context(self._streams.opened(context.peer()))
                    if self._access is not None:
                        stack.enter_context(self._access.streaming(who))
                    # Otherwise the first write sends it; if that is cancelled, gRPC sends it once
                    # more with the status, fails, and the caller gets no error.
                    await context.send_initial_metadata(())
                    check = partial(self._check, who, name)
                    with bounded_by_credentials(who):
                        await inner(_Requests(context.read, parse, check), context)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:  # noqa: BLE001 - the edge: nothing else may leave
                seen = answer_for(name, error)
                self._failed(name, seen.code.name)
                await abort(context, seen)

        return call

    async def _let_in(self, context: Any) -> Caller:
        if self._identify is None:
            return NOBODY
        who = await self._identify(context)
        callers.entered(who)
        return who

    def _check(self, who: Caller, name: str, request: Any) -> None:
        if self._access is not None:
            self._access.authorize(who, name, request)
        kind = type(request)
        if kind in self._nameless:
            return
        named = getattr(request, "cluster_id", None)
        if named is None:
            self._nameless.add(kind)
        else:
            check_cluster_id(named, self._cluster_id())


def guarded(inner: Handle, name: str) -> Handle:
    """A handler of message streams that raises PenstockErrors only; defects are logged."""

    async def handle(stream: MessageStream) -> None:
        try:
            await inner(stream)
        except Exception as error:
            raise answer_for(name, error) from error

    return handle


class _Requests:
    """A stream's checked requests. Unlike gRPC's iterator it does not keep the last request."""

    __slots__ = ("_check", "_parse", "_read")

    def __init__(
        self, read: Callable[[], Awaitable[Any]], parse: Parse, check: Callable[[Message], None]
    ) -> None:
        self._read = read
        self._parse = parse
        self._check = check

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        body = await self._read()
        if body is grpc.aio.EOF:
            raise StopAsyncIteration
        request = self._parse(body)
        self._check(request)
        return request


def check_cluster_id(named: str, own: str) -> None:
    """Raises ClusterError(CLUSTER_ID_MISMATCH) if both are known and differ."""
    if named and own and named != own:
        raise ClusterError(
            f"the request is for cluster {named}, but this is a broker of cluster {own}: check "
            "the addresses that the client uses",
            ErrorCode.CLUSTER_ID_MISMATCH,
        )


async def _received(context: Any) -> bytes:
    """The body of a unary call's request.

    The wait for it is no work of this call. Raises ClusterError(INVALID_REQUEST) if there is none,
    or it is not here within `REQUEST_S`.
    """
    began_s = monotonic()
    try:
        async with asyncio.timeout(REQUEST_S):
            body = await context.read()
    except TimeoutError:
        raise ClusterError(
            f"the call's request did not arrive within {REQUEST_S:g} s; send it with the call, and "
            "what is too much for the connection in several requests",
            ErrorCode.INVALID_REQUEST,
        ) from None
    finally:
        note_wait(monotonic() - began_s)
    if body is grpc.aio.EOF:
        raise ClusterError(
            "the call ended without a request; send one message", ErrorCode.INVALID_REQUEST
        )
    assert isinstance(body, bytes), "nothing parses before"
    return body


def _checked(parse: Parse, check: Callable[[bytes], None]) -> Parse:
    """`parse`, and before it what must not be parsed is refused."""

    def parse_checked(body: bytes) -> Message:
        check(body)
        try:
            return parse(body)
        except (DecodeError, ValueError) as error:
            raise ClusterError(
                f"the request's {len(body)} bytes are not a valid message of this method: {error}",
                ErrorCode.INVALID_REQUEST,
            ) from None

    return parse_checked


def _passing_bytes(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Lets handlers return bytes that they serialized themselves (`rpc.splice`)."""

    def serialize_if_needed(answer: Any) -> bytes:
        return answer if isinstance(answer, bytes) else serialize(answer)

    return serialize_if_needed


def first_error(error: BaseException) -> BaseException:
    """The error wrapped by a TaskGroup; of several, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def answer_for(method: str, error: Exception) -> PenstockError:
    """The error for the caller: the error itself, or INTERNAL for a defect, which is logged."""
    first = first_error(error)
    if isinstance(first, PenstockError):
        return first
    if isinstance(first, grpc.aio.InternalError):
        # The connection broke in the middle of an answer: the caller will not see this error.
        _events.info("the caller of a stream is gone", method=method)
        return ClusterError(f"{method}: the connection broke", ErrorCode.INTERNAL)
    _events.defect("a call failed unexpectedly", error, method=method)
    return ClusterError(
        f"{method} failed unexpectedly; see the broker's log for details",
        ErrorCode.INTERNAL,
    )
