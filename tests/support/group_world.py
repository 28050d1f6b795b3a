"""A coordinator in a world that goes wrong: a log that commits late, members that crash and crawl.

`GroupWorld.run` makes random things happen and checks after each: the state is what the log adds
up to (I16), a partition has one owner among the members the coordinator counts (I18), nothing is
taken from a member that it is to keep, commits of other epochs are refused, no acknowledged offset
is lost or goes back. `GroupWorld.settle` ends the trouble and checks that everybody owns a share.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.core.defect import raise_defect
from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import (
    NO_PARTS,
    Catalog,
    CatalogTopic,
    NamedPartition,
    Part,
    Subscription,
)
from penstock.core.groups.contract_views import GroupState
from penstock.core.types import TopicId
from penstock.errors import PenstockError

TIME_AT_ZERO_MS = 1_700_000_000_000
SESSION_MS = 6_000
REBALANCE_MS = 4_000


def durable(machine: GroupCoordinator) -> Any:
    """Everything that must survive a failover, comparable."""
    return {
        group.group_id: (
            group.record,
            {m.member_id: (m.record, m.target, m.current) for m in group.members.values()},
            dict(group.offsets),
            dict(group.owners),
            dict(group.targets),
        )
        for group in machine.groups.values()
    }


@dataclass
class Client:
    """A member's process: what it owns by its own word, and what is on its way to and from it."""

    member_id: str
    group_id: str
    subscription: Subscription
    instance_id: str = ""
    assignor: str = ""
    stream_id: int | None = None
    epoch: int = 0
    number: int = 0
    owned: set[Part] = field(default_factory=set)
    giving_up: set[Part] = field(default_factory=set)
    inbox: deque[c.SendJoined | c.SendAssignment] = field(default_factory=deque)
    outbox: deque[c.Event] = field(default_factory=deque)
    beats_at_ms: int = 0
    alive: bool = True
    stuck: bool = False

    def take(self, message: c.SendJoined | c.SendAssignment) -> None:
        """One message from the coordinator."""
        if isinstance(message, c.SendJoined):
            self.epoch = message.member_epoch
            return
        self.epoch, self.number = message.member_epoch, message.number
        self.giving_up |= self.owned - message.parts
        self.giving_up -= message.parts
        self.owned |= message.parts

    def give_up(self) -> None:
        """What it may not own any more is let go, and it says so."""
        self.owned -= self.giving_up
        self.giving_up.clear()
        self.say_owned()

    def say_owned(self) -> None:
        if self.stream_id is not None:
            owned = c.Owned(frozenset(self.owned), self.number)
            self.outbox.append(c.MemberHeard(self.stream_id, owned))

    def drop_everything(self) -> None:
        self.stream_id = None
        self.epoch = self.number = 0
        self.owned.clear()
        self.giving_up.clear()
        self.inbox.clear()
        self.outbox.clear()


class GroupWorld:
    """See the module. `early`: a planted bug, answers leave before their records are committed."""

    def __init__(self, rng: random.Random, *, early: bool = False) -> None:
        self.rng = rng
        self.early = early
        self.now_ms = 0
        self.topics: dict[str, CatalogTopic] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.committed = 0
        self.ends: list[int] = []  # of batches: a batch is in a log whole or not at all
        self.waiting: deque[tuple[int, c.Output]] = deque()
        self.clients: dict[str, Client] = {}
        self.by_stream: dict[int, Client] = {}
        self.requests: dict[int, Any] = {}
        self.count = 0
        self.acknowledged: dict[tuple[str, Part], int] = {}
        self.positions: dict[Part, int] = {}
        self.config = GroupConfig(sweep_interval_ms=5_000, deleted_topic_grace_ms=60_000)
        self.machine = GroupCoordinator(self.config, TIME_AT_ZERO_MS)
        for name in ("a", "b"):
            self.put_topic(name, self.rng.randint(1, 8))
        self.obey(self.machine.start(self.catalog, self.now_ms))

    # ------------------------------------------------------------ the world

    @property
    def catalog(self) -> Catalog:
        return Catalog.of(*self.topics.values())

    def next(self) -> int:
        self.count += 1
        return self.count

    def put_topic(self, name: str, partitions: int) -> None:
        known = self.topics.get(name)
        topic_id = TopicId(f"{name}-{self.next()}") if known is None else known.topic_id
        racks = tuple(frozenset(self.rng.sample("xyz", 2)) for _ in range(partitions))
        self.topics[name] = CatalogTopic(name, topic_id, partitions, racks)

    def feed(self, event: c.Event) -> None:
        """One event, obeyed and checked."""
        before = {
            (group.group_id, member.member_id): (member, member.current.parts)
            for group in self.machine.groups.values()
            for member in group.members.values()
        }
        ready = self.machine.handle(event, self.now_ms)
        raise_defect(ready.stopped)
        joined = event.member_id if isinstance(event, c.MemberJoined) else ""
        for group in self.machine.groups.values():
            for member in group.members.values():
                known = before.get((group.group_id, member.member_id))
                if known is None or known[0] is not member or member.member_id == joined:
                    continue
                lost = known[1] - member.current.parts
                assert not lost & member.target, f"{member.member_id} is to keep {lost}"
        self.obey(ready)

    def obey(self, ready: c.Ready) -> None:
        self.log += ready.records
        self.ends.append(len(self.log))
        end = self.committed if self.early else len(self.log)
        self.waiting += [(end, output) for output in ready.outputs]
        if ready.records:
            assert durable(self.machine) == durable(self.rebuilt(len(self.log))), "I16"
        self.release()

    def rebuilt(self, end: int) -> GroupCoordinator:
        machine = GroupCoordinator(self.config, TIME_AT_ZERO_MS)
        for key, value in self.log[:end]:
            machine.load(key, value)
        assert machine._loader is not None
        machine._book.groups = machine._loader.groups()
        return machine

    def commit_log(self, end: int) -> None:
        self.committed = max(self.committed, end)
        self.release()

    def release(self) -> None:
        while self.waiting and self.waiting[0][0] <= self.committed:
            self.told(self.waiting.popleft()[1])

    def told(self, output: c.Output) -> None:
        match output:
            case c.Reply(request_id, answer):
                self.requests.pop(request_id)(answer)
            case c.EndStream(stream_id, error):
                client = self.by_stream.pop(stream_id, None)
                if client is not None and client.stream_id == stream_id:
                    if error is None or not error.retriable:
                        client.drop_everything()
                    if error is None:
                        client.alive = False
                    client.stream_id = None
            case c.SendJoined() | c.SendAssignment():
                client = self.by_stream.get(output.stream_id)
                if client is not None:
                    client.inbox.append(output)

    def fail_over(self) -> None:
        """Another broker leads: what was not committed is gone, and every stream with it."""
        del self.log[self.committed :]
        self.ends = [end for end in self.ends if end <= self.committed]
        self.waiting.clear()
        self.requests.clear()
        for client in self.clients.values():
            self.cut(client, tell=False)
        self.by_stream.clear()
        machine = GroupCoordinator(self.config, TIME_AT_ZERO_MS)
        for key, value in self.log:
            machine.load(key, value)
        self.machine = machine
        self.obey(machine.start(self.catalog, self.now_ms))
        self.check_acknowledged()

    def check_acknowledged(self) -> None:
        alive = {topic.topic_id for topic in self.topics.values()}
        for (group_id, part), offset in self.acknowledged.items():
            if part[0] not in alive:
                continue
            group = self.machine.groups.get(group_id)
            record = None if group is None else group.offsets.get(part)
            assert record is not None, f"{group_id} lost its offset of {part}"
            assert record.offset >= offset, f"{group_id} {part}: {record.offset} < {offset}"

    # ------------------------------------------------------------ clients

    def start_client(self, instance_id: str = "") -> Client:
        group_id = self.rng.choice(["g1", "g1", "g2"])
        subscription = self.rng.choice(
            [
                Subscription(("a",)),
                Subscription(("a", "b")),
                Subscription(("b", "c")),
                Subscription((), "[a-c]"),
            ]
        )
        client = Client(
            f"m{self.next()}",
            "g1" if instance_id else group_id,
            subscription,
            instance_id,
            assignor=self.rng.choice(["", "uniform", "range"]),
        )
        self.clients[client.member_id] = client
        self.connect(client)
        return client

    def connect(self, client: Client) -> None:
        client.stream_id = self.next()
        client.number = 0
        client.beats_at_ms = self.now_ms + 1_000
        client.inbox.clear()
        client.outbox.clear()
        self.by_stream[client.stream_id] = client
        self.feed(
            c.MemberJoined(
                stream_id=client.stream_id,
                group_id=client.group_id,
                member_id=client.member_id,
                subscription=client.subscription,
                instance_id=client.instance_id,
                rack=self.rng.choice(["", "x", "y"]),
                assignor=client.assignor,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_epoch=client.epoch,
                owned=frozenset(client.owned) if client.epoch else NO_PARTS,
            )
        )
        self.check()

    def cut(self, client: Client, *, tell: bool = True) -> None:
        stream_id, client.stream_id = client.stream_id, None
        client.inbox.clear()
        client.outbox.clear()
        if stream_id is not None:
            self.by_stream.pop(stream_id, None)
            if tell:
                self.feed(c.StreamBroken(stream_id))

    def commit(self, client: Client, part: Part, offset: int, epoch: int) -> None:
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        if part[0] not in names:
            return
        group = self.machine.groups.get(client.group_id)
        member = None if group is None else group.members.get(client.member_id)
        known = None if group is None else group.offsets.get(part)
        entitled = (
            member is not None
            and member.current.epoch == epoch
            and part in member.current.parts | member.current.pending
        )
        forward = known is None or known.offset <= offset

        def answered(answer: c.Committed | PenstockError) -> None:
            error = answer if isinstance(answer, PenstockError) else answer.errors[0]
            if error is None:
                assert entitled, f"a commit of {client.member_id} in epoch {epoch} was taken (I18)"
                assert forward, "an offset went back (I18)"
                self.acknowledged[client.group_id, part] = offset
            else:
                assert not (entitled and forward), error

        request_id = self.next()
        self.requests[request_id] = answered
        where = NamedPartition(names[part[0]], part[0], part[1])
        self.feed(
            c.CommitRequested(
                request_id=request_id,
                group_id=client.group_id,
                member_id=client.member_id,
                member_epoch=epoch,
                instance_id=client.instance_id,
                offsets=(c.NewOffset(where=where, offset=offset),),
            )
        )

    # ------------------------------------------------------------ trouble

    def run(self, steps: int) -> None:
        weighted = (
            [self._take] * 8
            + [self._deliver] * 8
            + [self._give_up] * 4
            + [self._pass_time] * 4
            + [self._commit_log] * 5
            + [self._commit] * 5
            + [self._start, self._leave, self._crash, self._break, self._topics, self._stick]
            + [self._resubscribe, self._start_static]
        )
        for _ in range(steps):
            self.rng.choice([*weighted, self.fail_over] if self.rng.random() < 0.2 else weighted)()
            self.reconnect_some()
            self.check()

    def _some(self, *, connected: bool = True) -> Client | None:
        found = [
            client
            for client in self.clients.values()
            if client.alive and (client.stream_id is not None or not connected)
        ]
        return self.rng.choice(found) if found else None

    def _take(self) -> None:
        client = self._some()
        if client is not None and client.inbox:
            client.take(client.inbox.popleft())

    def _deliver(self) -> None:
        client = self._some()
        if client is not None and client.outbox:
            self.feed(client.outbox.popleft())

    def _give_up(self) -> None:
        client = self._some()
        if client is not None and not client.stuck:
            client.give_up()

    def _pass_time(self) -> None:
        self.now_ms += self.rng.choice([10, 50, 150, 400])
        for client in list(self.clients.values()):
            due = client.alive and client.stream_id is not None
            if due and self.now_ms >= client.beats_at_ms:
                client.beats_at_ms = self.now_ms + 1_000
                assert client.stream_id is not None
                self.feed(c.MemberHeard(client.stream_id))
        self.tick()

    def tick(self) -> None:
        while self.machine.next_wake_ms <= self.now_ms:
            self.feed(c.Tick())

    def _commit_log(self) -> None:
        ends = [end for end in self.ends if end >= self.committed]
        if ends:
            self.commit_log(self.rng.choice(ends))

    def _commit(self) -> None:
        client = self._some(connected=False)
        if client is None or not client.owned:
            return
        part = self.rng.choice(sorted(client.owned))
        self.positions[part] = self.positions.get(part, 0) + self.rng.randint(-1, 3)
        epoch = client.epoch - (self.rng.random() < 0.1)
        self.commit(client, part, max(self.positions[part], 0), epoch)

    def _start(self) -> None:
        if sum(client.alive for client in self.clients.values()) < 7:
            self.start_client()

    def _start_static(self) -> None:
        """A process with an instance id; the one before it with the same id has ended."""
        instance_id = self.rng.choice(["i1", "i2"])
        for client in self.clients.values():
            if client.instance_id == instance_id and client.alive:
                if self.rng.random() < 0.5 and client.stream_id is not None:
                    self.feed(c.MemberLeft(client.stream_id, keep_seat=True))
                else:
                    self.cut(client)
                client.drop_everything()
                client.alive = False
        self.start_client(instance_id)

    def _leave(self) -> None:
        client = self._some()
        if client is not None and client.stream_id is not None:
            client.owned.clear()
            self.feed(c.MemberLeft(client.stream_id))
            client.alive = False

    def _crash(self) -> None:
        client = self._some(connected=False)
        if client is not None:
            self.cut(client, tell=self.rng.random() < 0.7)
            client.drop_everything()
            client.alive = False

    def _break(self) -> None:
        client = self._some()
        if client is not None:
            self.cut(client, tell=self.rng.random() < 0.7)

    def _stick(self) -> None:
        client = self._some(connected=False)
        if client is not None:
            client.stuck = self.rng.random() < 0.5

    def _resubscribe(self) -> None:
        client = self._some()
        if client is not None and client.stream_id is not None:
            client.subscription = Subscription(self.rng.choice([("a",), ("b",), ("a", "c")]))
            client.outbox.append(c.MemberHeard(client.stream_id, subscription=client.subscription))

    def _topics(self) -> None:
        name = self.rng.choice("abc")
        known = self.topics.get(name)
        if known is None:
            self.put_topic(name, self.rng.randint(1, 5))
        elif self.rng.random() < 0.3:
            del self.topics[name]
        else:
            self.put_topic(name, known.partitions + 1)
        self.feed(c.TopicsChanged(self.catalog))

    def reconnect_some(self) -> None:
        for client in list(self.clients.values()):
            if client.alive and client.stream_id is None and self.rng.random() < 0.3:
                self.connect(client)

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """I18 among the members that the coordinator counts, by their own word."""
        for group in self.machine.groups.values():
            owners: dict[Part, str] = {}
            for member_id in group.members:
                client = self.clients.get(member_id)
                if client is None or not client.alive:
                    continue
                for part in client.owned:
                    other = owners.setdefault(part, member_id)
                    assert other == member_id, f"{part} is owned by {other} and {member_id} (I18)"

    def settle(self) -> None:
        """Trouble ends; in the time that groups may take everybody owns its share."""
        for client in self.clients.values():
            client.stuck = False
        for _ in range((SESSION_MS + REBALANCE_MS) // 100 + 100):
            self.now_ms += 100
            for client in list(self.clients.values()):
                if not client.alive:
                    continue
                if client.stream_id is None:
                    self.connect(client)
                while client.inbox:
                    client.take(client.inbox.popleft())
                if client.giving_up:
                    client.give_up()
                if client.stream_id is not None:
                    self.feed(c.MemberHeard(client.stream_id))
                while client.outbox and client.stream_id is not None:
                    self.feed(client.outbox.popleft())
                self.check()
            self.tick()
            self.commit_log(len(self.log))
        self.check_settled()

    def check_settled(self) -> None:
        for group in self.machine.groups.values():
            alive = {m for m, client in self.clients.items() if client.alive}
            mine = {m for m in alive if self.clients[m].group_id == group.group_id}
            assert set(group.members) == mine
            if not mine:
                assert group.state is GroupState.EMPTY
                continue
            assert group.state is GroupState.STABLE, group
            wanted = {
                (topic.topic_id, partition)
                for topic in self.topics.values()
                if any(self.wants(self.clients[m], topic.name) for m in mine)
                for partition in range(topic.partitions)
            }
            owned = [part for m in mine for part in self.clients[m].owned]
            assert sorted(owned) == sorted(wanted)
            for m in mine:
                assert self.clients[m].owned == group.members[m].target
                assert self.clients[m].epoch == group.members[m].current.epoch

    @staticmethod
    def wants(client: Client, topic: str) -> bool:
        return topic in client.subscription.topics or bool(client.subscription.pattern)
