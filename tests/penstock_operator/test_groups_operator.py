"""ConsumerGroup resources on a real API server and real brokers.

Each test gives the operator's `Groups` its looks and its time, so nothing waits for a timer.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import Cluster
from support.operator_process import OURS, condition, get, install_crds
from support.operator_world import desired
from support.reachable import Reachable
from support.waiting import wait_until

from penstock.client import Admin, AsyncAdmin, Consumer, GroupState, Producer
from penstock.core.manifest.containers import CONTROLLER
from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.events import Events
from penstock_operator.groups import Groups, View
from penstock_operator.kube import Kube
from penstock_operator.names import Names

DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
READY = View(gone=False, desired=desired(1), ready=True)


class Dying(Kube):
    """An operator that dies as it is about to write what `at` names into a status."""

    at = ""

    async def merge(
        self, kind: str, namespace: str, name: str, body: dict[str, Any], *, status: bool = False
    ) -> dict[str, Any]:
        if self.at and self.at in body.get("status", {}):
            raise KubernetesError("this process is gone", 0)
        return await super().merge(kind, namespace, name, body, status=status)


class Bench:
    """A namespace with ConsumerGroups of the Cluster `flights`, whose brokers are real."""

    def __init__(self, server: ApiServer, brokers: Cluster, name: str) -> None:
        self.server, self.brokers, self.name = server, brokers, name
        self.namespace = server.namespace("groups")
        self.now_ms = 0

    # ── As a user ─────────────────────────────────────────────────────────────────────────

    @property
    def path(self) -> str:
        return self.path_of(self.name)

    def path_of(self, name: str) -> str:
        return f"{OURS}/namespaces/{self.namespace}/consumergroups/{name.lower()}"

    def create(self, name: str = "", **spec: Any) -> None:
        name = name or self.name
        body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name.lower()},
            "spec": {"cluster": "flights", "groupId": name, **spec},
        }
        path = f"{OURS}/namespaces/{self.namespace}/consumergroups"
        self.server.request("POST", path, body)

    def patch(self, body: dict[str, Any], path: str = "") -> None:
        media = "application/merge-patch+json"
        self.server.request("PATCH", path or self.path, body, Content_Type=media)

    def ask_reset(self, **reset: Any) -> None:
        """Replaces spec.offsetReset."""
        self.patch({"spec": {"offsetReset": None}})
        self.patch({"spec": {"offsetReset": reset}})

    def status(self, name: str = "") -> dict[str, Any]:
        found = get(self.server, self.path_of(name or self.name))
        return dict(found["status"])

    def ready(self) -> dict[str, Any]:
        return condition(get(self.server, self.path), "Ready")

    def printed(self) -> dict[str, Any]:
        """What kubectl get prints, by column."""
        table = self.server.request(
            "GET", self.path, Accept="application/json;as=Table;v=v1;g=meta.k8s.io"
        )
        names = [each["name"] for each in table["columnDefinitions"]]
        return dict(zip(names, table["rows"][0]["cells"], strict=True))

    def events(self) -> list[tuple[str, str]]:
        found = self.server.request(
            "GET", f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        )
        return [(each["reason"], each["note"]) for each in found["items"]]

    def deploy(self, replicas: int, labels: dict[str, str] | None = None) -> None:
        labels = labels or {"app": "reader"}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "reader", "image": "reader:1"}]},
        }
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "reader"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": template,
            },
        }
        self.server.request("POST", DEPLOYMENTS.format(self.namespace), body)

    @property
    def replicas(self) -> int:
        path = f"{DEPLOYMENTS.format(self.namespace)}/reader"
        return int(get(self.server, path)["spec"]["replicas"])

    # ── As consumers ──────────────────────────────────────────────────────────────────────

    def consumer(self) -> Consumer:
        return Consumer(self.brokers.bootstrap, group_id=self.name, auto_offset_reset="earliest")

    def consume(self, count: int) -> None:
        """Reads so many records as the group, commits them, and leaves."""
        with self.consumer() as consumer:
            consumer.subscribe([self.name])
            left = count

            def read() -> bool:
                nonlocal left
                left -= sum(len(batch) for batch in consumer.poll(0.2, max_records=left))
                return left <= 0

            wait_until(read, what=f"{count} records")
            consumer.commit()
        self.wait_left()

    def join(self, member: Consumer) -> None:
        """Until it is a member, and its group has come to rest."""
        member.subscribe([self.name])
        wait_until(lambda: member.poll(0.1) or member.assignment(), what="it is a member")
        wait_until(lambda: self._members() == (GroupState.STABLE, 1), what="the group rests")

    def wait_left(self) -> None:
        """Until nobody is a member: who closes a consumer waits for that for some seconds only."""
        wait_until(lambda: self._members()[1] == 0, what="the group is empty")

    def _members(self) -> tuple[GroupState, int]:
        with Admin(self.brokers.bootstrap) as admin:
            try:
                found = admin.describe_group(self.name, include_offsets=False)
            except ClusterError as error:
                if error.code is not ErrorCode.UNKNOWN_GROUP:
                    raise
                return GroupState.DEAD, 0
        return found.state, len(found.members)

    def produce(self, count: int) -> None:
        with Producer(self.brokers.bootstrap, linger_ms=0) as producer:
            for number in range(count):
                producer.send(self.name, b"%d" % number, partition=number % 2)
            producer.flush(30)

    # ── As the operator ───────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def operator(self, kubeconfig: Path | None = None, at: str = "") -> AsyncIterator[Groups]:
        """`at`: it dies there, see `Dying`."""
        path = str(kubeconfig or self.server.kubeconfig)
        self.kube = Dying(connect("penstock-tests", TIMEOUTS, kubeconfig=path))
        self.kube.at = at
        brokers = Reachable(self.brokers.bootstrap)
        events = Events(self.kube, "test")
        where = (self.namespace, "flights")
        groups = Groups(self.kube, events, brokers, where, lambda: self.now_ms)
        groups.see(READY)
        try:
            yield groups
        finally:
            await groups.close()
            self.kube.close()

    async def look(self, groups: Groups, times: int = 1, every_ms: int = 10_000) -> None:
        """Looks as after a watch event; time passes between looks."""
        for _ in range(times):
            self.now_ms += every_ms
            body = get(self.server, self.path)
            if body is not None:
                groups.heard(body, deleted=False)
            await groups.look()


@pytest.fixture
def bench(api_server: ApiServer, shared_broker: Cluster, request: pytest.FixtureRequest) -> Bench:
    install_crds(api_server)
    name = "".join(c for c in request.node.name if c.isalnum())[-60:]
    shared_broker.create_topic(name, partitions=2)
    made = Bench(api_server, shared_broker, name)
    made.produce(20)
    return made


async def committed(admin: AsyncAdmin, group: str) -> int:
    """The sum of its committed offsets."""
    offsets = (await admin.describe_group(group)).offsets
    return sum(each.offset for each in offsets.values())


async def test_a_group_is_adopted_and_at_rest_nothing_is_written(bench: Bench) -> None:
    bench.create()
    async with bench.operator() as groups:
        await bench.look(groups)
        assert bench.ready()["reason"] == "NoGroup"
        assert bench.printed()["Members"] == 0
        assert bench.status()["state"] == "Dead"
        assert "lag" not in bench.status()
        bench.consume(12)
        await bench.look(groups)
        seen = bench.status()
        assert (seen["state"], seen["members"]) == ("Empty", 0)
        assert seen["lag"]["records"] == 8
        assert bench.ready()["status"] == "True"
        shown = bench.printed()
        assert (shown["State"], shown["Members"], shown["Lag"]) == ("Empty", 0, 8)
        await bench.look(groups)
        before = bench.kube.writes
        await bench.look(groups, times=9)
        assert bench.kube.writes == before, "90 s at rest cost no write"
        with bench.consumer() as member:
            bench.join(member)
            await bench.look(groups)
            assert (bench.status()["state"], bench.status()["members"]) == ("Stable", 1)
            produced = bench.kube.writes
            await bench.look(groups, times=5, every_ms=1_000)
            assert bench.kube.writes == produced, "not more often than every ten seconds"


async def test_only_what_others_change_is_news(bench: Bench) -> None:
    bench.create()
    async with bench.operator() as groups:
        await bench.look(groups)
        bench.consume(12)
        await bench.look(groups)
        ours = get(bench.server, bench.path)
        assert ours["status"]["lag"]["records"] == 8
        ours["status"]["lag"]["records"] = 5  # as an event that overtakes the answer to our write
        assert not groups.heard(ours, deleted=False), "figures are no news"
        bench.patch({"spec": {"deletionPolicy": "Delete"}})
        assert groups.heard(get(bench.server, bench.path), deleted=False)
        await bench.look(groups)
        assert not groups.heard(get(bench.server, bench.path), deleted=False), "our finalizer"
        assert not groups.are_gone
        last = get(bench.server, bench.path)
        bench.patch({"metadata": {"finalizers": None}})
        bench.server.request("DELETE", bench.path)
        assert groups.heard(last, deleted=True)
        await groups.look()
        assert groups.are_gone
        assert not groups.heard(last, deleted=True)


async def test_a_reset_waits_for_the_members_and_is_carried_out_once(bench: Bench) -> None:
    bench.consume(12)
    bench.create()
    async with bench.operator() as groups, AsyncAdmin(bench.brokers.bootstrap) as admin:
        with bench.consumer() as member:
            bench.join(member)
            bench.ask_reset(id="again", to="earliest")
            await bench.look(groups)
            told = bench.ready()
            assert (told["status"], told["reason"]) == ("False", "GroupNotEmpty")
            assert "must wait while 1 member is active" in told["message"]
            assert not (await admin.describe_group(bench.name)).last_reset_id
        bench.wait_left()
        await bench.look(groups)
        seen = bench.status()
        assert seen["resetIds"] == ["again"]
        assert "pendingReset" not in seen
        record = seen["lastReset"]
        moved = {each["partition"]: (each["old"], each["new"]) for each in record["offsets"]}
        assert set(moved) == {f"{bench.name}/0", f"{bench.name}/1"}
        assert sum(old for old, _ in moved.values()) >= 12
        assert {new for _, new in moved.values()} == {0}
        assert record["offsetsBack"] == sum(old for old, _ in moved.values())
        assert await committed(admin, bench.name) == 0
        group = await admin.describe_group(bench.name)
        assert bench.name.lower() in group.last_reset_reason
        notes = [note for reason, note in bench.events() if reason == "OffsetsReset"]
        assert len(notes) == 1
        assert "again: 2 partitions set to earliest" in notes[0]
        bench.consume(4)
        await bench.look(groups, times=3)
        assert await committed(admin, bench.name) == 4, "once is once"
        assert bench.ready()["status"] == "True"


async def test_a_dry_run_shows_and_changes_nothing_until_it_is_no_dry_run(bench: Bench) -> None:
    bench.consume(12)
    bench.create(offsetReset={"id": "skip", "to": "latest", "dryRun": True})
    async with bench.operator() as groups, AsyncAdmin(bench.brokers.bootstrap) as admin:
        await bench.look(groups)
        shown = bench.status()["dryRun"]
        assert shown["offsetsForward"] == 8
        assert {each["new"] for each in shown["offsets"]} == {10}
        assert "lastReset" not in bench.status()
        assert await committed(admin, bench.name) == 12
        writes = bench.kube.writes
        await bench.look(groups)
        assert bench.kube.writes == writes, "shown once"
        bench.patch({"spec": {"offsetReset": {"dryRun": False}}})
        await bench.look(groups)
        assert await committed(admin, bench.name) == 20
        assert bench.status()["resetIds"] == ["skip"]


async def test_a_reset_that_cannot_be_is_blocked_in_plain_words(bench: Bench) -> None:
    bench.consume(12)
    bench.create(offsetReset={"id": "far", "to": "offset", "value": "999"})
    async with bench.operator() as groups:
        await bench.look(groups)
        stalled = condition(get(bench.server, bench.path), "Stalled")
        assert stalled["status"] == "True"
        assert "999 is not in the log" in stalled["message"]
        bench.ask_reset(id="far", to="datetime", value="2030-02-30")
        await bench.look(groups)
        assert "which is not a time" in bench.ready()["message"]
        assert "resetIds" not in bench.status()


async def test_a_reset_is_not_carried_out_before_its_intention_is_stored(bench: Bench) -> None:
    bench.consume(12)
    bench.create(offsetReset={"id": "later", "to": "earliest"})
    async with bench.operator(at="pendingReset") as groups:
        await bench.look(groups)
        found = get(bench.server, bench.path)
        assert condition(found, "Ready").get("reason") != "BrokersRefused", "no broker was asked"
        assert "lastReset" not in found.get("status", {})
        bench.kube.at = ""
        await bench.look(groups)
        record = bench.status()["lastReset"]
        assert sum(each["old"] for each in record["offsets"]) == 12


async def test_a_status_that_could_not_be_written_is_made_up_for(bench: Bench) -> None:
    bench.consume(12)
    bench.create(offsetReset={"id": "again", "to": "earliest"})
    async with bench.operator(at="lastReset") as groups:
        await bench.look(groups)
        assert "lastReset" not in bench.status()
        bench.kube.at = ""
        await bench.look(groups)
        record = bench.status()["lastReset"]
        assert sum(each["old"] for each in record["offsets"]) == 12


@pytest.mark.parametrize("at", ["pendingReset", "lastReset"])
async def test_an_operator_that_dies_within_a_reset_leaves_it_to_the_next(
    bench: Bench, at: str
) -> None:
    bench.consume(12)
    bench.create(offsetReset={"id": "again", "to": "earliest"})
    async with AsyncAdmin(bench.brokers.bootstrap) as admin:
        async with bench.operator(at=at) as groups:
            await bench.look(groups)
        reset = (await admin.describe_group(bench.name)).last_reset_id
        assert reset == ("" if at == "pendingReset" else "again")
        assert "lastReset" not in bench.status()
        if at == "lastReset":
            bench.consume(4)  # these must not be taken back by the next operator
        async with bench.operator() as groups:
            await bench.look(groups, times=2)
        record = bench.status()["lastReset"]
        assert sum(each["old"] for each in record["offsets"]) == 12, "the old offsets are known"
        assert "pendingReset" not in bench.status()
        assert await committed(admin, bench.name) == (4 if at == "lastReset" else 0)


async def test_delete_forgets_the_group_when_it_is_empty(bench: Bench) -> None:
    bench.create(deletionPolicy="Delete")
    async with bench.operator() as groups, AsyncAdmin(bench.brokers.bootstrap) as admin:
        with bench.consumer() as member:
            bench.join(member)
            await bench.look(groups)
            bench.server.request("DELETE", bench.path)
            await bench.look(groups)
            assert "deleted when its 1 members have left" in bench.ready()["message"]
        bench.wait_left()
        await bench.look(groups)
        assert get(bench.server, bench.path) is None
        listed = [each.group_id for each in await admin.list_groups()]
        assert bench.name not in listed


async def test_nothing_is_deleted_and_nothing_hangs_when_the_cluster_is_gone(bench: Bench) -> None:
    bench.consume(12)
    bench.create(deletionPolicy="Delete")
    async with bench.operator() as groups, AsyncAdmin(bench.brokers.bootstrap) as admin:
        await bench.look(groups)
        assert get(bench.server, bench.path)["metadata"]["finalizers"]
        bench.server.request("DELETE", bench.path)
        groups.see(View(gone=True))
        await bench.look(groups)
        assert get(bench.server, bench.path) is None
        seen = await admin.describe_group(bench.name)
        assert seen.state is GroupState.EMPTY


async def test_consumers_are_scaled_by_lag(bench: Bench) -> None:
    target = {"name": "reader", "maxReplicas": 5, "lagPerReplica": 4}
    bench.consume(12)
    bench.create(scaleTarget=target)
    async with bench.operator() as groups:
        await bench.look(groups)
        assert bench.ready()["reason"] == "NoScaleTarget"
        bench.deploy(1)
        groups.see(View(gone=False, desired=READY.desired, ready=False))
        await bench.look(groups)
        assert bench.replicas == 1
        assert "the Cluster is not Ready" in bench.status()["scale"]["message"]
        groups.see(READY)
        await bench.look(groups)
        assert bench.replicas == 2, "8 records, 4 per replica, 2 partitions"
        bench.produce(20)
        await bench.look(groups)
        assert bench.replicas == 2, "never more than partitions"
        bench.consume(28)
        await bench.look(groups, times=30)
        assert bench.replicas == 2, "not down for 300 seconds"
        await bench.look(groups)
        assert bench.replicas == 1
        await bench.look(groups)
        assert bench.status()["scale"] == {"replicas": 1, "message": ""}
        notes = [note for reason, note in bench.events() if reason == "Scaled"]
        assert "Deployment reader from 1 to 2 replicas: 8 records of lag, 4 per replica" in notes
        assert len(notes) == 2


async def test_a_person_who_scales_at_the_same_time_wins(bench: Bench) -> None:
    bench.consume(12)
    bench.create(scaleTarget={"name": "reader", "maxReplicas": 5, "lagPerReplica": 4})
    bench.deploy(1)
    path = f"{DEPLOYMENTS.format(bench.namespace)}/reader"
    async with bench.operator() as groups:
        decided = bench.kube.set_scale

        async def late(*where: Any, version: str) -> None:
            bench.patch({"spec": {"replicas": 4}}, path)
            await decided(*where, version=version)

        bench.kube.set_scale = late  # type: ignore[method-assign, assignment]
        await bench.look(groups)
        assert bench.replicas == 4


async def test_scaling_needs_the_right_to_and_says_so(bench: Bench) -> None:
    bench.consume(12)
    bench.create(scaleTarget={"name": "reader", "maxReplicas": 5, "lagPerReplica": 4})
    bench.deploy(1)
    rules: list[dict[str, Any]] = [
        {
            "apiGroups": ["penstock.dev"],
            "resources": ["consumergroups", "consumergroups/status"],
            "verbs": ["get", "list", "patch", "update"],
        },
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    ]
    account = bench.server.service_account(bench.namespace, "without", rules)
    async with bench.operator(account) as groups:
        await bench.look(groups)
        stalled = condition(get(bench.server, bench.path), "Stalled")
        assert "consumerScaling.enabled=true" in stalled["message"]
        assert bench.status()["lag"]["records"] == 8, "the rest goes on"
    more = [{"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]}]
    account = bench.server.service_account(bench.namespace, "with", rules + more)
    async with bench.operator(account) as groups:
        await bench.look(groups)
        assert bench.replicas == 2


@pytest.mark.parametrize(
    "labels",
    [Names("flights", "air").selector(CONTROLLER), {"app.kubernetes.io/name": "penstock-operator"}],
    ids=["controllers", "operator"],
)
async def test_what_penstock_consists_of_is_not_scaled(
    bench: Bench, labels: dict[str, str]
) -> None:
    bench.consume(12)
    bench.create(scaleTarget={"name": "reader", "maxReplicas": 5, "lagPerReplica": 4})
    bench.deploy(1, labels)
    async with bench.operator() as groups:
        await bench.look(groups)
        assert bench.replicas == 1
        stalled = condition(get(bench.server, bench.path), "Stalled")
        assert stalled["reason"] == "ScalingNotAllowed"
        assert "Deployment reader is a part of Penstock" in stalled["message"]
        assert bench.status()["lag"]["records"] == 8, "the rest goes on"


async def test_a_defect_does_not_end_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create()
    failed, written = asyncio.Event(), asyncio.Event()
    async with bench.operator() as groups, asyncio.TaskGroup() as tasks, asyncio.timeout(600):

        async def broken(*_: Any) -> Any:
            failed.set()
            raise RuntimeError("a defect")

        merge = bench.kube.merge

        async def told(*where: Any, **more: Any) -> Any:
            made = await merge(*where, **more)
            written.set()
            return made

        monkeypatch.setattr(bench.kube, "list", broken)
        monkeypatch.setattr(bench.kube, "merge", told)
        running = tasks.create_task(groups.run())
        await failed.wait()
        monkeypatch.delattr(bench.kube, "list")
        assert groups.heard(get(bench.server, bench.path), deleted=False)
        await written.wait()
        assert bench.status()["state"] == "Dead"
        running.cancel()


async def test_a_group_that_fails_is_one_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.consume(12)
    bench.create()
    bench.create("other")
    async with bench.operator() as groups:
        tell = bench.kube.merge

        async def merge(kind: str, namespace: str, name: str, body: Any, **more: Any) -> Any:
            if name == "other":
                raise RuntimeError("a defect")
            return await tell(kind, namespace, name, body, **more)

        monkeypatch.setattr(bench.kube, "merge", merge)
        await bench.look(groups)
        assert bench.status()["lag"]["records"] == 8
        assert bench.status("other")["observedGeneration"] == 0
        monkeypatch.undo()
        await bench.look(groups)
        assert bench.status("other")["state"] == "Dead"
