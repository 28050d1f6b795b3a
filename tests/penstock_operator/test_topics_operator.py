"""Topic resources on a real API server and a real broker: what is created, changed, kept, deleted.

Each test tells the operator's `Topics` when to look, so nothing waits for a timer.
"""

import asyncio
import secrets
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import Cluster
from support.operator_process import condition, install_crds
from support.topic_bench import TopicBench as Bench
from support.waiting import wait_until, wait_until_async

from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.errors import ClusterError
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import TopicResource
from penstock_operator.names import TOPIC_FINALIZER
from penstock_operator.topics import Topics


@pytest.fixture
async def bench(api_server: ApiServer, shared_broker: Cluster) -> AsyncIterator[Bench]:
    await asyncio.to_thread(install_crds, api_server)
    made = Bench(api_server, shared_broker)
    yield made
    await made.close()


async def test_a_topic_is_created_and_its_status_says_what_there_is(bench: Bench) -> None:
    bench.create("born", partitions=2, config={"retention.ms": 3_600_000})
    assert not await bench.look()
    assert condition(bench.seen("born"), "Ready")["reason"] == "Creating"
    assert await bench.look()
    stored = await bench.stored("born")
    assert stored is not None
    assert stored.configs["retention.ms"] == "3600000"
    body = bench.seen("born")
    assert condition(body, "Ready")["status"] == "True"
    status = body["status"]
    assert (status["topicId"], status["partitions"], status["replicas"]) == (stored.topic_id, 2, 1)
    generation = body["metadata"]["generation"]
    assert status["observedGeneration"] == generation
    assert condition(body, "Ready")["observedGeneration"] == generation
    assert status["message"] == ""
    assert [reason for reason, _ in bench.events()] == ["TopicCreated"]
    assert not body["metadata"].get("finalizers"), "only deletion needs one"


async def test_a_changed_spec_changes_the_topic(bench: Bench) -> None:
    bench.create("grown", partitions=1)
    await bench.settle()
    bench.patch("grown", partitions=3, config={"retention.ms": 60_000})
    await bench.settle()
    stored = await bench.stored("grown")
    assert stored is not None
    assert (len(stored.partitions), stored.configs["retention.ms"]) == (3, "60000")
    assert bench.seen("grown")["status"]["partitions"] == 3
    assert {reason for reason, _ in bench.events()} == {"TopicCreated", "TopicChanged"}


async def test_settings_that_somebody_else_changed_are_set_back(bench: Bench) -> None:
    bench.create("drifting", config={"retention.ms": 60_000})
    await bench.settle()
    admin = await bench.brokers.admin(bench.wish)
    await admin.alter_configs("drifting", {"retention.ms": "1", "max.message.bytes": "2000"})
    await bench.settle()
    stored = await bench.stored("drifting")
    assert stored is not None
    assert stored.configs["retention.ms"] == "60000"
    assert "max.message.bytes" not in stored.configs


async def test_a_topic_with_more_partitions_is_left_as_it_is(bench: Bench) -> None:
    bench.create("shrinking", partitions=2)
    await bench.settle()
    admin = await bench.brokers.admin(bench.wish)
    await admin.create_partitions("shrinking", 3)
    bench.patch("shrinking", config={"retention.ms": 60_000})
    assert not await bench.look()
    body = bench.seen("shrinking")
    assert condition(body, "Ready")["status"] == "False"
    assert "partitions" in body["status"]["message"]
    stored = await bench.stored("shrinking")
    assert stored is not None
    assert (len(stored.partitions), stored.configs.get("retention.ms")) == (3, None)
    assert body["status"]["partitions"] == 3, "what there is"


async def test_what_is_known_of_a_topic_stays_while_the_brokers_do_not_answer(
    bench: Bench,
) -> None:
    bench.create("quiet", partitions=2)
    await bench.settle()
    before = bench.seen("quiet")["status"]
    assert not await bench.look(answered=False)
    body = bench.seen("quiet")
    assert condition(body, "Ready")["reason"] == "BrokersDoNotAnswer"
    assert "nobody is there" in body["status"]["message"]
    known = ("topicId", "partitions", "replicas")
    assert [body["status"][key] for key in known] == [before[key] for key in known]
    assert await bench.look(), "they answer again"
    assert condition(bench.seen("quiet"), "Ready")["status"] == "True"


async def test_a_topic_that_was_never_seen_is_described_by_nothing(bench: Bench) -> None:
    bench.create("unseen")
    assert not await bench.look(answered=False)
    status = bench.seen("unseen")["status"]
    assert (status["topicId"], status["partitions"], status["replicas"]) == ("", 0, 0)


async def test_with_deletion_policy_delete_a_topic_goes_with_its_resource(bench: Bench) -> None:
    bench.create("mortal", deletionPolicy="Delete")
    await bench.settle()
    assert bench.seen("mortal")["metadata"]["finalizers"] == [TOPIC_FINALIZER]
    bench.delete("mortal")
    assert bench.seen("mortal") is not None, "the finalizer holds it"
    await bench.look(answered=False)
    assert bench.seen("mortal") is not None, "nobody could delete the topic"
    while bench.seen("mortal") is not None:
        await bench.look()
    assert await bench.stored("mortal") is None


async def test_a_topic_that_another_resource_wants_is_handed_over(bench: Bench) -> None:
    bench.create("former", topicName="shared", deletionPolicy="Delete")
    await bench.settle()
    before = await bench.stored("shared")
    assert before is not None
    bench.create("later", topicName="shared", deletionPolicy="Delete")
    bench.delete("former")
    await wait_until_async(bench.look, what="the later one has it")
    assert bench.seen("former") is None
    assert bench.seen("later")["metadata"]["finalizers"] == [TOPIC_FINALIZER]
    found = await bench.stored("shared")
    assert found is not None
    assert found.topic_id == before.topic_id, "no record is gone"


async def test_without_it_the_topic_stays(bench: Bench) -> None:
    bench.create("kept")
    await bench.settle()
    bench.delete("kept")
    assert bench.seen("kept") is None
    await bench.look()
    assert await bench.stored("kept") is not None


async def test_a_topic_that_was_there_is_adopted(bench: Bench) -> None:
    admin = await bench.brokers.admin(bench.wish)
    await admin.create_topic("older", 2, 1, {"retention.ms": "5000"})
    bench.create("older", partitions=2, config={"retention.ms": 5_000})
    assert await bench.look(), "nothing differs"
    stored = await bench.stored("older")
    assert stored is not None
    assert bench.seen("older")["status"]["topicId"] == stored.topic_id
    assert bench.events() == []


async def test_a_topic_that_the_cluster_has_no_room_for_says_so_until_there_is(
    api_server: ApiServer, make_cluster: Callable[..., Cluster]
) -> None:
    await asyncio.to_thread(install_crds, api_server)
    limits = {"max.partitions": "3"}
    cluster = await asyncio.to_thread(partial(make_cluster, controller_config=limits))
    bench = Bench(api_server, cluster)
    try:
        bench.create("first", partitions=2, deletionPolicy="Delete")
        await bench.settle()
        bench.create("second", partitions=2)
        assert not await bench.look()
        ready = condition(bench.seen("second"), "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "BrokersRefused")
        assert "has 2 of at most 3 (max.partitions); delete topics" in ready["message"]
        assert condition(bench.seen("second"), "Stalled")["status"] == "True"
        bench.delete("first")
        assert not await bench.look()
        await bench.look()
        assert await bench.look()
        assert condition(bench.seen("second"), "Ready")["status"] == "True"
    finally:
        await bench.close()


# ── Rules of access ───────────────────────────────────────────────────────────────────────

ADA_READS = {"principals": ["cert:ada"], "operations": ["Read"]}
READ = Rule(principals=("cert:ada",), operations=(Operation.READ,))
WRITE = Rule(principals=("cert:bob",), operations=(Operation.WRITE,))


async def rules(bench: Bench, topic: str) -> tuple[Rule, ...]:
    resource = Resource(Kind.TOPIC, topic)
    admin = await bench.brokers.admin(bench.wish)
    return (await admin.describe_access([resource]))[resource]


async def set_by_hand(bench: Bench, topic: str, *made: Rule) -> None:
    admin = await bench.brokers.admin(bench.wish)
    await admin.alter_access(Resource(Kind.TOPIC, topic), made)


async def test_a_topic_has_its_rules_from_the_first_pass_on(bench: Bench) -> None:
    bench.create("guarded", access=[ADA_READS])
    assert not await bench.look()
    assert await rules(bench, "guarded") == (READ,)
    assert await bench.look()
    body = bench.seen("guarded")
    assert condition(body, "Ready")["status"] == "True"
    assert "asks nobody who they are" in body["status"]["message"]
    told = dict(bench.events())
    assert told["AccessChanged"] == "topic guarded: access: allows cert:ada Read"
    assert "spec.security.mode Strict" in told["AccessNotAsked"]


async def test_rules_set_by_hand_are_reset_and_removed_ones_go(bench: Bench) -> None:
    bench.create("reset", access=[ADA_READS])
    await bench.settle()
    await set_by_hand(bench, "reset", READ, WRITE)
    await bench.settle()
    assert await rules(bench, "reset") == (READ,)
    bench.patch("reset", access=[])
    await bench.settle()
    assert await rules(bench, "reset") == ()
    assert bench.seen("reset")["status"]["message"] == ""


async def test_rules_that_no_resource_manages_stay(bench: Bench) -> None:
    bench.create("unmanaged", access=[ADA_READS])
    await bench.settle()
    bench.patch("unmanaged", access=None)
    await set_by_hand(bench, "unmanaged", WRITE)
    assert await bench.look()
    assert await rules(bench, "unmanaged") == (WRITE,)


async def test_rules_do_not_wait_for_partitions_that_cannot_be(bench: Bench) -> None:
    bench.create("stuck", partitions=1, access=[ADA_READS])
    await bench.settle()
    await (await bench.brokers.admin(bench.wish)).create_partitions("stuck", 2)
    bench.patch("stuck", access=[])
    assert not await bench.look()
    assert await rules(bench, "stuck") == ()
    assert condition(bench.seen("stuck"), "Ready")["reason"] == "InvalidSpec"


async def test_brokers_that_do_not_say_the_rules_hold_up_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("partial", partitions=1, access=[ADA_READS])
    await bench.settle()
    admin = await bench.brokers.admin(bench.wish)

    async def unknown(_: object) -> None:
        raise ClusterError("no such call")

    monkeypatch.setattr(admin, "describe_access", unknown)
    bench.patch("partial", partitions=2, access=[])
    assert not await bench.look()
    stored = await bench.stored("partial")
    assert stored is not None
    assert len(stored.partitions) == 2
    ready = condition(bench.seen("partial"), "Ready")
    assert (ready["reason"], "no such call" in ready["message"]) == ("AccessUnknown", True)
    monkeypatch.undo()
    await bench.settle()
    assert await rules(bench, "partial") == ()


async def test_a_topic_whose_name_is_taken_gives_no_rules(bench: Bench) -> None:
    bench.create("a-first", topicName="shared", access=[ADA_READS])
    await bench.settle()
    bench.create("b-second", topicName="shared", access=[])
    for _ in range(2):
        assert not await bench.look()
    assert await rules(bench, "shared") == (READ,)
    assert condition(bench.seen("b-second"), "Ready")["reason"] == "NameTaken"


async def test_rules_stay_with_a_topic_that_is_retained_and_go_with_one_that_is_not(
    bench: Bench,
) -> None:
    bench.create("retained", access=[ADA_READS])
    bench.create("doomed", access=[ADA_READS], deletionPolicy="Delete")
    await bench.settle()
    bench.delete("retained")
    bench.delete("doomed")
    while bench.seen("doomed") is not None:
        await bench.look()
    assert await rules(bench, "retained") == (READ,)
    await (await bench.brokers.admin(bench.wish)).create_topic("doomed", 1, 1)
    assert await rules(bench, "doomed") == ()


async def test_more_topics_have_their_rules_than_one_request_asks_about(bench: Bench) -> None:
    """A hundred are asked about at once, so the last of 103 are in a second request."""
    names = [f"many-{number:03}" for number in range(103)]
    every = [Resource(Kind.TOPIC, name) for name in names]
    for name in names:
        bench.create(name, partitions=1, access=[ADA_READS])
    admin = await bench.brokers.admin(bench.wish)
    try:
        await bench.settle()
        for name in (names[0], names[-1]):
            await set_by_hand(bench, name, WRITE)
        await bench.settle()
        stored = await admin.describe_access(every)
        assert [stored[resource] for resource in every] == [(READ,)] * len(names)
        bench.patch(names[-1], access=[])
        await bench.settle()
        assert await rules(bench, names[-1]) == ()
        assert await rules(bench, names[0]) == (READ,)
    finally:
        for name in await admin.describe_topics():
            if name in names:
                await admin.delete_topic(name)


# ── Protection from deletion ──────────────────────────────────────────────────────────────

PROTECTED = {"deletion.protection": "true"}


async def protect(bench: Bench, name: str, **spec: Any) -> None:
    """A protected topic whose resource is being deleted, and waits."""
    bench.create(name, deletionPolicy="Delete", **spec)
    await bench.settle()
    assert bench.seen(name)["status"]["protected"] is True
    bench.delete(name)
    assert await bench.look(), "only a person can do something"
    body = bench.seen(name)
    for kind, status in (("Ready", "False"), ("Stalled", "True"), ("Reconciling", "False")):
        assert condition(body, kind)["status"] == status
    ready = condition(body, "Ready")
    assert ready["reason"] == "DeletionProtected"
    assert f"penstock topic alter {name} --set deletion.protection=false" in ready["message"]
    assert body["status"]["message"] == ready["message"]
    assert await bench.stored(name) is not None


async def test_a_protected_topic_holds_its_resource_until_a_command_lifts_it(bench: Bench) -> None:
    await protect(bench, "held", config=PROTECTED)
    admin = await bench.brokers.admin(bench.wish)
    await admin.alter_configs("held", {"deletion.protection": "false"})
    assert await bench.look()
    assert bench.seen("held") is None
    assert await bench.stored("held") is None


async def test_or_until_its_own_resource_says_that_it_is_not_protected(bench: Bench) -> None:
    await protect(bench, "let-go", config=PROTECTED)
    bench.patch("let-go", config={"deletion.protection": "false"})
    assert await bench.look()
    assert bench.seen("let-go") is None
    assert await bench.stored("let-go") is None


async def test_a_resource_that_no_longer_speaks_of_protection_does_not_lift_it(
    bench: Bench,
) -> None:
    await protect(bench, "silent", config=PROTECTED)
    bench.patch("silent", config={"deletion.protection": None, "retention.ms": 60_000})
    assert await bench.look()
    assert condition(bench.seen("silent"), "Ready")["reason"] == "DeletionProtected"
    stored = await bench.stored("silent")
    assert stored is not None
    assert "retention.ms" not in stored.configs


async def test_a_topic_that_was_protected_a_moment_ago_is_not_deleted_either(bench: Bench) -> None:
    """The brokers refuse what the operator decided on older facts."""
    bench.create("late", deletionPolicy="Delete")
    await bench.settle()
    bench.delete("late")
    facts, _ = await bench.brokers.ask(bench.wish)
    admin = await bench.brokers.admin(bench.wish)
    await admin.alter_configs("late", PROTECTED)
    (found,) = await bench.kube.list("Topic", bench.namespace)
    assert await bench.topics.reconcile(
        [TopicResource("late", found)], bench.wish, bench.cluster, facts, ""
    )
    body = bench.seen("late")
    assert body["metadata"]["finalizers"] == [TOPIC_FINALIZER]
    assert condition(body, "Ready")["reason"] == "DeletionProtected"
    await admin.alter_configs("late", {"deletion.protection": "false"})
    assert await bench.look()
    assert bench.seen("late") is None


async def test_without_its_cluster_a_protected_topic_holds_nothing(bench: Bench) -> None:
    await protect(bench, "orphan", config=PROTECTED)
    (found,) = await bench.kube.list("Topic", bench.namespace)
    resources = [TopicResource("orphan", found)]
    assert await bench.topics.reconcile(resources, None, None, None, "")
    assert bench.seen("orphan") is None


async def test_a_status_speaks_of_protection_once_there_was_some(bench: Bench) -> None:
    bench.create("plain")
    await bench.settle()
    assert "protected" not in bench.seen("plain")["status"]
    bench.patch("plain", config=PROTECTED)
    await bench.settle()
    assert bench.seen("plain")["status"]["protected"] is True
    await bench.look(answered=False)
    assert bench.seen("plain")["status"]["protected"] is True, "as it was last known"
    bench.patch("plain", config={"deletion.protection": "false"})
    await bench.settle()
    assert bench.seen("plain")["status"]["protected"] is False


@contextmanager
def labelled(bench: Bench, topic: str) -> Iterator[None]:
    """A rule of the people who run the API server: who changes this Topic must label it."""
    name = f"labels-{bench.namespace}"
    where = f"object.metadata.namespace != '{bench.namespace}' || object.metadata.name != '{topic}'"
    rule = {
        "apiGroups": ["penstock.dev"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["topics"],
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {"expression": f"{where} || has(object.metadata.labels)", "message": "no label"}
        ],
    }
    made = {
        "validatingadmissionpolicies": policy,
        "validatingadmissionpolicybindings": {"policyName": name, "validationActions": ["Deny"]},
    }
    path = "/apis/admissionregistration.k8s.io/v1"
    for plural, spec in made.items():
        bench.server.request("POST", f"{path}/{plural}", {"metadata": {"name": name}, "spec": spec})
    try:
        yield
    finally:
        for plural in made:
            bench.server.request("DELETE", f"{path}/{plural}/{name}")


def is_refused(bench: Bench, name: str) -> bool:
    """Whether the rule is in force by now."""
    try:
        bench.patch(name, config={"retention.ms": 60_000 + secrets.randbelow(10_000)})
    except urllib.error.HTTPError as error:
        return error.code in {403, 422}
    else:
        return False


async def test_what_the_api_server_refuses_of_one_topic_holds_up_no_other(
    bench: Bench,
) -> None:  # I28
    topic, others = "unlabelled", [f"other-{at}" for at in range(30)]
    bench.create(topic, deletionPolicy="Delete")
    await bench.settle()
    with labelled(bench, topic):
        await asyncio.to_thread(wait_until, partial(is_refused, bench, topic), what="the rule")
        bench.delete(topic)
        for name in others:
            bench.create(name)

        async def are_ready() -> bool:
            assert not await bench.look(), "what was refused is left"
            return all(condition(bench.seen(each), "Ready")["status"] == "True" for each in others)

        await wait_until_async(are_ready, what="the others are ready")
        refused = bench.seen(topic)
        assert condition(refused, "Ready")["reason"] == "ApiServerRefused"
        assert condition(refused, "Stalled")["status"] == "True"
        assert "no label" in refused["status"]["message"]
        assert not bench.topics.ready[topic]
        labels = {"metadata": {"labels": {"team": "a"}}}
        where = f"{bench.path}/{topic}"
        bench.server.request("PATCH", where, labels, Content_Type="application/merge-patch+json")
        await wait_until_async(bench.look, what="it is tried again, and goes", timeout_s=60)
        assert bench.seen(topic) is None


async def test_an_api_server_that_knows_us_no_more_ends_the_pass(
    bench: Bench, tmp_path: Path
) -> None:
    bench.create("t")
    facts, problem = await bench.brokers.ask(bench.wish)
    resources = [TopicResource("t", bench.seen("t"))]
    stranger = bench.server.write_kubeconfig(tmp_path / "kubeconfig", "no such token")
    kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(stranger)))
    topics = Topics(kube, bench.brokers, Events(kube, "test"))
    with pytest.raises(ExceptionGroup) as caught:
        await topics.reconcile(resources, bench.wish, bench.cluster, facts, problem)
    kube.close()
    assert caught.group_contains(KubernetesError, match="401")
