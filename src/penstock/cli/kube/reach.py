"""From a Cluster resource to something a client can connect to.

    choose_cluster ──▶ broker pods ──▶ bootstrap: their own addresses
                                   └─▶ Forwarder.resolve: those addresses to local ports

Brokers advertise names that only pods can resolve; the client uses these names, and each is
translated when it connects. Brokers that appear later are reached in the same way.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from penstock.cli.kube.choice import KubeChoice, connect
from penstock.cli.kube.forward import Forwarder, open_with
from penstock.cli.kube.login import Login, login_to
from penstock.cli.kube.snapshot import (
    choose_cluster,
    find_visible_clusters,
    full_name,
    name_of,
)
from penstock.cli.kube.status import broker_id, is_leaving, is_pod_ready
from penstock.core.manifest.objects import SecurityMode
from penstock.errors import ErrorCode, MisuseError, PenstockError, UnreachableError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL
from penstock.kubernetes.resources import Json, path_of

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.client.config import ClientOptions, SecurityOptions
    from penstock.kubernetes.api import Api

GRPC_PORT: Final = 9092
SECURE_PORT: Final = 9095
_TIMEOUTS: Final = ("connect_timeout_ms", "request_timeout_ms")


@dataclass(frozen=True, slots=True)
class Reached:
    """Keep it while the client lives: it holds the ports."""

    name: str
    bootstrap: str
    forwarder: Forwarder
    login: Login | None = None

    @property
    def options(self) -> "SecurityOptions":
        """What a client shows to the brokers."""
        return {} if self.login is None else self.login.options

    def close(self) -> None:
        """Connections end with the process or their other side."""
        self.forwarder.close()
        if self.login is not None:
            self.login.close()


def reach(choice: KubeChoice, cluster: str | None) -> Reached:
    """The named Cluster, or the only one. Raises PenstockError that says what to do."""
    api = connect(choice)
    return reach_cluster(api, choose_cluster(api, cluster, choice.namespace))


def reach_only() -> Reached | None:
    """The only Cluster in the kubeconfig's context; None if there is none, or if it cannot be
    asked: then the user is told why.

    Raises MisuseError if there are several: guessing would be worse.
    """
    try:
        api = connect(KubeChoice())
        clusters = find_visible_clusters(api)
    except PenstockError as error:
        if isinstance(error, KubernetesError) or error.code is ErrorCode.INVALID_CONFIG:
            _complain(f"no Cluster was looked for on Kubernetes: {error.message}")
        return None
    if len(clusters) > 1:
        names = ", ".join(full_name(one) for one in clusters)
        raise MisuseError(
            "there are several Clusters in this Kubernetes context; give --cluster before "
            f"the command: {names}"
        )
    if not clusters:
        return None
    tell_which(full_name(clusters[0]))
    return reach_cluster(api, clusters[0])


def tell_which(name: str) -> None:
    """The user did not name it: who deletes a topic should see where."""
    sys.stderr.write(f"using Cluster {name}, found through kubeconfig\n")


def reach_cluster(
    api: "Api",
    cluster: Json,
    complain: Callable[[str], None] | None = None,
    *,
    only_look: bool = False,
) -> Reached:
    """`complain` is called for pods that cannot be reached; without it, the user is told.
    `only_look`: nothing will be changed."""
    name, namespace = name_of(cluster), str(cluster["metadata"]["namespace"])
    pods = api.list(
        path_of("Pod", namespace),
        labelSelector=f"{CLUSTER_LABEL}={name},{COMPONENT_LABEL}=broker",
    )
    complain = complain or _complain
    mode = _mode(cluster, pods, complain)
    addresses = bootstrap_addresses(name, namespace, pods, mode)
    if not addresses:
        raise UnreachableError(
            f"Cluster {full_name(cluster)} has no running broker; `kubectl penstock why {name} "
            f"-n {namespace}` says what it is waiting for"
        )
    login = login_to(api, cluster, only_look=only_look) if mode.has_tls else None
    forwarder = Forwarder(name, namespace, open_with(api, namespace), complain)
    return Reached(full_name(cluster), ",".join(addresses), forwarder, login)


@contextmanager
def open_admin(
    api: "Api",
    cluster: Json,
    complain: Callable[[str], None] | None = None,
    *,
    only_look: bool = False,
    timeout_ms: int | None = None,
) -> "Iterator[Admin]":
    """An admin client of a Cluster while the block runs; the rest is as in `reach_cluster`.

    `timeout_ms`: for connecting, and for each request; None: the client's own.
    """
    from penstock.client import Admin  # noqa: PLC0415 - grpc only when it is needed

    reached = reach_cluster(api, cluster, complain, only_look=only_look)
    timeouts = {} if timeout_ms is None else dict.fromkeys(_TIMEOUTS, timeout_ms)
    options = {"resolve_address": reached.forwarder.resolve, **reached.options, **timeouts}
    try:
        with Admin(reached.bootstrap, **cast("ClientOptions", options)) as admin:
            yield admin
    finally:
        reached.close()


def bootstrap_addresses(
    cluster: str, namespace: str, pods: list[Json], mode: SecurityMode
) -> list[str]:
    """Addresses of running pods, ready ones first."""
    running = [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running" and not is_leaving(pod)
    ]
    running.sort(key=lambda pod: (not is_pod_ready(pod), broker_id(pod) or 0))
    port = SECURE_PORT if mode is SecurityMode.MIGRATE else GRPC_PORT
    return [f"{name_of(pod)}.{cluster}-brokers.{namespace}.svc:{port}" for pod in running]


def _mode(cluster: Json, pods: list[Json], complain: Callable[[str], None]) -> SecurityMode:
    """The weakest one, by which all can be called: they change one by one. Raises MisuseError."""
    running = SecurityMode.weakest(map(SecurityMode.of_pod, pods))
    if running is not None:
        return running
    wanted = ((cluster.get("spec") or {}).get("security") or {}).get("mode", "Disabled")
    name = full_name(cluster)
    if wanted not in {one.value for one in SecurityMode}:
        raise MisuseError(
            f"Cluster {name} has spec.security.mode {wanted!r}, which this release of penstock "
            "does not know; use the release of its operator",
            ErrorCode.INVALID_CONFIG,
        )
    if pods:
        complain(
            f"no pod of Cluster {name} has a container `broker`, which would show how it was "
            f"started; it is called as its spec says: security.mode {wanted}"
        )
    return SecurityMode(wanted)


def _complain(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
