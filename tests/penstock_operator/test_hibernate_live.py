"""Real brokers go to sleep at the operator's word, and say when they are at rest."""

from dataclasses import replace
from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.operator_world import desired, settled
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client import AsyncProducer
from penstock_operator.clock import now_text
from penstock_operator.hibernation_model import Hibernate, Record, Stage
from penstock_operator.model import Observed
from penstock_operator.plan.hibernate import Hibernation, plan_hibernation


async def test_real_brokers_prove_that_they_are_at_rest(tmp_path: Path) -> None:
    wish = desired(brokers=3, spec_hibernate=True)
    world = settled(desired(brokers=3), partitions=0)
    record = Record()
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as servers:
        brokers = Reachable(servers.bootstrap)

        async def observed() -> Observed:
            facts, problem = await brokers.ask(wish)
            assert facts is not None, problem
            moves, problem = await brokers.moves(wish, ())
            assert moves is not None, problem
            rest = await brokers.rest(wish, facts, record, now_text())
            seen = replace(world.observed(), brokers=facts, moves=moves, rest=rest)
            return replace(seen, recorded_cluster_id=facts.cluster_id)

        async def step() -> Hibernation:
            nonlocal record
            found = plan_hibernation(wish, await observed(), may_change=True)
            for action in found.actions:
                assert isinstance(action, Hibernate)
                await (await brokers.admin(wish)).alter_cluster(hibernating=action.hibernating)
            record = found.record or record
            return found

        admin = await brokers.admin(wish)
        await admin.create_topic("t", 4, 3)
        async with AsyncProducer(servers.bootstrap) as producer:
            for at in range(100):
                await producer.send("t", b"some text", partition=at % 4)
        assert (await step()).actions == (Hibernate(hibernating=True),)

        async def refuses() -> bool:
            return (await admin.describe_cluster()).hibernating

        await wait_until_async(refuses, what="brokers are told")
        brokers_wanted: list[int | None] = []

        async def stops() -> bool:
            found = await step()
            brokers_wanted.append(found.brokers)
            return found.stage is Stage.STOPPING

        await wait_until_async(stops, what="all are at rest", timeout_s=90.0)
        assert len(brokers_wanted) >= 2, "it is asked twice"
        assert brokers_wanted[-1] == 0
        assert set(brokers_wanted[:-1]) == {3}
        await brokers.close()
