"""A cluster that was allowed to write again is not stopped by an operator that was frozen."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.kube_scene import PENSTOCK, Scene
from support.operator_world import NAMES, World, desired

from penstock.client import AsyncAdmin
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.act import Acting
from penstock_operator.brokers import Brokers
from penstock_operator.compare import is_applied, stamped
from penstock_operator.events import Events
from penstock_operator.hibernation_model import Hibernate
from penstock_operator.kube import Kube
from penstock_operator.model import Action, Apply, Observed
from penstock_operator.names import ASLEEP
from penstock_operator.objects import DesiredCluster, broker_set


class Awake(AsyncAdmin):
    """Remembers what the controller was asked."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.asked: list[bool] = []

    async def alter_cluster(self, *, hibernating: bool, validate_only: bool = False) -> None:
        self.asked.append(hibernating)


class Reached(Brokers):
    def __init__(self) -> None:
        super().__init__()
        self.told = Awake()

    async def admin(self, desired: DesiredCluster) -> AsyncAdmin:
        return self.told


class Bench:
    """Three brokers that are at rest, as two operators have seen them."""

    def __init__(self, server: ApiServer) -> None:
        self.scene = Scene(server)
        self.scene.cluster()
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        self.brokers = Reached()
        self.acting = Acting(self.kube, self.brokers, Events(self.kube, "test"))
        self.wish = desired(names=replace(NAMES, namespace=self.scene.namespace))
        stopped = broker_set(self.wish, 0)
        stopped["metadata"].setdefault("annotations", {})[ASLEEP] = "3"
        self.stop = Apply(stamped(stopped))

    async def start(self) -> "Bench":
        await self.kube.apply(stamped(broker_set(self.wish, 3)))
        return self

    async def live(self) -> Any:
        names = self.wish.names
        return await self.kube.get("StatefulSet", names.namespace, names.broker)

    async def seen(self) -> Observed:
        live = await self.live()
        key = ("StatefulSet", self.wish.names.broker)
        return replace(World(Random(0)).observed(), objects={key: live} if live else {})

    async def act(self, seen: Observed, action: Action) -> None:
        body = self.scene.get(PENSTOCK, "clusters", "flights")
        await self.acting.carry_out(action, body, self.wish, seen)

    @property
    def asked(self) -> list[bool]:
        return self.brokers.told.asked


@pytest.fixture
def bench(api_server: ApiServer) -> Iterator[Bench]:
    made = Bench(api_server)
    yield made
    made.kube.close()


async def test_brokers_that_may_write_again_are_not_stopped_late(bench: Bench) -> None:
    await bench.start()
    seen = await bench.seen()
    await bench.act(await bench.seen(), Hibernate(hibernating=False))
    assert bench.asked == [False]
    await bench.act(seen, bench.stop)  # the former operator, which was frozen
    assert (await bench.live())["spec"]["replicas"] == 3


async def test_each_time_that_writes_are_allowed_voids_what_was_decided_before(
    bench: Bench,
) -> None:
    await bench.start()
    await bench.act(await bench.seen(), Hibernate(hibernating=False))
    seen = await bench.seen()
    await bench.act(seen, Hibernate(hibernating=False))
    await bench.act(seen, bench.stop)
    assert (await bench.live())["spec"]["replicas"] == 3


async def test_brokers_that_were_stopped_first_are_not_allowed_to_write(bench: Bench) -> None:
    await bench.start()
    seen = await bench.seen()
    await bench.act(seen, bench.stop)
    await bench.act(seen, Hibernate(hibernating=False))
    assert bench.asked == []
    assert (await bench.live())["spec"]["replicas"] == 0


async def test_without_a_set_of_brokers_it_is_made_first(bench: Bench) -> None:
    with pytest.raises(KubernetesError, match="not found"):
        await bench.act(await bench.seen(), Hibernate(hibernating=False))
    assert bench.asked == []


async def test_the_set_is_as_it_is_wanted_afterwards(bench: Bench) -> None:
    """Nothing is written for what the operator itself has noted there."""
    await bench.start()
    await bench.act(await bench.seen(), Hibernate(hibernating=False))
    assert is_applied(broker_set(bench.wish, 3), await bench.live())
    await bench.act(await bench.seen(), Hibernate(hibernating=True))
    assert bench.asked == [False, True]
