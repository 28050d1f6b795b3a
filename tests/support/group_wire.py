"""The plain group protocol for tests: a member is a stream, a thread reads what it receives.

`Member` takes assignments over at once and gives up what it is to give up, unless told not to.
"""

import queue
import threading
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from support.channels import patient_channel
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.errors import error_from_rpc

Part = tuple[str, int]
_Q = TypeVar("_Q")
_A = TypeVar("_A")
AGAIN = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOADING,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.CONTROLLER_UNAVAILABLE,
    ErrorCode.UNREACHABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.SHUTTING_DOWN,
}


class Groups:
    """Calls for groups of a cluster, each at the group's coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in self._channels.values():
            channel.close()

    def at(self, address: str) -> GroupServiceStub:
        if address not in self._channels:
            self._channels[address] = patient_channel(address)
        return GroupServiceStub(self._channels[address])

    def find(self, group_id: str) -> pb.FindCoordinatorResponse:
        """Who coordinates the group, by any running broker."""
        broker = next(b for b in self.cluster.brokers.values() if b.is_running)
        request = pb.FindCoordinatorRequest(group_id=group_id)
        return self._call(self.at(broker.address).FindCoordinator, request)

    def call(self, name: str, request: Any) -> Any:
        """Calls the coordinator of `request.group_id`; waits for one. Raises PenstockError."""
        answers: list[Any] = []

        def answered() -> bool:
            try:
                where = self.find(request.group_id)
                method = getattr(self.at(f"{where.host}:{where.port}"), name)
                answers.append(self._call(method, request))
            except PenstockError as error:
                if error.code in AGAIN:
                    return False
                raise
            return True

        wait_until(answered, what=f"{name} is answered")
        return answers[0]

    def commit(self, group_id: str, offsets: dict[Part, int], **fields: Any) -> list[ErrorCode]:
        """The error codes of the partitions, UNSPECIFIED for none."""
        parts = [
            pb.CommitPartition(topic=topic, partition=partition, offset=offset, leader_epoch=-1)
            for (topic, partition), offset in offsets.items()
        ]
        request = pb.CommitOffsetsRequest(
            group_id=group_id, partitions=parts, **{"member_epoch": -1, **fields}
        )
        return [ErrorCode(r.error.code) for r in self.call("CommitOffsets", request).results]

    def fetch(self, group_id: str) -> dict[Part, int]:
        answer = self.call("FetchOffsets", pb.FetchOffsetsRequest(group_id=group_id))
        return {(o.topic, o.partition): o.offset for o in answer.offsets}

    def describe(self, group_id: str, *, offsets: bool = False) -> pb.GroupDescription:
        where = self.find(group_id)
        request = pb.DescribeGroupsRequest(group_ids=[group_id], include_offsets=offsets)
        stub = self.at(f"{where.host}:{where.port}")
        return self._call(stub.DescribeGroups, request).groups[0]

    def join(self, group_id: str, *topics: str, **fields: Any) -> "Member":
        """Joins again; waits for a coordinator."""
        member = Member(self, group_id, topics, fields)
        member.connect()
        return member

    @staticmethod
    def _call(method: "grpc.UnaryUnaryMultiCallable[_Q, _A]", request: _Q) -> _A:
        try:
            return method(request, timeout=120)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error


class Member:
    """See the module. Its fields may be read at any time."""

    def __init__(
        self, groups: Groups, group_id: str, topics: tuple[str, ...], fields: dict[str, Any]
    ) -> None:
        self.groups = groups
        self.group_id = group_id
        self.topics = topics
        self.fields = fields
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: set[Part] = set()
        self.lost: set[Part] = set()
        self.error: PenstockError | None = None
        self.joined = threading.Event()
        self.ended = threading.Event()
        self.keeps_everything = False
        self._ids: dict[str, str] = {}
        self._out: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self._call: grpc.Call | None = None
        self._reader: threading.Thread | None = None

    def connect(self) -> None:
        """Opens a stream until one is accepted, or refused for a reason that does not pass."""

        def joined() -> bool:
            try:
                where = self.groups.find(self.group_id)
            except PenstockError as error:
                if error.code in AGAIN:
                    return False
                raise
            self._open(self.groups.at(f"{where.host}:{where.port}"))
            wait_until(
                lambda: self.joined.is_set() or self.ended.is_set(), what="joined or refused"
            )
            return self.joined.is_set() or (self.error is not None and self.error.code not in AGAIN)

        wait_until(joined, what=f"member of {self.group_id} joins")

    def _open(self, stub: GroupServiceStub) -> None:
        self._out = queue.SimpleQueue()
        self.joined.clear()
        self.ended.clear()
        self.error = None
        hello = pb.MemberHello(
            group_id=self.group_id,
            member_id=self.member_id,
            subscription=pb.Subscription(topics=self.topics),
            member_epoch=self.epoch,
            owned=self._parts(),
            **self.fields,
        )
        self._out.put(pb.JoinRequest(hello=hello))
        self._call = stub.Join(iter(self._out.get, None))
        self._reader = threading.Thread(target=self._read, args=(self._call,), daemon=True)
        self._reader.start()

    def _read(self, answers: Iterator[pb.JoinResponse]) -> None:
        try:
            for answer in answers:
                if answer.HasField("joined"):
                    self.epoch = answer.joined.member_epoch
                elif answer.HasField("assignment"):
                    self._assigned(answer.assignment)
        except grpc.RpcError as error:
            self.error = error_from_rpc(error)
        finally:
            self._out.put(None)
            self.ended.set()

    def _assigned(self, assignment: pb.MemberAssignment) -> None:
        self.joined.set()
        self._ids |= {topic.topic: topic.topic_id for topic in assignment.partitions}
        new = {(t.topic, partition) for t in assignment.partitions for partition in t.partitions}
        self.lost |= self.owned - new
        self.owned = self.owned | new if self.keeps_everything else new
        self.epoch = assignment.member_epoch
        owned = pb.OwnedPartitions(partitions=self._parts(), assignment_number=assignment.number)
        self._out.put(pb.JoinRequest(heartbeat=pb.MemberHeartbeat(owned=owned)))

    def _parts(self) -> list[pb.TopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self.owned):
            by_topic.setdefault(topic, []).append(partition)
        return [
            pb.TopicPartitions(topic=topic, topic_id=self._ids[topic], partitions=partitions)
            for topic, partitions in by_topic.items()
        ]

    def beat(self) -> None:
        self._out.put(pb.JoinRequest(heartbeat=pb.MemberHeartbeat()))

    def leave(self, *, keep_seat: bool = False) -> None:
        """Leaves and waits until the coordinator has ended the stream."""
        self._out.put(pb.JoinRequest(leave=pb.MemberLeave(keep_seat=keep_seat)))
        assert self.ended.wait(40), "the coordinator ends the stream of a member that leaves"

    def cut(self) -> None:
        """The stream breaks."""
        assert self._call is not None
        self._call.cancel()
        assert self.ended.wait(40)

    def cut_and_return(self) -> None:
        """As `cut` and `connect`. The coordinator learns of both in one moment, however long this
        process takes for them: a member whose stream broke has little time."""
        where = self.groups.find(self.group_id)
        coordinator = self.groups.cluster.brokers[where.broker_id]
        coordinator.pause()
        self.cut()
        self._open(self.groups.at(f"{where.host}:{where.port}"))
        coordinator.resume()
        wait_until(self.joined.is_set, what=f"member of {self.group_id} is back")

    def commit(self, offsets: dict[Part, int], **fields: Any) -> list[ErrorCode]:
        return self.groups.commit(
            self.group_id,
            offsets,
            **{"member_id": self.member_id, "member_epoch": self.epoch, **fields},
        )


def wait_for_shares(count: int, *members: Member) -> None:
    """Until each owns `count` partitions in the same epoch. The one that gave partitions away gets
    the new epoch in a message of its own, and may not commit with the former one."""
    wait_until(
        lambda: (
            all(len(member.owned) == count for member in members)
            and len({member.epoch for member in members}) == 1
        ),
        what=f"each member owns {count} partitions in one epoch",
    )
