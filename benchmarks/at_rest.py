"""What a Cluster at rest asks of the Kubernetes API: nothing but Leases may be written.

    operator ──proxy──▶ API server ◀──proxy each── controllers (2)     brokers: three, as processes

Real processes and a real API server (it needs etcd and kube-apiserver, see
tests/support/apiserver.py). There are no kubelets: brokers are processes of this machine, and their
pods, which the operator sees, are written here. The Cluster has a Topic and a ConsumerGroup. All
that anybody asks is counted by the proxies, from when the operator finds everything Ready.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common import figure, progress
from penstock.client import Consumer
from penstock.kubernetes.names import API_VERSION
from penstock_operator.names import Names

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.api_proxy import ApiProxy
from support.apiserver import ApiServer, missing
from support.cluster import Cluster
from support.controller_pods import ACTIVE, Pod
from support.kubernetes_faults import BROKERS, Operated
from support.operator_process import OURS, condition, get, install_crds
from support.reached_pods import tell_rolled_out
from support.waiting import wait_until

CLUSTER = "flights"
TOPIC = "orders"
RESOURCES: dict[str, dict[str, Any]] = {
    "topics": {"cluster": CLUSTER, "partitions": 12},
    "consumergroups": {"cluster": CLUSTER},
}
QUIET_S = 20.0
"""Nobody has written for so long: at rest. Twice what the slowest statuses wait."""
SETTLE_S = 300.0


class Stage(Operated):
    """As the scene of alerts, with controllers that have the API server for a store, and without a
    load."""

    def __init__(self, server: ApiServer, folder: Path, stack: ExitStack) -> None:
        install_crds(server)
        self.server, self.folder, self._stack = server, folder, stack
        self.names = Names(CLUSTER, server.namespace())
        self.pods = [self._controller(name) for name in ("one", "two")]
        self.servers = Cluster(folder / "brokers", brokers=BROKERS, start=False)
        stack.callback(self.servers.close)
        for broker in self.servers.brokers.values():
            controllers = ",".join(pod.address for pod in self.pods)
            broker.arguments[broker.arguments.index("--controllers") + 1] = controllers
            broker.start(wait=False)
        for broker in self.servers.brokers.values():
            broker.wait_serving()
        self.servers.wait_alive(set(self.servers.brokers))
        self.proxy = ApiProxy(server)
        stack.callback(self.proxy.close)
        self.kubeconfig = self.proxy.kubeconfig(folder / "operator.kubeconfig")
        self.operator = self._start()
        self._make("clusters", CLUSTER, {"brokers": BROKERS, "security": {"mode": "Disabled"}})
        self._make_pods()
        for plural, spec in RESOURCES.items():
            self._make(plural, TOPIC, spec)
        tell_rolled_out(server, self.names, len(self.pods))

    def _make(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        kind = {"clusters": "Cluster", "topics": "Topic", "consumergroups": "ConsumerGroup"}[plural]
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.server.request("POST", f"{self._folder}/{plural}", body)

    @property
    def _folder(self) -> str:
        return f"{OURS}/namespaces/{self.names.namespace}"

    def is_settled(self) -> bool:
        """The Cluster and what it has are Ready, and the operator has nothing left to do."""
        named = [("clusters", CLUSTER), *((plural, TOPIC) for plural in RESOURCES)]
        found = [get(self.server, f"{self._folder}/{plural}/{name}") for plural, name in named]
        ready = all(condition(each, "Ready").get("status") == "True" for each in found)
        return ready and condition(found[0], "Reconciling").get("status") == "False"

    def has_topic(self) -> bool:
        return self.servers.topic(TOPIC) is not None

    def writes(self) -> Counter[str]:
        """So far, Leases apart."""
        asked = sum((proxy.calls for proxy in self._proxies()), Counter[str]())
        return Counter({call: count for call, count in asked.items() if is_write(call)})

    def asked(self) -> int:
        """So far, reads and Leases among it."""
        return sum(proxy.calls.total() for proxy in self._proxies())

    def _proxies(self) -> list[ApiProxy]:
        return [self.proxy, *(pod.proxy for pod in self.pods)]

    def _controller(self, name: str) -> Pod:
        pod = Pod(self.server, self.names.namespace, self.folder, name)
        self._stack.callback(pod.close)
        kubeconfig = {"KUBECONFIG": str(pod.kubeconfig), "KUBERNETES_SERVICE_HOST": ""}
        pod.process.environment = kubeconfig
        pod.process.start(wait=False)
        state = ACTIVE if name == "one" else ""
        wait_until(partial(pod.says, state), what=f"controller {name} is ready", timeout_s=60.0)
        return pod


def is_write(call: str) -> bool:
    """`call`: as proxies count them, "PUT configmaps"."""
    method, _, resource = call.partition(" ")
    return method != "GET" and resource != "leases"


def settle(stage: Stage, quiet_s: float) -> None:
    """Until nobody has written for as long."""
    limit = time.monotonic() + SETTLE_S
    before, since = stage.writes(), time.monotonic()
    while time.monotonic() - since < quiet_s:
        if time.monotonic() > limit:
            raise SystemExit(f"never at rest: {stage.writes() - before} in the last moment")
        time.sleep(0.5)
        now = stage.writes()
        if now != before:
            before, since = now, time.monotonic()


def measure(stage: Stage, seconds: float, quiet_s: float) -> None:
    wait_until(stage.is_settled, what="everything is Ready", timeout_s=SETTLE_S)
    progress("everything is Ready")
    settle(stage, quiet_s)
    before, began = stage.writes(), time.monotonic()
    asked = stage.asked()
    time.sleep(seconds)
    minutes = (time.monotonic() - began) / 60
    written = stage.writes() - before
    for call, count in written.items():
        progress(f"{count} x {call}")
    all_asked = stage.asked() - asked
    if not stage.is_settled() or not before or all_asked == 0:
        raise SystemExit("not Ready any more, or the proxies do not see who asks")
    name = "writes to the Kubernetes API by a Cluster at rest, Leases apart"
    figure(name, written.total() / minutes, "per minute", goal="0")
    figure("… all that was asked, with Leases", all_asked / minutes, "per minute")


S = TypeVar("S", bound=Stage)


def staged(stack: ExitStack, make: Callable[[ApiServer, Path, ExitStack], S]) -> S:
    """With an API server of its own, and a member of the group. Raises SystemExit without one."""
    if reason := missing():
        raise SystemExit(reason)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
    (folder / "api").mkdir()
    server = ApiServer(folder / "api")
    stack.callback(server.stop)
    stage = make(server, folder, stack)
    member = stack.enter_context(Consumer(stage.servers.bootstrap, group_id=TOPIC))
    wait_until(stage.has_topic, what="the Topic's topic", timeout_s=SETTLE_S)
    member.subscribe([TOPIC])
    member.poll(1)
    return stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="only shows that it works")
    args = parser.parse_args()
    with ExitStack() as stack:
        stage = staged(stack, Stage)
        measure(stage, *((1, 1) if args.quick else (args.seconds, QUIET_S)))


if __name__ == "__main__":
    main()
