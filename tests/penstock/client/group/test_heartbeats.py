"""What blocks a consumer's loop or its user does not cost its membership; what is stuck does."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from support.cluster import Cluster
from support.group_wire import Groups
from support.names import own_name
from support.waiting import wait_until, wait_until_async

from penstock.client import AsyncConsumer, Consumer, Producer, TopicPartition
from penstock.client.cluster.connections import Connection
from penstock.client.group.coordinator import GroupCalls
from penstock.client.loop_thread import heartbeat_loop
from penstock.errors import ClusterError, ErrorCode

PARTITIONS = 2
SESSION_MS = 10_000
"""Longer than a busy machine stalls."""
WAIT_S = 120.0


@pytest.fixture
def name(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for this test alone; also the name of its group."""
    made = own_name(request)
    shared_broker.create_topic(made, partitions=PARTITIONS)
    return made


class Lost:
    """A listener that counts."""

    def __init__(self) -> None:
        self.times = 0

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Expected."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Expected at the end."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.times += 1


async def owns_all(consumer: AsyncConsumer) -> None:
    async def all_here() -> bool:
        await consumer.poll(0.05)
        return len(consumer.assignment()) == PARTITIONS

    await wait_until_async(all_here, what="it owns all partitions")


def blocks_until(condition: Callable[[], object]) -> None:
    """Stands still, with the event loop, until another thread has seen the condition."""
    over = threading.Event()
    failed: list[BaseException] = []

    def watch() -> None:
        try:
            condition()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=watch, daemon=True).start()
    assert over.wait(WAIT_S)
    for error in failed:
        raise error


def a_silent_member_is_removed(groups: Groups, name: str) -> None:
    """By the coordinator's own clock, a session timeout has passed since this began."""
    silent = groups.join(name + ".silent", name, session_timeout_ms=SESSION_MS)
    assert silent.ended.wait(WAIT_S)


async def test_a_subscribe_that_is_cancelled_leaves_no_member_behind(
    shared_broker: Cluster, name: str
) -> None:
    lives = heartbeat_loop().loop
    before = asyncio.all_tasks(lives)

    def nobody_is_left() -> bool:
        return asyncio.all_tasks(lives) <= before

    async with AsyncConsumer(shared_broker.bootstrap, group_id=name) as consumer:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(consumer.subscribe(pattern=name))
            await asyncio.wait([first], timeout=0)  # it has begun to make a member
            first.cancel()
        assert first.cancelled()
        await wait_until_async(nobody_is_left, what="no member is left of the cancelled call")
        await consumer.subscribe(name)
        await owns_all(consumer)
    await wait_until_async(nobody_is_left, what="the member has ended")


def test_a_slow_user_of_the_sync_client_keeps_its_partitions_beyond_the_session_timeout(
    shared_broker: Cluster, name: str
) -> None:
    lost = Lost()
    with (
        Groups(shared_broker) as groups,
        Consumer(
            shared_broker.bootstrap,
            group_id=name,
            session_timeout_ms=SESSION_MS,
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe(name, listener=lost)

        def owns_all_partitions() -> bool:
            consumer.poll(0.05)
            return len(consumer.assignment()) == PARTITIONS

        wait_until(owns_all_partitions, what="it owns all partitions")
        (before,) = groups.describe(name).members
        a_silent_member_is_removed(groups, name)
        (after,) = groups.describe(name).members
        assert (after.member_id, after.member_epoch) == (before.member_id, before.member_epoch)
        consumer.poll(0)
        assert len(consumer.assignment()) == PARTITIONS
        assert lost.times == 0


async def test_a_blocked_event_loop_keeps_its_partitions_beyond_the_session_timeout(
    shared_broker: Cluster, name: str
) -> None:
    with Groups(shared_broker) as groups:
        lost = Lost()
        async with AsyncConsumer(
            shared_broker.bootstrap,
            group_id=name,
            session_timeout_ms=SESSION_MS,
            enable_auto_commit=False,
        ) as consumer:
            await consumer.subscribe(name, listener=lost)
            await owns_all(consumer)
            (before,) = groups.describe(name).members
            blocks_until(lambda: a_silent_member_is_removed(groups, name))
            (after,) = groups.describe(name).members
            assert (after.member_id, after.member_epoch) == (before.member_id, before.member_epoch)
            await consumer.commit({TopicPartition(name, 0): 0})
            await consumer.poll(0)
            assert len(consumer.assignment()) == PARTITIONS
            assert lost.times == 0


async def test_a_poll_whose_event_loop_is_stuck_leaves_and_joins_again(
    shared_broker: Cluster, name: str
) -> None:
    lost = Lost()
    with Groups(shared_broker) as groups:

        def it_has_left() -> None:
            """By itself: nobody else wants its partitions."""
            wait_until(lambda: not groups.describe(name).members, what="the stuck one has left")

        async with AsyncConsumer(
            shared_broker.bootstrap,
            group_id=name,
            max_poll_interval_ms=2_000,
            enable_auto_commit=False,
        ) as consumer:
            await consumer.subscribe(name, listener=lost)
            await owns_all(consumer)
            polling = asyncio.get_running_loop().create_task(consumer.poll(WAIT_S))
            link = consumer._session._link
            await wait_until_async(lambda: link._polling, what="the poll waits")
            blocks_until(it_has_left)
            # Nothing was said to the consumer yet, and it must not commit as if nothing happened.
            with pytest.raises(ClusterError, match="the next poll continues") as refused:
                await consumer.commit({TopicPartition(name, 0): 0})
            assert refused.value.code is ErrorCode.UNKNOWN_MEMBER
            await wait_until_async(
                lambda: len(consumer.assignment()) == PARTITIONS, what="the poll joins again"
            )
            assert lost.times, "and again if the machine stalled for as long"
            polling.cancel()
            await asyncio.wait([polling])


async def test_a_closed_consumer_leaves_nothing_in_the_thread(
    shared_broker: Cluster, name: str
) -> None:
    async with AsyncConsumer(shared_broker.bootstrap, group_id=name) as consumer:
        await consumer.subscribe(name)
        await owns_all(consumer)
        thread = consumer._session._link._begun.loop

    async def here() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if "member" in task.get_name()]

    left = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(here(), thread))
    assert left == []
    with Groups(shared_broker) as groups:
        # Whoever did not leave would be a member for 45 s.
        wait_until(lambda: not groups.describe(name).members, what="it has left")


FORGETFUL = {
    "sync": """
import sys
from penstock.client import Consumer
consumer = Consumer(sys.argv[1], group_id=sys.argv[2])
consumer.subscribe(sys.argv[2])
while not consumer.assignment():
    consumer.poll(0.1)
""",
    "async": """
import asyncio, sys
from penstock.client import AsyncConsumer
async def main():
    consumer = AsyncConsumer(sys.argv[1], group_id=sys.argv[2])
    await consumer.subscribe(sys.argv[2])
    while not consumer.assignment():
        await consumer.poll(0.1)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("kind", FORGETFUL)
def test_a_program_that_forgets_to_close_ends_silently_and_is_no_member(
    shared_broker: Cluster, name: str, kind: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORGETFUL[kind], shared_broker.bootstrap, name],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with Groups(shared_broker) as groups:
        wait_until(lambda: not groups.describe(name).members, what="the group is empty")


def test_a_member_asks_the_coordinator_that_it_has_joined_and_no_other(
    shared_broker: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deposed coordinator that is cut off from controllers may still be found."""
    find = GroupCalls._find

    async def misled(self: GroupCalls, connection: Connection, timeout_s: float) -> str:
        found = await find(self, connection, timeout_s)
        is_member = threading.current_thread().name == "penstock-heartbeats"
        return found if is_member else "127.0.0.1:1"

    monkeypatch.setattr(GroupCalls, "_find", misled)
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(name, b"here").result()
    with Consumer(shared_broker.bootstrap, group_id=name, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(name)
        wait_until(lambda: consumer.poll(0.05), what="records come")
        consumer.commit()
        assert any(consumer.committed(consumer.assignment()).values())
