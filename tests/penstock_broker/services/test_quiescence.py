"""Whether a broker could stop: nothing is at rest that nobody speaks for."""

from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.types import ReplicaKey, TopicId
from penstock_broker.services.quiescence import Quiescence

KEY = ReplicaKey(TopicId("id-t"), 0)


async def waiting_for(world: LedPartitions) -> list[str]:
    world.view.hibernating = True
    answer = await Quiescence(world.view, world.replicas, world.writer).describe()
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
        assert world.replicas.missing
        assert await waiting_for(world) == ["u/0: its leader does not lead it yet"]
