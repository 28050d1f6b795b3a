"""Whether a broker could stop: nothing is at rest that nobody speaks for."""

from support.damaged_replica import World, mended
from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.types import ReplicaKey, TopicId
from penstock.proto.v1.admin_pb2 import DescribeQuiescenceResponse
from penstock_broker.services.quiescence import Quiescence

KEY = ReplicaKey(TopicId("id-t"), 0)


async def answer_of(world: LedPartitions) -> DescribeQuiescenceResponse:
    world.view.hibernating = True
    return await Quiescence(world.view, world.replicas, world.writer).describe()


async def waiting_for(world: LedPartitions) -> list[str]:
    answer = await answer_of(world)
    assert answer.quiet == (not answer.waiting_for)
    return list(answer.waiting_for)


async def test_a_leader_with_nothing_left_to_do_is_quiet() -> None:
    async with running(LedPartitions({"t": ("id-t", 1)})) as world:
        replica = world.replicas.by_key[KEY]
        await wait_until_async(lambda: replica.marks.is_leader, what="it leads")
        assert await waiting_for(world) == []
        await world.lead(-1, 2)
        assert await waiting_for(world) == ["t/0: it has no leader"]


async def test_a_leader_that_does_not_lead_is_not() -> None:
    """Its log is missing (I22): nobody else would say that the partition is not at rest."""
    async with running(LedPartitions({"t": ("id-t", 1)})) as world:
        world.topics["u"] = ("id-u", 1)
        await world.lead(0, 2)
        assert world.replicas.damage.missing
        assert await waiting_for(world) == ["u/0: its leader does not lead it yet"]


async def test_a_copy_that_no_switch_can_end_before_the_wake_keeps_nobody_up() -> None:
    async with mended(leader=0, replicas=[0], isr=[0], adding=[1]) as world:
        await until_committed(world)
        assert await waiting_for(world) == []
        assert (await answer_of(world)).log_ends == 20
    async with mended(leader=1, replicas=[1], isr=[1], adding=[0]) as world:
        assert await waiting_for(world) == []
        assert (await answer_of(world)).log_ends == 0, "it may grow all the while"


async def until_committed(world: World) -> None:
    replica = world.replica
    await wait_until_async(lambda: replica.marks.high_watermark == 20, what="all is committed")
