"""Consuming as a member of a group, on real brokers: shares, commits, rebalances, losses."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Unpack

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.waiting import wait_until, wait_until_async

from penstock.client import (
    Admin,
    AsyncConsumer,
    Consumer,
    GroupState,
    OffsetAndMetadata,
    Producer,
    Record,
    TopicPartition,
)
from penstock.client.config import ConsumerConfig, ConsumerOptions
from penstock.client.consumer import commits, group_session
from penstock.core.partitioner import partition_for_key
from penstock.errors import ClusterError, ErrorCode, MisuseError

PARTITIONS = 4


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close waits for its leave: a seat that is left behind is kept for 45 s."""
    monkeypatch.setattr(group_session, "LEAVE_S", 120.0)


@pytest.fixture
def name(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of four partitions for this test alone; also the name of its group."""
    made = own_name(request)
    shared_broker.create_topic(made, partitions=PARTITIONS)
    return made


Open = Callable[..., Consumer]


@pytest.fixture
def member(shared_broker: Cluster, name: str) -> Iterator[Open]:
    """Opens members of the test's group; all are closed at the end."""
    opened: list[Consumer] = []

    def make(**options: Unpack[ConsumerOptions]) -> Consumer:
        options.setdefault("group_id", name)
        options.setdefault("auto_offset_reset", "earliest")
        made = Consumer(shared_broker.bootstrap, **options)
        opened.append(made)
        return made

    yield make
    for consumer in opened:
        consumer.close()


def at(topic: str, *partitions: int) -> set[TopicPartition]:
    return {TopicPartition(topic, partition) for partition in partitions}


def everywhere(topic: str) -> set[TopicPartition]:
    return at(topic, *range(PARTITIONS))


def fill(cluster: Cluster, topic: str, count: int, first: int = 0, *, partition: int = -1) -> None:
    """Numbers from `first` on, in turn over the partitions, or all into one."""
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(first, first + count):
            where = number % PARTITIONS if partition < 0 else partition
            producer.send(topic, b"%d" % number, partition=where)
        producer.flush(120)


def poll_until(condition: Callable[[], bool], what: str, *consumers: Consumer) -> list[bytes]:
    """Polls all in turn until the condition holds; the values that came meanwhile."""
    seen: list[bytes] = []

    def turn() -> bool:
        for consumer in consumers:
            for batch in consumer.poll(0.05):
                seen.extend(value or b"" for value in batch.values())
        return condition()

    wait_until(turn, what=what)
    return seen


def read(count: int, *consumers: Consumer) -> list[int]:
    """Exactly `count` records come."""
    seen: list[int] = []

    def turn() -> bool:
        for consumer in consumers:
            for batch in consumer.poll(0.05):
                seen.extend(int(value or b"") for value in batch.values())
        return len(seen) >= count

    wait_until(turn, what=f"{count} records come")
    assert len(seen) == count
    return seen


class Heard:
    """A listener that writes down what it hears, and what may then still be done."""

    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.on_revoking: Callable[[], None] = lambda: None

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.on_revoking()
        self.events.append(("revoked", partitions))

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", partitions))

    def of(self, kind: str) -> list[frozenset[TopicPartition]]:
        return [partitions for seen, partitions in self.events if seen == kind]


def test_one_member_reads_everything_and_a_second_group_reads_it_again(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 40)
    first, other = member(), member(group_id=name + ".other")
    first.subscribe(name)
    assert sorted(read(40, first)) == list(range(40))
    assert first.assignment() == everywhere(name)
    other.subscribe([name])
    assert sorted(read(40, other)) == list(range(40))


def test_members_share_a_topic_and_what_stays_is_never_taken_away(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    heard = Heard()
    one, two = member(), member()
    one.subscribe(name, listener=heard)
    poll_until(lambda: one.assignment() == everywhere(name), "one has all", one)
    two.subscribe(name)
    poll_until(
        lambda: len(one.assignment()) == len(two.assignment()) == 2, "both have two", one, two
    )
    assert one.assignment() | two.assignment() == everywhere(name)
    assert heard.of("revoked") == [frozenset(two.assignment())]
    fill(shared_broker, name, 40)
    assert sorted(read(40, one, two)) == list(range(40))
    two.close()
    poll_until(lambda: one.assignment() == everywhere(name), "one has all again", one)
    assert heard.of("lost") == []


def test_what_a_member_committed_is_where_the_next_one_begins(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 20, partition=1)
    here = TopicPartition(name, 1)
    one = member(enable_auto_commit=False)
    one.subscribe(name)
    read(20, one)
    one.commit({here: OffsetAndMetadata(12, "as far as I got")})
    kept = one.committed([here])[here]
    assert kept is not None
    assert (kept.offset, kept.metadata) == (12, "as far as I got")
    assert kept.commit_time_ms > 0
    one.close()
    two = member()
    two.subscribe(name)
    assert read(8, two) == list(range(12, 20))


def test_a_commit_says_nothing_of_what_was_not_handed_out(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 20, partition=0)
    here = TopicPartition(name, 0)
    one = member(enable_auto_commit=False)
    one.subscribe(name)
    records: list[Record] = []
    for record in one:
        records.append(record)
        if record.offset == 6:
            one.commit()
            break
    kept = one.committed([here])[here]
    assert kept is not None
    assert kept.offset == 7
    assert kept.leader_epoch >= 1
    assert one.position(here) == 7


def test_an_automatic_commit_covers_only_what_an_earlier_poll_handed_out(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 20, partition=0)
    here = TopicPartition(name, 0)
    one = member(auto_commit_interval_ms=20)
    one.subscribe(name)

    def five() -> bool:
        return sum(map(len, one.poll(0.1, max_records=5))) == 5

    def committed() -> int:
        kept = one.committed([here])[here]
        return -1 if kept is None else kept.offset

    wait_until(five, what="five records")
    assert committed() <= 0, "those in hand are not done"
    wait_until(five, what="five more")
    wait_until(lambda: committed() > 0, what="an automatic commit was made")
    assert committed() == 5
    one.close()
    two = member()
    two.subscribe(name)
    assert read(15, two) == list(range(5, 20)), "close committed no more than that"


def test_offsets_never_go_back_and_nonsense_is_refused(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 8)
    one = member(enable_auto_commit=False)
    one.subscribe(name)
    read(8, one)
    one.commit()
    with pytest.raises(ClusterError) as caught:
        one.commit({TopicPartition(name, 0): 1})
    assert caught.value.code is ErrorCode.OFFSET_WENT_BACK
    for offsets, said in (
        ({TopicPartition(name, 0): -1}, "must be 0 to"),
        ({TopicPartition(name, 99): 1}, "not 99"),
        ({TopicPartition(name, 0): 3}, "the log ends at 2"),
        ({TopicPartition(name, 0): OffsetAndMetadata(2, "x" * 5_000)}, "5000 bytes"),
    ):
        with pytest.raises(MisuseError, match=said):
            one.commit(offsets)


def test_a_replay_after_a_seek_back_is_committed_and_goes_on_elsewhere(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    here = TopicPartition(name, 0)
    fill(shared_broker, name, 20, partition=0)
    one = member(enable_auto_commit=False)
    one.subscribe(name)

    def committed() -> int:
        kept = one.committed([here])[here]
        return -1 if kept is None else kept.offset

    read(20, one)
    one.commit()
    one.seek(here, 5)
    one.commit()
    assert committed() == 5
    wait_until(lambda: one.poll(0.1, max_records=3), what="three records are read again")
    one.commit()
    assert committed() == 8
    one.commit({here: 9})
    one.close()
    two = member(auto_commit_interval_ms=20)
    two.subscribe(name)
    assert read(11, two) == list(range(9, 20)), "the rest of the replay"
    two.seek_to_beginning([here])
    wait_until(
        lambda: (kept := two.committed([here])[here]) is not None and kept.offset == 0,
        what="the automatic commit goes back, too",
    )


def test_offsets_of_an_idle_partition_without_membership_are_committed_again(
    shared_broker: Cluster, name: str, member: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would expire a week after the last commit."""
    here = TopicPartition(name, 0)
    fill(shared_broker, name, 4, partition=0)

    def stored_ms(consumer: Consumer) -> int:
        kept = consumer.committed([here])[here]
        assert kept is not None
        assert (kept.offset, kept.metadata) == (4, "of the user")
        return kept.commit_time_ms

    one = member(enable_auto_commit=False)
    one.assign([here])
    read(4, one)
    one.commit({here: OffsetAndMetadata(4, "of the user")})
    first_ms = stored_ms(one)

    def renewed() -> bool:
        one.commit()
        return stored_ms(one) > first_ms

    wait_until(renewed, what="an explicit commit renews it, though nothing moved")
    one.close()
    monkeypatch.setattr(commits, "RENEWAL_S", 0.05)
    two = member(auto_commit_interval_ms=20)
    two.assign([here])
    for _ in range(2):
        before_ms = stored_ms(two)
        two.poll(0)
        wait_until(lambda: stored_ms(two) > before_ms, what="so does the automatic one")  # noqa: B023 - it ends in the turn


def test_a_listener_may_commit_while_partitions_leave(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 40)
    heard = Heard()
    one, two = member(enable_auto_commit=False), member(enable_auto_commit=False)
    one.subscribe(name, listener=heard)
    read(40, one)
    heard.on_revoking = one.commit
    two.subscribe(name)
    seen = poll_until(lambda: len(two.assignment()) == 2, "two has its share", one, two)
    assert seen == [], "nothing is delivered twice: it was committed before it was released"
    assert one.committed(two.assignment()) == two.committed(two.assignment())


def test_a_listener_may_seek_what_it_was_given(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 12, partition=2)
    one = member()

    class OwnOffsets(Heard):
        def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            one.seek(TopicPartition(name, 2), 9)
            super().on_assigned(partitions)

    one.subscribe(name, listener=OwnOffsets())
    assert read(3, one) == [9, 10, 11]


def test_a_pattern_sees_topics_that_are_created_later(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    one = member()
    one.subscribe(pattern=name.replace(".", r"\.") + "(\\.later)?")
    poll_until(lambda: one.assignment() == everywhere(name), "the first topic", one)
    shared_broker.create_topic(name + ".later", partitions=1)
    both = everywhere(name) | at(name + ".later", 0)
    poll_until(lambda: one.assignment() == both, "the second topic", one)


def test_a_group_that_never_committed_begins_as_configured(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 8)
    late = member(auto_offset_reset="latest", group_id=name + ".late")
    late.subscribe(name)
    poll_until(lambda: late.assignment() == everywhere(name), "it has joined", late)
    assert all(late.position(where) == 2 for where in everywhere(name))
    picky = member(auto_offset_reset="error", group_id=name + ".picky")
    picky.subscribe(name)
    with pytest.raises(ClusterError, match="has no committed offset") as caught:
        poll_until(lambda: False, "an error comes", picky)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_one_that_never_polls_leaves_and_its_next_poll_joins_again(
    shared_broker: Cluster, name: str, member: Open, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    slow = member(max_poll_interval_ms=3_000)
    slow.subscribe(name, listener=heard)
    poll_until(lambda: slow.assignment() == everywhere(name), "it has joined", slow)
    other = member()
    other.subscribe(name)
    # A member that is silent would be removed after its session timeout of 45 s.
    poll_until(lambda: other.assignment() == everywhere(name), "the other has all", other)
    assert any("max_poll" in line.getMessage() for line in caplog.records)
    assert slow.assignment() == set()
    poll_until(
        lambda: len(slow.assignment()) == len(other.assignment()) == 2,
        "it is back with its next poll",
        slow,
        other,
    )
    assert frozenset(everywhere(name)) in heard.of("lost")


def test_a_consumer_that_assigned_itself_commits_while_the_group_is_empty(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 10, partition=0)
    here = TopicPartition(name, 0)
    alone = member(enable_auto_commit=False)
    alone.assign([here])
    read(10, alone)
    alone.commit({here: 4})
    again = member(enable_auto_commit=False)
    again.assign([here])
    assert read(6, again) == list(range(4, 10))
    one = member()
    one.subscribe(name)
    poll_until(lambda: one.assignment() == everywhere(name), "a member has joined", one)
    with pytest.raises(ClusterError) as caught:
        again.commit()
    assert caught.value.code is ErrorCode.GROUP_NOT_EMPTY


def test_partitions_that_are_assigned_again_go_on_after_what_was_done(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 20, partition=0)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    consumer = member(auto_commit_interval_ms=600_000)
    consumer.assign([zero])
    read(20, consumer)
    assert consumer.poll(0) == [], "they are done"
    consumer.assign([one])
    kept = consumer.committed([zero])[zero]
    assert kept is not None
    assert kept.offset == 20
    consumer.assign([zero])
    assert consumer.position(zero) == 20


def test_commits_without_waiting_arrive_in_order(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 50, partition=0)
    here = TopicPartition(name, 0)
    one = member(enable_auto_commit=False)
    one.subscribe(name)
    outcomes: list[object] = []
    for record in one:
        one.commit_async({here: record.offset + 1}, outcomes.append)
        if record.offset == 49:
            break
    wait_until(lambda: len(outcomes) == 50, what="all are stored")
    assert Counter(outcomes) == {None: 50}
    kept = one.committed([here])[here]
    assert kept is not None
    assert kept.offset == 50


def test_keys_keep_their_partition_and_columns_come_out_of_a_group(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    with Producer(shared_broker.bootstrap) as producer:
        for key in range(20):
            producer.send(name, b"v", b"%d" % key)
        producer.flush(120)
    one = member()
    one.subscribe(name)
    rows: list[dict[str, Any]] = []

    def twenty() -> bool:
        rows.extend(one.poll_arrow(0.1).to_pylist())
        return len(rows) == 20

    wait_until(twenty, what="twenty rows")
    for row in rows:
        assert row["partition"] == partition_for_key(row["key"], PARTITIONS)


def test_misuse_is_one_clear_error(shared_broker: Cluster, name: str, member: Open) -> None:
    with Consumer(shared_broker.bootstrap) as alone:
        for call in (lambda: alone.subscribe(name), alone.commit, lambda: alone.committed([])):
            with pytest.raises(MisuseError, match="needs a group_id"):
                call()
    one = member()
    with pytest.raises(MisuseError, match="needs topics or a pattern"):
        one.subscribe()
    with pytest.raises(ClusterError) as caught:
        one.subscribe(name + ".nowhere")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC
    one.subscribe(name)
    with pytest.raises(MisuseError, match="unsubscribe before assign"):
        one.assign(at(name, 0))
    one.unsubscribe()
    one.assign(at(name, 0))
    with pytest.raises(MisuseError, match="has assigned partitions"):
        one.subscribe(name)
    bad = member()
    bad.subscribe(pattern="(")
    with pytest.raises(ClusterError) as refused:
        poll_until(lambda: False, "the pattern is refused", bad)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_after_unsubscribe_there_is_nothing_to_poll(name: str, member: Open) -> None:
    one = member()
    one.subscribe(name)
    one.poll(0)
    one.unsubscribe()
    with pytest.raises(MisuseError, match="call subscribe or assign before poll"):
        one.poll(0)
    one.assign(at(name, 0))
    assert one.poll(0) == []


def test_a_sync_consumer_refuses_a_listener_that_it_could_not_wait_for(
    name: str, member: Open
) -> None:
    class Seeks:
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            raise AssertionError("would never run")

        def on_revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

        def on_lost(self, partitions: frozenset[TopicPartition]) -> None: ...

    one = member()
    with pytest.raises(MisuseError, match=r"on_assigned of .*Seeks.* is async.*AsyncConsumer"):
        one.subscribe(name, listener=Seeks())
    one.subscribe(name)


def test_two_processes_on_one_seat(shared_broker: Cluster, name: str, member: Open) -> None:
    session_timeout_ms = 10_000  # for which the second waits, and no stall takes the first's seat
    one = member(group_instance_id="seat", session_timeout_ms=session_timeout_ms)
    one.subscribe(name)
    poll_until(lambda: one.assignment() == everywhere(name), "one sits", one)
    two = member(group_instance_id="seat", session_timeout_ms=session_timeout_ms)
    two.subscribe(name)
    with pytest.raises(ClusterError) as caught:
        poll_until(lambda: False, "the second is told", two, one)
    assert caught.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.assignment() == everywhere(name)


def test_a_static_member_finds_its_partitions_again(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    one, two = (member(group_instance_id=seat) for seat in ("a", "b"))
    heard = Heard()
    one.subscribe(name)
    two.subscribe(name, listener=heard)
    poll_until(
        lambda: len(one.assignment()) == len(two.assignment()) == 2, "both have two", one, two
    )
    mine = one.assignment()
    one.close()
    back = member(group_instance_id="a")
    back.subscribe(name)
    poll_until(lambda: back.assignment() == mine, "it has its own again", back, two)
    assert len(heard.of("assigned")) == 1, "the other never heard of it"


def test_admins_see_the_group(shared_broker: Cluster, name: str, member: Open) -> None:
    fill(shared_broker, name, 40)
    one = member(enable_auto_commit=False, client_id="reader", client_rack="r1")
    one.subscribe(name)
    read(40, one)
    one.commit({TopicPartition(name, 0): 4, TopicPartition(name, 1): 10})
    with Admin(shared_broker.bootstrap) as admin:
        listed = {group.group_id: group for group in admin.list_groups()}
        assert listed[name].members == 1
        wait_until(
            lambda: admin.describe_group(name).state is GroupState.STABLE,
            what="the group is stable",
        )
        seen = admin.describe_group(name)
        (who,) = seen.members
        assert (who.client_id, who.rack, who.topics) == ("reader", "r1", (name,))
        assert set(who.assigned) == everywhere(name)
        lags = admin.group_lag(seen)
        assert lags[TopicPartition(name, 0)].records == 6
        waited_ms = lags[TopicPartition(name, 0)].lag_ms
        assert waited_ms is not None
        assert 0 <= waited_ms < 600_000
        nothing = lags[TopicPartition(name, 1)]
        assert (nothing.records, nothing.lag_ms) == (0, 0)
        unknown = lags[TopicPartition(name, 2)]
        assert (unknown.records, unknown.lag_ms) == (None, None)
        admin.delete_records({TopicPartition(name, 0): 7})
        expired = admin.group_lag(name)[TopicPartition(name, 0)]
        assert (expired.log_start, expired.records) == (7, 3)
        with pytest.raises(ClusterError) as caught:
            admin.delete_group(name)
        assert caught.value.code is ErrorCode.GROUP_NOT_EMPTY
        one.close()
        wait_until(
            lambda: admin.describe_group(name).state is GroupState.EMPTY, what="the group is empty"
        )
        admin.delete_group(name)
        with pytest.raises(ClusterError) as gone:
            admin.describe_group(name)
        assert gone.value.code is ErrorCode.UNKNOWN_GROUP


def test_a_topic_that_grows_is_read_where_it_grew(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    one = member()
    one.subscribe(name)
    poll_until(lambda: one.assignment() == everywhere(name), "it has joined", one)
    with Admin(shared_broker.bootstrap) as admin:
        admin.create_partitions(name, PARTITIONS + 2)
    grown = everywhere(name) | at(name, PARTITIONS, PARTITIONS + 1)
    poll_until(lambda: one.assignment() == grown, "it has the new ones, too", one)
    fill(shared_broker, name, 5, partition=PARTITIONS)
    assert read(5, one) == list(range(5))


def test_a_topic_created_again_is_another_topic_without_committed_offsets(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    fill(shared_broker, name, 20)
    one = member(auto_commit_interval_ms=20)
    one.subscribe(name)
    assert len(read(20, one)) == 20
    one.poll(0)
    one.commit()
    with Admin(shared_broker.bootstrap) as admin:
        admin.delete_topic(name)
    poll_until(lambda: one.assignment() == set(), "the old one is given up", one)
    shared_broker.create_topic(name, partitions=PARTITIONS)
    fill(shared_broker, name, 8, first=100)
    assert sorted(read(8, one)) == list(range(100, 108)), "from its beginning"


def test_a_paused_partition_stays_paused_and_loses_nothing(
    shared_broker: Cluster, name: str, member: Open
) -> None:
    one = member()
    one.subscribe(name)
    poll_until(lambda: one.assignment() == everywhere(name), "it has joined", one)
    one.pause(at(name, 1))
    fill(shared_broker, name, 12)
    assert sorted(read(9, one)) == [n for n in range(12) if n % PARTITIONS != 1]
    assert one.lag()[TopicPartition(name, 1)] == 3
    one.resume(at(name, 1))
    assert read(3, one) == [1, 5, 9]


async def test_an_async_consumer_and_its_async_listener(shared_broker: Cluster, name: str) -> None:
    fill(shared_broker, name, 20)
    heard: list[str] = []

    class Commits:
        def __init__(self, consumer: AsyncConsumer) -> None:
            self._consumer = consumer

        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            heard.append(f"assigned {len(partitions)}")

        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            await self._consumer.commit()
            heard.append(f"revoked {len(partitions)}")

        async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
            heard.append("lost")

    taken: list[int] = []
    async with AsyncConsumer(
        shared_broker.bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        await consumer.subscribe(name, listener=Commits(consumer))
        async for record in consumer:
            taken.append(int(record.value or b""))
            if len(taken) == 12:
                break
    assert heard == ["assigned 4", "revoked 4"]
    async with AsyncConsumer(
        shared_broker.bootstrap, group_id=name, auto_offset_reset="error"
    ) as other:
        places = sorted(everywhere(name))
        kept = await other.committed(places)
        assert sum(0 if offset is None else offset.offset for offset in kept.values()) == 12


async def test_a_poll_cancelled_while_partitions_leave_keeps_them_until_the_next_poll(
    shared_broker: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ConsumerConfig(group_id=name, auto_offset_reset="earliest")
    heard = Heard()
    async with (
        AsyncConsumer(shared_broker.bootstrap, options) as one,
        AsyncConsumer(shared_broker.bootstrap, options) as two,
    ):
        await one.subscribe(name, listener=heard)
        await wait_until_async(lambda: has(one, PARTITIONS), what="one has all")
        await two.subscribe(name)
        session = one._session
        commit_done = session.committer.commit_done
        began = asyncio.Event()

        async def never_ends(*_: Any) -> None:
            began.set()
            await asyncio.get_running_loop().create_future()

        async def until_it_commits() -> None:
            while True:
                await one.poll(0.1)

        monkeypatch.setattr(session.committer, "commit_done", never_ends)
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(until_it_commits())
            await two.poll(0)
            await began.wait()
            polling.cancel()
        monkeypatch.setattr(session.committer, "commit_done", commit_done)
        assert heard.of("revoked") == []
        await two.poll(0.1)
        assert two.assignment() == set(), "one has not given them up"

        async def shared() -> bool:
            await one.poll(0.05)
            await two.poll(0.05)
            return len(two.assignment()) == 2

        await wait_until_async(shared, what="two has its share")
        assert one.assignment() | two.assignment() == everywhere(name)
        assert heard.of("revoked") == [frozenset(two.assignment())]
        await two.close()
        await wait_until_async(lambda: has(one, PARTITIONS), what="one has all again")


async def has(consumer: AsyncConsumer, count: int) -> bool:
    await consumer.poll(0.05)
    return len(consumer.assignment()) == count


async def test_a_listener_that_was_cancelled_is_told_again_by_the_next_poll(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 12, partition=2)
    options = ConsumerConfig(group_id=name, auto_offset_reset="earliest")
    began = asyncio.Event()
    one = AsyncConsumer(shared_broker.bootstrap, options)

    class Seeks(Heard):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:  # type: ignore[override]
            if not began.is_set():
                began.set()
                await asyncio.get_running_loop().create_future()
            await one.seek(TopicPartition(name, 2), 9)
            super().on_assigned(partitions)

    heard = Seeks()
    async with one, asyncio.TaskGroup() as group:
        await one.subscribe(name, listener=heard)
        polling = group.create_task(one.poll(120.0))
        await began.wait()
        polling.cancel()
        (batch,) = await one.poll(120.0)
        assert list(batch.offsets()) == [9, 10, 11]
        assert heard.of("assigned") == [frozenset(everywhere(name))]


async def test_a_listener_that_raised_is_called_again_before_anything_is_returned(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 12, partition=2)
    failures = [ValueError("the database is away"), ValueError("still")]
    one = AsyncConsumer(shared_broker.bootstrap, group_id=name, auto_offset_reset="earliest")

    class Seeks(Heard):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:  # type: ignore[override]
            if failures:
                raise failures.pop()
            await one.seek(TopicPartition(name, 2), 9)
            super().on_assigned(partitions)

    heard = Seeks()
    async with one:
        await one.subscribe(name, listener=heard)
        for said in ("still", "the database is away"):
            with pytest.raises(ValueError, match=said):
                await one.poll(120.0)
        (batch,) = await one.poll(120.0)
        assert list(batch.offsets()) == [9, 10, 11]
        assert heard.of("assigned") == [frozenset(everywhere(name))]


async def test_what_a_group_refused_is_forgotten_by_who_has_left_it(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 3, partition=0)
    async with AsyncConsumer(shared_broker.bootstrap, group_id=name) as one:
        await one.subscribe(name)
        await wait_until_async(lambda: has(one, PARTITIONS), what="it owns all")
        one._session.fail(ClusterError("the group refuses it", ErrorCode.PERMISSION_DENIED))
        with pytest.raises(ClusterError, match="refuses"):
            await one.poll(1.0)
        await one.unsubscribe()
        await one.assign([TopicPartition(name, 1)])
        assert await one.poll(0.05) == []


async def test_a_listener_that_was_cancelled_is_told_again_what_was_lost(
    shared_broker: Cluster, name: str
) -> None:
    began = asyncio.Event()
    one = AsyncConsumer(shared_broker.bootstrap, group_id=name, auto_offset_reset="earliest")

    class Tells(Heard):
        async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:  # type: ignore[override]
            if not began.is_set():
                began.set()
                await asyncio.get_running_loop().create_future()
            super().on_lost(partitions)

    heard = Tells()
    everything = frozenset(everywhere(name))
    async with one, asyncio.TaskGroup() as group:
        await one.subscribe(name, listener=heard)
        await wait_until_async(lambda: has(one, PARTITIONS), what="it owns all")
        one._session.fenced(ErrorCode.UNKNOWN_MEMBER)
        polling = group.create_task(one.poll(120.0))
        await began.wait()
        polling.cancel()
        await wait_until_async(lambda: has(one, PARTITIONS), what="it owns all again")
        assert heard.of("lost") == [everything]
        assert heard.of("assigned") == [everything, everything]


async def test_a_second_task_and_a_listener_that_poll_are_refused(
    shared_broker: Cluster, name: str
) -> None:
    class Polls:
        async def on_assigned(self, _: frozenset[TopicPartition]) -> None:
            with pytest.raises(MisuseError, match="the poll that called this listener"):
                await consumer.poll(0)
            polling.set()
            await goes_on.wait()

        async def on_revoked(self, _: frozenset[TopicPartition]) -> None: ...

        async def on_lost(self, _: frozenset[TopicPartition]) -> None: ...

    polling, goes_on = asyncio.Event(), asyncio.Event()
    async with AsyncConsumer(shared_broker.bootstrap, group_id=name) as consumer:
        await consumer.subscribe(name, listener=Polls())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(consumer.poll(None))
            await polling.wait()
            with pytest.raises(MisuseError, match="one consumer for each thread or task"):
                await consumer.poll(0)
            with pytest.raises(MisuseError, match="WorkerPool"):
                await anext(aiter(consumer))
            first.cancel()
            goes_on.set()
            assert await consumer.poll(0) == [], "one that is cancelled is waited for"
            assert first.cancelled()


@pytest.mark.parametrize(("late_s", "lines"), [(3_600.0, 0), (0.0, 1)])
def test_starts_that_stay_unknown_are_told_once_and_late(
    name: str,
    member: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    late_s: float,
    lines: int,
) -> None:
    monkeypatch.setattr(group_session, "LATE_S", late_s)
    monkeypatch.setattr(group_session, "RETRY_S", 0.0)
    fetch = commits.Committer.fetch
    asked: list[bool] = []

    async def pending(self: commits.Committer, *args: Any, **options: Any) -> Any:
        asked.append(True)
        if len(asked) <= 5:
            raise ClusterError("a transaction is open", ErrorCode.UNSTABLE_OFFSETS)
        return await fetch(self, *args, **options)

    monkeypatch.setattr(commits.Committer, "fetch", pending)
    one = member()
    one.subscribe(name)
    poll_until(lambda: one.assignment() == everywhere(name), "one has everything", one)
    assert caplog.text.count("a transaction is open") == lines


async def test_a_task_that_swallowed_a_cancellation_is_no_poll_that_ends(
    shared_broker: Cluster, name: str
) -> None:
    async def polls() -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        await consumer.poll(None)

    begun = asyncio.Event()
    async with AsyncConsumer(shared_broker.bootstrap, group_id=name) as consumer:
        await consumer.subscribe(name)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(polls())
            await begun.wait()
            first.cancel()
            await wait_until_async(lambda: consumer._one_poll._poller is first, what="it polls")
            with pytest.raises(MisuseError, match="is being polled already"):
                await consumer.poll(0)
            first.cancel()


def test_a_close_that_was_cancelled_in_a_listener_closes_and_is_over(
    shared_broker: Cluster, name: str
) -> None:
    class Hangs:
        async def on_assigned(self, _: frozenset[TopicPartition]) -> None: ...

        async def on_revoked(self, _: frozenset[TopicPartition]) -> None:
            asked.set()
            await asyncio.get_running_loop().create_future()

        async def on_lost(self, _: frozenset[TopicPartition]) -> None: ...

    asked = asyncio.Event()
    made: list[AsyncConsumer] = []

    async def cancel() -> None:
        made.append(AsyncConsumer(shared_broker.bootstrap, group_id=name))
        await made[0].subscribe(name, listener=Hangs())
        while not made[0].assignment():
            await made[0].poll(0.1)
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(made[0].close())
            await asked.wait()
            closing.cancel()

    asyncio.run(cancel())
    owner = made[0]._tasks._owner
    assert owner is not None
    assert owner.done()
    asyncio.run(made[0].close())  # nothing is left to do, in any event loop
