"""What a person asks for by an annotation of a Cluster is done once, whichever operator does it."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.kube_scene import PENSTOCK, Scene
from support.operator_world import World, desired, settled

from penstock.kubernetes.connect import connect
from penstock_operator.act import Acting
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import AnswerRequest, Observed, Plan, RestartPod, Severity
from penstock_operator.names import FORCE_ROLL, FORGET_BROKER, REPLACE_VOLUME
from penstock_operator.objects import DesiredCluster, read_cluster
from penstock_operator.plan import plan_cluster

WISH = desired()


def wish(world: World, text: str | None = None) -> DesiredCluster:
    """As the Cluster asks now; `text`: what a person writes."""
    if text is not None:
        world.requests[FORCE_ROLL] = text
    asked, _, uid = world.requests.get(FORCE_ROLL, "").partition("@")
    return replace(WISH, force_roll=int(asked) if asked else None, force_roll_pod=uid)


def test_a_roll_by_force_is_for_the_pod_that_was_seen() -> None:
    world = settled(WISH)
    world.reachable = False
    pod = world.pods[1]
    (bound,) = plan_cluster(wish(world, "1"), world.observed()).actions
    assert bound == AnswerRequest(FORCE_ROLL, f"1@{pod.uid}")
    world.carry_out(bound)
    (restart,) = plan_cluster(wish(world), world.observed()).actions
    assert isinstance(restart, RestartPod)
    assert (restart.uid, restart.forced) == (pod.uid, True)
    world.carry_out(restart)
    # The operator ends here. Until the pod is gone, the next one does nothing, and then only this:
    assert plan_cluster(wish(world), world.observed()).actions == ()
    del world.pods[1]
    world.go_on()
    assert world.pods[1].uid != pod.uid
    (done,) = plan_cluster(wish(world), world.observed()).actions
    assert done == AnswerRequest(FORCE_ROLL, None)


def test_a_request_without_a_pod_waits_for_one() -> None:
    world = settled(WISH)
    del world.pods[1]
    assert not requests(plan_cluster(wish(world, "1"), world.observed()))
    world.pods[1] = replace(world.pod(1, "", ready=False), terminating=True)
    assert not requests(plan_cluster(wish(world), world.observed()))
    assert requests(plan_cluster(wish(world, "1@gone"), world.observed())) == [None]
    del world.pods[1]
    assert requests(plan_cluster(wish(world), world.observed())) == [None]


def asked(**annotations: str) -> DesiredCluster:
    """As it is read; `annotations` by their names without the group."""
    named = {f"penstock.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    metadata = {"name": "flights", "namespace": "default", "uid": WISH.uid, "annotations": named}
    spec = {"brokers": 3, "security": {"mode": "Disabled"}}
    return read_cluster({"metadata": metadata, "spec": spec}, WISH.installation)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"force_roll": "7"}, "force-roll is '7'; it must be the id of a broker, from 0 to 2;"),
        ({"force_roll": "one"}, "force-roll is 'one'; it must be the id of a broker, from 0 to"),
        ({"force_roll": "-1@uid"}, "force-roll is '-1@uid'; it must be the id of a broker"),
        ({"forget_broker": "one"}, "forget-broker is 'one'; it must be the id of a broker;"),
    ],
)
def test_a_request_for_no_broker_is_said_to_be_wrong(
    annotations: dict[str, str], said: str
) -> None:
    world = settled(asked())
    plan = plan_cluster(asked(**annotations), world.observed())
    (wait,) = plan.waits
    assert (wait.reason, wait.severity) == ("InvalidRequest", Severity.BLOCKED)
    assert said in wait.message
    assert plan.actions == ()


def test_a_request_for_a_broker_that_is_there_is_not_wrong_whatever_the_spec_says() -> None:
    world = settled(replace(asked(), spec=desired(brokers=4).spec))
    (bound,) = requests(plan_cluster(asked(force_roll="3"), world.observed()))
    assert bound == f"3@{world.pods[3].uid}"
    for text in (f"3@{world.pods[3].uid}", "9@gone", ""):
        assert "InvalidRequest" not in reasons(asked(force_roll=text), world.observed())
    unread = replace(world.observed(), pods={}, unknown={"Pod": "forbidden"})
    assert "InvalidRequest" not in reasons(asked(force_roll="9"), unread)
    assert "InvalidRequest" not in reasons(asked(forget_broker="9"), world.observed())


def reasons(wanted: DesiredCluster, observed: Observed) -> set[str]:
    return {wait.reason for wait in plan_cluster(wanted, observed).waits}


def test_a_broker_that_was_let_go_by_name_leaves_no_request_behind() -> None:
    """Also if the operator ended right after: the next broker 3 is not let go without its word."""
    world = settled(WISH)
    by_name = replace(WISH, forget_broker=3)
    world.registered.add(3)
    assert requests(plan_cluster(by_name, world.observed())) == []
    world.registered.discard(3)
    assert requests(plan_cluster(by_name, world.observed())) == [None]
    world.reachable = False
    assert requests(plan_cluster(by_name, world.observed())) == []
    world.reachable = True
    world.pods[3] = world.pod(3, "", ready=False)
    assert requests(plan_cluster(by_name, world.observed())) == []


def requests(plan: Plan) -> list[str | None]:
    return [one.text for one in plan.actions if isinstance(one, AnswerRequest)]


@pytest.fixture
def kube(api_server: ApiServer) -> Iterator[Kube]:
    made = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig)))
    yield made
    made.close()


@pytest.mark.parametrize("annotation", [FORCE_ROLL, FORGET_BROKER, REPLACE_VOLUME])
async def test_another_request_is_not_taken_back_with_the_one_that_is_done(
    kube: Kube, api_server: ApiServer, annotation: str
) -> None:
    scene = Scene(api_server)
    scene.cluster()
    acting = Acting(kube, Brokers(), Events(kube, "test"))
    path = scene.path(PENSTOCK, "clusters", "flights")

    def ask(text: str) -> dict[str, Any]:
        asked = {"metadata": {"annotations": {annotation: text}}}
        how = "application/merge-patch+json"
        return dict(api_server.request("PATCH", path, asked, Content_Type=how))

    def asked() -> str | None:
        found = scene.get(PENSTOCK, "clusters", "flights")["metadata"].get("annotations") or {}
        return found.get(annotation)

    def told() -> list[tuple[str, str]]:
        found = api_server.request(
            "GET", f"/apis/events.k8s.io/v1/namespaces/{scene.namespace}/events"
        )
        return [(str(one["reason"]), str(one["note"])) for one in found["items"]]

    async def answer(seen: dict[str, Any], text: str | None, *event: str) -> None:
        names = replace(WISH.names, namespace=scene.namespace)
        action, observed = AnswerRequest(annotation, text, *event), World(Random(0)).observed()
        await acting.carry_out(action, seen, replace(WISH, names=names), observed)

    seen = ask("1")
    ask("2")
    await answer(seen, None, "TooLate", "it has expired")
    assert asked() == "2"
    assert not told(), "it did not expire: it was asked for again"
    await answer(seen, "1@uid")
    assert asked() == "2"
    seen = ask("1")
    await answer(seen, "1@uid")
    assert asked() == "1@uid"
    seen = scene.get(PENSTOCK, "clusters", "flights")
    await answer(seen, None, "TooLate", "it has expired")
    assert asked() is None
    assert told() == [("TooLate", "it has expired")]
