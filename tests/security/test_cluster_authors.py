"""Who may write a Cluster must not become more than that by it.

Position: a user who may create and change Clusters in a namespace. Attempt: have an image of their
own run with the controllers' account, or pods on nodes of the control plane. Outcome: refused, with
what to do; and whoever holds the verb may.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.admission import in_force
from support.apiserver import TIMEOUTS, ApiServer
from support.operator_process import OURS, condition, get, install_crds, running
from support.waiting import wait_until

from penstock.kubernetes.api import Api
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.objects.images import is_allowed

MERGE = "application/merge-patch+json"
EVIL = "registry.example.com/evil/image:1"
TOLERATE = {"tolerations": [{"operator": "Exists"}]}
Make = Callable[..., Api]


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    install_crds(api_server)
    return api_server.namespace("authors")


@pytest.fixture
def user(api_server: ApiServer, namespace: str) -> Iterator[Make]:
    """`user("name", "set-image", …)`: may write Clusters, and has these verbs as well."""
    made: list[Api] = []

    def make(name: str, *verbs: str, only: str = "") -> Api:
        writing = ["create", "get", "patch", "update"]
        rules = [
            {"apiGroups": ["penstock.dev"], "resources": ["clusters"], "verbs": writing},
            {"apiGroups": ["penstock.dev"], "resources": ["clusters/status"], "verbs": ["patch"]},
        ]
        if verbs:
            extra = {"apiGroups": ["penstock.dev"], "resources": ["clusters"], "verbs": [*verbs]}
            rules.append(extra | ({"resourceNames": [only]} if only else {}))
        config = api_server.service_account(namespace, name, rules)
        made.append(connect("tests", TIMEOUTS, kubeconfig=str(config)))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.fixture
def guarded(api_server: ApiServer, namespace: str, user: Make) -> Iterator[str]:
    """The namespace, with the chart's admission policy in force there."""
    nobody = user("nobody")
    dry = partial(create, nobody, namespace, "dry", dry_run=True, image=EVIL)
    with in_force(api_server, "", namespace, lambda: refusal(dry)):
        yield namespace


def create(
    api: Api, namespace: str, name: str, *, dry_run: bool = False, **spec: Any
) -> dict[str, Any]:
    body = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": spec,
    }
    query = {"dryRun": "All"} if dry_run else {}
    return api.request("POST", f"{OURS}/namespaces/{namespace}/clusters", body=body, query=query)


def change(api: Api, namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    return api.merge(f"{OURS}/namespaces/{namespace}/clusters/{name}", {"spec": spec})


def refusal(call: Callable[[], object]) -> str:
    """Why the API server forbids it; "": it does not."""
    try:
        call()
    except KubernetesError as error:
        if error.status != 403:
            raise
        return str(error)
    return ""


def test_an_image_of_ones_own_needs_a_verb(guarded: str, user: Make) -> None:
    author = user("author")
    told = refusal(partial(create, author, guarded, "flights", image=EVIL))
    assert "setting spec.image needs the verb set-image on clusters.penstock.dev" in told
    assert f"in namespace {guarded}" in told
    assert f"bound to system:serviceaccount:{guarded}:author" in told
    create(author, guarded, "flights")
    assert "set-image" in refusal(partial(change, author, guarded, "flights", image=EVIL))
    create(user("may", "set-image"), guarded, "trains", image=EVIL)
    change(author, guarded, "trains", brokers=5)  # what it was is not asked about
    assert "set-image" in refusal(partial(change, author, guarded, "trains", image="other"))
    change(author, guarded, "trains", image=None)  # the operator's own


def test_nodes_of_ones_choice_need_a_verb(guarded: str, user: Make) -> None:
    author = user("author", "set-image")
    for pod in (TOLERATE, {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}):
        told = refusal(partial(create, author, guarded, "flights", pod=pod))
        assert "setting spec.pod needs the verb set-placement" in told
    create(author, guarded, "flights")
    assert "set-placement" in refusal(partial(change, author, guarded, "flights", pod=TOLERATE))
    placer = user("placer", "set-placement")
    change(placer, guarded, "flights", pod=TOLERATE)
    change(author, guarded, "flights", brokers=5)
    more = {"nodeSelector": {"disk": "ssd"}}
    assert "set-placement" in refusal(partial(change, author, guarded, "flights", pod=more))


def test_the_verb_can_be_for_one_cluster(guarded: str, user: Make) -> None:
    one = user("one", "set-image", only="flights")
    create(one, guarded, "flights", image="penstock-broker:1")
    assert "set-image" in refusal(partial(create, one, guarded, "trains", image=EVIL))


def test_the_operator_is_not_in_the_way_of_the_policy(
    guarded: str, user: Make, api_server: ApiServer
) -> None:
    """It writes statuses and annotations, and holds neither verb."""
    chooser = user("may", "set-image", "set-placement")
    create(chooser, guarded, "flights", image=EVIL, pod=TOLERATE)
    operator = user("operator")
    path = f"{OURS}/namespaces/{guarded}/clusters/flights"
    operator.merge(path, {"metadata": {"annotations": {"penstock.dev/force-roll": None}}})
    operator.merge(f"{path}/status", {"status": {"message": "seen"}})
    assert get(api_server, path)["status"]["message"] == "seen"


def test_elsewhere_nothing_is_asked(guarded: str, api_server: ApiServer) -> None:
    """The policy is for the namespaces that the operator watches; administrators have all verbs."""
    other = api_server.namespace("others")
    config = api_server.service_account(
        other,
        "author",
        [{"apiGroups": ["penstock.dev"], "resources": ["clusters"], "verbs": ["create"]}],
    )
    api = connect("tests", TIMEOUTS, kubeconfig=str(config))
    create(api, other, "flights", image=EVIL)
    api.close()
    admin = connect("tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig))
    create(admin, guarded, "flights", image=EVIL, pod=TOLERATE)
    admin.close()


def test_an_image_that_is_not_allowed_is_not_run(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    """The operator refuses it whoever wrote it, and leaves what runs as it is."""
    admin = connect("tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig))
    workloads = [
        f"/apis/apps/v1/namespaces/{namespace}/{each}"
        for each in ("statefulsets/flights-broker", "deployments/flights-controller")
    ]

    def images() -> list[str]:
        found = [get(api_server, path) for path in workloads]
        pods = [each["spec"]["template"]["spec"]["containers"][0] for each in found if each]
        return [pod["image"] for pod in pods]

    def runs(image: str) -> bool:
        return images() == [image, image]

    def stalled() -> dict[str, Any]:
        return condition(
            get(api_server, f"{OURS}/namespaces/{namespace}/clusters/flights"), "Stalled"
        )

    with running(api_server, tmp_path, namespace, options=["--allowed-images=mirror/penstock/*"]):
        create(admin, namespace, "flights")
        wait_until(lambda: runs("penstock-broker:test"), what="the operator's own image")
        before = [get(api_server, path)["metadata"]["generation"] for path in workloads]
        change(admin, namespace, "flights", image=EVIL)
        wait_until(lambda: stalled().get("reason") == "ImageNotAllowed", what="it is refused")
        told = stalled()["message"]
        assert f"spec.image is {EVIL}" in told
        assert "allows images of penstock-broker, mirror/penstock/* only" in told
        assert "add registry.example.com/evil/image to its allowedImages" in told
        after = [get(api_server, path)["metadata"]["generation"] for path in workloads]
        assert after == before
        assert runs("penstock-broker:test")
        for allowed in ("mirror/penstock/broker:2", "penstock-broker@sha256:" + 64 * "0"):
            change(admin, namespace, "flights", image=allowed)
            wait_until(partial(runs, allowed), what=f"{allowed} is run")
    admin.close()


@pytest.mark.parametrize(
    ("image", "allowed", "expected"),
    [
        ("penstock-broker:1", "penstock-broker", True),
        ("penstock-broker", "penstock-broker", True),
        ("penstock-broker@sha256:00", "penstock-broker", True),
        ("registry:5000/penstock-broker:1@sha256:00", "registry:5000/penstock-broker", True),
        ("registry:5000/penstock-broker", "registry:5000/penstock-broker", True),
        ("registry/a/b/c:1", "registry/a/*", True),
        ("anything", "*", True),
        ("penstock-broker-evil:1", "penstock-broker", False),
        ("evil/penstock-broker:1", "penstock-broker", False),
        ("registry/ab:1", "registry/a/*", False),
        ("registry/a:1", "registry/a/*", False),
        ("registry.evil/a/b", "registry/a/*", False),
        ("penstock-broker:1", "", False),
    ],
)
def test_what_counts_as_the_same_repository(image: str, allowed: str, *, expected: bool) -> None:
    assert is_allowed(image, [allowed] if allowed else []) is expected
