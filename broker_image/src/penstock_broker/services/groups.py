"""The `GroupService`: calls become events of the group's coordinator, whose outputs are answers.

    Join stream ─▶ hello, heartbeats, leave ─▶ Coordinator ─▶ MemberStream ─▶ joined, assignments
    calls, streamed commits ─▶ Coordinator.ask ─▶ answered once all they depend on is committed

Nothing here decides; `logged.finding` finds group ids, `penstock.rpc.groups` converts wire types.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, Final, NoReturn

from penstock.core.authorization import Kind, Operation, Prefix
from penstock.core.groups import contract as c
from penstock.core.groups.contract_views import (
    Described,
    DescribeRequested,
    Fetched,
    Listed,
    ListRequested,
)
from penstock.core.groups.offsets import PARTITIONS_MAX as COMMITTED_MAX
from penstock.core.groups.offsets import without_topics
from penstock.core.groups.pattern import literal_prefix
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import GroupServiceServicer
from penstock.rpc import groups as wire
from penstock.rpc.errors import error_to_wire
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.coordinators import Coordinators
from penstock_broker.groups.streams import MemberStream, StreamEndedError
from penstock_broker.metadata.image import ClusterView
from penstock_broker.services.limits import (
    NAMES_MAX,
    PARTITIONS_MAX,
    begins_slice,
    check_count,
    described,
)
from penstock_broker.services.locate import unknown_outcome
from penstock_broker.serving.access import Access
from penstock_broker.serving.callers import Role, caller
from penstock_broker.serving.edge import check_cluster_id
from penstock_broker.serving.listener import host_of_peer

_HELLO_TIMEOUT_S: Final = 30.0
_LEAVE_TIMEOUT_S: Final = 30.0
_LISTED_MAX: Final = 50_000
"""Groups per answer, which must fit into a message even if all ids are long."""
_ALIVE: Final = pb.JoinResponse(alive=pb.CoordinatorAlive()).SerializeToString()


class GroupService(GroupServiceServicer):
    """See the module."""

    def __init__(
        self,
        view: ClusterView,
        coordinators: Coordinators,
        refusal: Callable[[], PenstockError | None],
        observe: Callable[[str, float], None],
    ) -> None:
        """`refusal` says why nothing can be written now (disk full, stopping), or None.

        `observe(method, seconds)` times commits on streams; the edge times unary calls.
        """
        self._view = view
        self._coordinators = coordinators
        self._refusal = refusal
        self._observe = observe
        self._stream_ids = count(1)

    async def FindCoordinator(
        self, request: pb.FindCoordinatorRequest, context: Any
    ) -> pb.FindCoordinatorResponse:
        """From the image; the first call has the internal topic created."""
        partition, leader = await self._coordinators.finder.locate(request.group_id)
        return pb.FindCoordinatorResponse(
            broker_id=leader.broker_id,
            host=leader.host,
            port=leader.port,
            partition=partition,
            leader_epoch=leader.leader_epoch,
        )

    # ------------------------------------------------------------ membership

    async def Join(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.JoinRequest], context: Any
    ) -> None:
        """One member's stream, until either side ends it."""
        rules = self._view.rules.generation  # before the edge, and what follows, asks them
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                first = await anext(request_iterator, None)
        except TimeoutError:
            raise _invalid(f"no hello came within {_HELLO_TIMEOUT_S:.0f} s") from None
        if first is None:
            return
        if not first.HasField("hello"):
            raise _invalid("the first message of a Join stream must be a hello")
        hello = first.hello
        self._check_pattern(hello.subscription)
        check_cluster_id(hello.cluster_id, self._view.cluster_id)
        self._view.check_awake()
        coordinator = self._coordinators.find(hello.group_id)
        self._coordinators.writable(coordinator, self._refusal())
        stream = MemberStream(next(self._stream_ids))
        event = wire.joined_from_wire(hello, stream.stream_id, host_of_peer(context.peer()))
        coordinator.add_stream(stream)
        try:
            coordinator.handle(event)
            await self._serve(coordinator, stream, hello, rules, request_iterator, context)
        finally:
            coordinator.drop_stream(stream)

    async def _serve(
        self,
        coordinator: Coordinator,
        stream: MemberStream,
        hello: pb.MemberHello,
        rules: int,
        requests: AsyncIterator[pb.JoinRequest],
        context: Any,
    ) -> None:
        """`rules`: the generation of those that let the member in, or of older ones."""
        member = _Member(coordinator, stream, context)
        rights = _MemberRights(self._view.access, hello, self._check_pattern)
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(member.write())
                watch = tasks.create_task(self._watch_rules(rights, rules))
                await member.read(rights.watched(requests))
                writer.cancel()  # the member closed its side without a leave, or has left
                watch.cancel()
        except* StreamEndedError:
            pass

    def _check_pattern(self, subscription: pb.Subscription) -> None:
        """A pattern shows its member the names of topics: the member must be allowed to read all
        that begin as the pattern does."""
        if subscription.pattern:
            prefix = Prefix(Kind.TOPIC, literal_prefix(subscription.pattern))
            self._view.access.check_all(Operation.READ, prefix)

    async def _watch_rules(self, rights: "_MemberRights", seen: int) -> None:
        """Ends the stream, by raising, once its member may not be one any more.

        `seen`: the generation of rules by which it may.
        """
        if caller().role is not Role.USER:
            return
        while True:
            if self._view.rules.generation != seen:
                seen = self._view.rules.generation
                rights.check()
            await self._view.next_image()

    # ------------------------------------------------------------ offsets

    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: Any
    ) -> pb.CommitOffsetsResponse:
        """Answered once the offsets are on all in-sync replicas."""
        check_count("partitions", len(request.partitions), COMMITTED_MAX)
        denied = self._denied_commits(request)
        if denied:
            return await self._commit_rest(request, denied, context)
        coordinator = self._writable(request.group_id)
        answer = await coordinator.ask(lambda number: wire.commit_from_wire(request, number))
        assert isinstance(answer, c.Committed)
        return wire.commit_response(request, answer)

    def _denied_commits(self, request: pb.CommitOffsetsRequest) -> dict[int, PenstockError]:
        """Partitions, by index, whose topics the caller may not read."""
        denied: dict[int, PenstockError] = {}
        if caller().role is not Role.USER:
            return denied
        for index, part in enumerate(request.partitions):
            try:
                self._view.access.check(Operation.READ, Kind.TOPIC, part.topic)
            except PenstockError as error:
                denied[index] = error
        return denied

    async def _commit_rest(
        self,
        request: pb.CommitOffsetsRequest,
        denied: dict[int, PenstockError],
        context: Any,
    ) -> pb.CommitOffsetsResponse:
        """Commits what is not denied; one result per partition, in the request's order."""
        allowed = pb.CommitOffsetsRequest()
        allowed.CopyFrom(request)
        del allowed.partitions[:]
        allowed.partitions.extend(
            part for index, part in enumerate(request.partitions) if index not in denied
        )
        committed = iter((await self.CommitOffsets(allowed, context)).results)
        return pb.CommitOffsetsResponse(
            results=[
                pb.CommitResult(
                    topic=part.topic,
                    topic_id=part.topic_id,
                    partition=part.partition,
                    error=error_to_wire(denied[index]),
                )
                if index in denied
                else next(committed)
                for index, part in enumerate(request.partitions)
            ]
        )

    async def CommitOffsetsStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.CommitOffsetsRequest], context: Any
    ) -> None:
        """One after the other: further requests of a client wait in the transport (I23)."""
        async for request in request_iterator:
            started = monotonic()
            try:
                answer = await self.CommitOffsets(request, context)
            finally:
                self._observe("CommitOffsets", monotonic() - started)
            await context.write(answer)

    async def FetchOffsets(
        self, request: pb.FetchOffsetsRequest, context: Any
    ) -> pb.FetchOffsetsResponse:
        """The committed offsets. Of topics that are named, but hidden from the caller, none."""
        check_count("partitions", len(request.partitions), PARTITIONS_MAX)
        hidden = await self._hidden(dict.fromkeys(part.topic for part in request.partitions))
        coordinator = self._coordinators.find(request.group_id)
        answer = await coordinator.ask(lambda number: wire.fetch_from_wire(request, number))
        assert isinstance(answer, Fetched)
        if hidden:
            answer = without_topics(answer, wire.fetch_from_wire(request, 0), hidden)
        return wire.fetch_response(answer)

    async def _hidden(self, topics: Iterable[str]) -> set[str]:
        """Those that the caller may not describe. Others have turns between many of them."""
        hidden: set[str] = set()
        for index, topic in enumerate(topics):
            if begins_slice(index):
                await asyncio.sleep(0)
            try:
                self._view.access.check(Operation.DESCRIBE, Kind.TOPIC, topic)
            except PenstockError:
                hidden.add(topic)
        return hidden

    async def ResetOffsets(
        self, request: pb.ResetOffsetsRequest, context: Any
    ) -> pb.ResetOffsetsResponse:
        """Resets all or nothing."""
        coordinator = self._writable(request.group_id)
        answer = await coordinator.ask(lambda number: wire.reset_from_wire(request, number))
        assert isinstance(answer, c.ResetDone)
        return wire.reset_response(request, answer)

    # ------------------------------------------------------------ groups

    async def DeleteGroup(
        self, request: pb.DeleteGroupRequest, context: Any
    ) -> pb.DeleteGroupResponse:
        """Deletes a group without members."""
        coordinator = self._writable(request.group_id)
        await coordinator.ask(lambda number: c.DeleteRequested(number, request.group_id))
        return pb.DeleteGroupResponse()

    async def ListGroups(
        self, request: pb.ListGroupsRequest, context: Any
    ) -> pb.ListGroupsResponse:
        """Groups of all coordinators here that are loaded."""
        states = wire.states_from_wire(request.states)
        groups: list[pb.GroupListing] = []
        loading: list[int] = []
        for coordinator in self._coordinators.led:
            try:
                answer = await coordinator.ask(lambda number: ListRequested(number, states))
            except PenstockError:
                loading.append(coordinator.partition)
                continue
            assert isinstance(answer, Listed)
            groups += [
                wire.listing(group, coordinator.partition)
                for group in answer.groups
                if self._view.access.allows(Operation.DESCRIBE, Kind.GROUP, group.group_id)
            ]
            if len(groups) > _LISTED_MAX:
                raise _invalid(
                    f"this broker coordinates {len(groups)} groups or more, an answer lists at "
                    f"most {_LISTED_MAX}; list groups in some states only, or delete those that "
                    "are not used"
                )
        return pb.ListGroupsResponse(groups=groups, loading_partitions=loading)

    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, context: Any
    ) -> pb.DescribeGroupsResponse:
        """Describes each group separately."""
        check_count("groups", len(request.group_ids), NAMES_MAX)
        describe = partial(self._describe, include_offsets=request.include_offsets)
        groups = await described(request.group_ids, describe, _not_described)
        return pb.DescribeGroupsResponse(groups=groups)

    async def _describe(self, group_id: str, *, include_offsets: bool) -> pb.GroupDescription:
        try:
            self._view.access.check(Operation.DESCRIBE, Kind.GROUP, group_id)
            coordinator = self._coordinators.find(group_id)
            answer = await coordinator.ask(
                lambda number: DescribeRequested(number, group_id, include_offsets)
            )
        except PenstockError as error:
            return _not_described(group_id, error)
        assert isinstance(answer, Described)
        return wire.description(answer, coordinator.partition, coordinator.broker_id)

    def _writable(self, group_id: str) -> Coordinator:
        coordinator = self._coordinators.find(group_id)
        self._coordinators.writable(coordinator, self._refusal())
        return coordinator


def _not_described(group_id: str, error: PenstockError) -> pb.GroupDescription:
    return pb.GroupDescription(group_id=group_id, error=error_to_wire(error))


class _MemberRights:
    """What a member is allowed to be, checked again when rules change."""

    def __init__(
        self,
        access: Access,
        hello: pb.MemberHello,
        check_pattern: Callable[[pb.Subscription], None],
    ) -> None:
        self._access = access
        self._group_id = hello.group_id
        self._transactional_id = hello.transactional_id
        self._subscription = hello.subscription
        self._check_pattern = check_pattern

    def check(self) -> None:
        """Raises ClusterError, PERMISSION_DENIED also for topics that may not even be seen now."""
        try:
            self._access.check(Operation.READ, Kind.GROUP, self._group_id)
            if self._transactional_id:
                self._access.check(Operation.WRITE, Kind.TRANSACTIONAL_ID, self._transactional_id)
            for topic in self._subscription.topics:
                self._access.check(Operation.READ, Kind.TOPIC, topic)
            self._check_pattern(self._subscription)
        except ClusterError as error:
            raise ClusterError(
                f"a rule of access has changed: {error.message}", ErrorCode.PERMISSION_DENIED
            ) from None

    async def watched(
        self, requests: AsyncIterator[pb.JoinRequest]
    ) -> AsyncIterator[pb.JoinRequest]:
        """The member's messages; keeps its subscription. The edge has checked the topics in it."""
        async for request in requests:
            if request.HasField("heartbeat") and request.heartbeat.HasField("subscription"):
                self._check_pattern(request.heartbeat.subscription)
                self._subscription = request.heartbeat.subscription
            yield request


class _Member:
    """The two directions of one stream."""

    def __init__(self, coordinator: Coordinator, stream: MemberStream, context: Any) -> None:
        self._coordinator = coordinator
        self._stream = stream
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._told_at_s = self._loop.time()
        self._writing = asyncio.Lock()
        self._no_news = c.MemberHeard(stream.stream_id)

    async def write(self) -> None:
        """Sends the coordinator's messages to the member; ends by raising."""
        while True:
            message = wire.join_response(await self._stream.next())
            await self._send(message.SerializeToString())

    async def read(self, requests: AsyncIterator[pb.JoinRequest]) -> None:
        """Takes the member's messages until it closes its side."""
        async for request in requests:
            kind = request.WhichOneof("message")
            if kind == "heartbeat":
                self._coordinator.handle(self._heard(request.heartbeat))
                await self._show_life()
            elif kind == "leave":
                keep_seat = request.leave.keep_seat
                self._coordinator.handle(c.MemberLeft(self._stream.stream_id, keep_seat))
                await self._ending()
            else:
                raise _invalid(
                    "after the hello, a member can only send heartbeats and a final leave"
                )

    def _heard(self, heartbeat: pb.MemberHeartbeat) -> c.MemberHeard:
        """Nearly all heartbeats are empty: they share one event."""
        if not heartbeat.ByteSize():
            return self._no_news
        return wire.heard_from_wire(heartbeat, self._stream.stream_id)

    @staticmethod
    async def _ending() -> NoReturn:
        """Waits until the coordinator ends the stream, which the writer notices.

        Raises ClusterError(REQUEST_TIMED_OUT) if it does not.
        """
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        raise unknown_outcome(f"the leave was not stored within {_LEAVE_TIMEOUT_S:.0f} s")

    async def _show_life(self) -> None:
        """A member that receives nothing would consider the coordinator dead."""
        silent_s = self._loop.time() - self._told_at_s
        if silent_s * 2000 >= self._stream.session_timeout_ms > 0:
            await self._send(_ALIVE)

    async def _send(self, message: bytes) -> None:
        async with self._writing:
            self._told_at_s = self._loop.time()
            await self._context.write(message)


def _invalid(what: str) -> ClusterError:
    return ClusterError(what, ErrorCode.INVALID_REQUEST)
