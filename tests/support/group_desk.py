"""A coordinator under a fake clock whose log commits at once; members in one line each."""

from dataclasses import dataclass, field
from typing import Any

from support.ticking import pass_time

from penstock.core.defect import raise_defect
from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import Catalog, CatalogTopic, NamedPartition, Subscription
from penstock.core.groups.contract_views import (
    Described,
    DescribeRequested,
    FetchRequested,
    GroupState,
)
from penstock.core.types import TopicId
from penstock.errors import PenstockError

TIME_MS = 1_700_000_000_000


def topic(name: str, partitions: int) -> CatalogTopic:
    return CatalogTopic(name, TopicId(f"id-{name}"), partitions)


@dataclass
class Desk:
    """Feeds events and keeps what came out."""

    config: GroupConfig = field(default_factory=GroupConfig)
    catalog: Catalog = field(default_factory=lambda: Catalog.of(topic("t", 4), topic("u", 2)))
    now_ms: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    ids: int = 0
    ready: c.Ready = c.NOTHING

    def __post_init__(self) -> None:
        self.machine = GroupCoordinator(self.config, TIME_MS)
        self.take(self.machine.start(self.catalog, self.now_ms))

    def take(self, ready: c.Ready) -> c.Ready:
        self.log += ready.records
        self.ready = ready
        return ready

    def feed(self, event: c.Event) -> c.Ready:
        ready = self.machine.handle(event, self.now_ms)
        raise_defect(ready.stopped)
        return self.take(ready)

    def restart(self, catalog: Catalog | None = None) -> c.Ready:
        """Another coordinator from the same log."""
        self.catalog = catalog or self.catalog
        self.machine = GroupCoordinator(self.config, TIME_MS)
        for key, value in self.log:
            self.machine.load(key, value)
        return self.take(self.machine.start(self.catalog, self.now_ms))

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def join(self, member: str, *topics: str, group: str = "g", **fields: Any) -> int:
        """A hello; its stream. Outputs are in `ready`."""
        stream_id = self.new_id()
        subscription = fields.pop("subscription", Subscription(topics or ("t",)))
        self.feed(
            c.MemberJoined(
                stream_id=stream_id,
                group_id=group,
                member_id=member,
                subscription=subscription,
                **fields,
            )
        )
        return stream_id

    def refused(self, member: str, *topics: str, **fields: Any) -> PenstockError:
        """The error a hello is refused with; nothing else came of it."""
        stream_id = self.join(member, *topics, **fields)
        (output,) = self.ready.outputs
        assert isinstance(output, c.EndStream)
        assert output.stream_id == stream_id
        assert output.error is not None
        assert not self.ready.records
        return output.error

    def owned(self, member: str, group: str = "g") -> set[tuple[str, int]]:
        """What a member may own: topic ids without "id-", and partitions."""
        parts = self.machine.groups[group].members[member].current.parts
        return {(topic_id.removeprefix("id-"), partition) for topic_id, partition in parts}

    def acknowledge(self, stream_id: int) -> c.Ready:
        """A member has done all that it was told."""
        found = self.machine._book.member(stream_id)
        assert found is not None
        member = found[1]
        return self.feed(c.MemberHeard(stream_id, c.Owned(member.current.parts, member.number)))

    def ask(self, request: c.Request) -> Any:
        """The answer; raises the PenstockError it is."""
        outputs = self.feed(request).outputs
        (output,) = outputs
        assert isinstance(output, c.Reply)
        if isinstance(output.answer, PenstockError):
            raise output.answer
        return output.answer

    def commit(
        self, offsets: dict[tuple[str, int], int], member: str = "", epoch: int = -1, **fields: Any
    ) -> list[PenstockError | None]:
        group = fields.pop("group", "g")
        new = tuple(
            c.NewOffset(where=NamedPartition(name, TopicId(""), partition), offset=offset, **fields)
            for (name, partition), offset in offsets.items()
        )
        request = c.CommitRequested(
            request_id=self.new_id(),
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id="",
            offsets=new,
        )
        return list(self.ask(request).errors)

    def fetch(self, group: str = "g") -> dict[tuple[str, int], int]:
        found = self.ask(FetchRequested(self.new_id(), group))
        return {(o.topic, o.partition): o.offset for o in found.offsets}

    def pass_time(self, ms: int) -> list[c.Output]:
        """Ticks whenever one is due; all outputs."""
        return pass_time(self, c.Tick(), ms)

    def state(self, group: str = "g") -> GroupState:
        described: Described = self.ask(DescribeRequested(self.new_id(), group))
        return described.state
