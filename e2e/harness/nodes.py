"""The machines of the cluster, which are containers here, and what can happen to them.

    freeze / thaw       docker pause: the node is silent, its connections stay open
    kill / start        docker kill: power loss, though the page cache survives; volumes stay
    lose                as kill, and the Node is deleted, as a cloud does
    drain / uncordon    what an administrator does before maintenance
    cordoned            pods that are there stay, and none comes
    kill_process        kill -9 of a process in a pod, from the node
    cut                 two pods of different nodes cannot reach each other, all others can

Every fault is remembered: `heal` takes back those that are still there, in the right order, so
that a scenario that fails leaves a whole cluster to the next one.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.process import CLUSTER_NAME, ROOT, run, wait_until

CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
_PLACED_S = 20.0


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a container of a pod runs: the node's name, and the container's id on it."""

    node: str
    container_id: str


class Nodes:
    """All nodes of the cluster. A node's name is also its container's."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._frozen: list[str] = []
        self._dead: list[str] = []
        self._ranges: dict[str, str] = {}
        self._cordoned: list[str] = []
        self._cuts: list[tuple[str, str]] = []

    def names(self) -> list[str]:
        """Of all nodes, control plane first."""
        ours = f"label=io.x-k8s.kind.cluster={CLUSTER_NAME}"
        listed = run("docker", "ps", "-a", "--filter", ours, "--format", "{{.Names}}")
        return sorted(listed.split(), key=lambda name: ("worker" in name, name))

    def workers(self) -> list[str]:
        return [name for name in self.names() if "worker" in name]

    def last_to_return(self) -> list[str]:
        """The workers, in the reverse of the order in which several may be started.

        A node that starts gets the lowest free address, and its kubelet knows only the one that it
        had.
        """
        found = {name: self._kubectl.get("node", name) for name in self.workers()}
        return sorted(found, key=lambda name: _address(found[name]), reverse=True)

    def control_plane(self) -> str:
        return f"{CLUSTER_NAME}-control-plane"

    def shell(self, node: str, script: str, timeout_s: float = 30.0) -> str:
        """Runs a shell script on a node, as root."""
        return run("docker", "exec", node, "sh", "-c", script, timeout_s=timeout_s)

    # ------------------------------------------------------------------ faults

    def freeze(self, node: str) -> None:
        """Stops every process of the node where it is, pods included."""
        self._frozen.append(node)
        run("docker", "pause", node)

    def thaw(self, node: str) -> None:
        run("docker", "unpause", node)
        self._frozen.remove(node)

    @contextmanager
    def frozen(self, node: str) -> Iterator[None]:
        """`freeze` and, however the block ends, `thaw`."""
        self.freeze(node)
        try:
            yield
        finally:
            self.thaw(node)

    def kill(self, node: str) -> None:
        """The node and all its processes are gone at once; its disk stays."""
        self._dead.append(node)
        run("docker", "kill", "--signal=KILL", node)

    def lose(self, node: str) -> None:
        """As `kill`, and Kubernetes forgets it."""
        self._ranges[node] = self._kubectl.get("node", node)["spec"]["podCIDR"]
        self.kill(node)
        self._kubectl.delete("node", node)

    def start(self, node: str, ready_s: float = 120.0) -> None:
        """Starts a killed node, repairs the pod network and waits until the node is Ready."""
        pods = self._ranges.pop(node, None)
        if pods is not None:
            # Kubernetes would give it any range, and it starts pods with the one that it knows.
            metadata, spec = {"name": node}, {"podCIDR": pods, "podCIDRs": [pods]}
            kind = {"apiVersion": "v1", "kind": "Node"}
            self._kubectl.apply({**kind, "metadata": metadata, "spec": spec})
        run("docker", "start", node)
        if node in self._dead:
            self._dead.remove(node)
        wait_until(
            f"systemd on {node} up",
            lambda: self.shell(node, "systemctl is-active containerd").strip() == "active",
            ready_s,
        )
        self.repair_network(ready_s)
        self.wait_ready(node, ready_s)

    def repair_network(self, deadline_s: float = 60.0) -> None:
        """Routes of all nodes again: an address may have changed with the restart."""

        def repaired() -> bool:
            run(str(ROOT / "e2e/cluster/network"), timeout_s=90.0)
            return True

        wait_until("pod network repaired", repaired, deadline_s)

    def wait_ready(self, node: str, deadline_s: float = 120.0) -> None:
        self._kubectl.wait("node", node, is_ready, deadline_s)

    def drain(self, node: str, deadline_s: float = 180.0, *, force: bool = False) -> None:
        """Evicts every pod, as disruption budgets allow. Raises CommandError if they do not."""
        self._cordoned.append(node)
        self._kubectl.call(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data",
            f"--timeout={deadline_s:.0f}s", *(["--force"] if force else []),
            timeout_s=deadline_s + 10,
        )  # fmt: skip

    def uncordon(self, node: str) -> None:
        self._kubectl.call("uncordon", node)
        if node in self._cordoned:
            self._cordoned.remove(node)

    @contextmanager
    def cordoned(self, *nodes: str) -> Iterator[None]:
        """No pod is put onto these while the block runs; those that are there stay."""
        self._cordoned += nodes
        self._kubectl.call("cordon", *nodes)
        try:
            yield
        finally:
            for node in nodes:
                self.uncordon(node)

    @contextmanager
    def cut(self, one: Manifest, other: Manifest) -> Iterator[None]:
        """Drops what two pods, on different nodes, send each other while the block runs."""
        node = one["spec"]["nodeName"]
        assert node != other["spec"]["nodeName"], "pods of one node meet on its bridge"
        here, there = one["status"]["podIP"], other["status"]["podIP"]
        rules = [f"FORWARD -s {a} -d {b} -j DROP" for a, b in ((here, there), (there, here))]
        for rule in rules:
            self._cuts.append((node, rule))
            self.shell(node, f"iptables -I {rule}")
        try:
            yield
        finally:
            self._mend()

    def _mend(self) -> None:
        for node, rule in self._cuts[:]:
            # A node that was started again meanwhile has forgotten the rule.
            self.shell(node, f"iptables -D {rule} || ! iptables -C {rule}")
            self._cuts.remove((node, rule))

    def heal(self) -> None:
        """Takes back every fault that is still there and waits until all nodes are Ready."""
        for node in self._frozen[:]:
            self.thaw(node)
        returning = [*reversed(self._dead)]  # see `last_to_return`
        for node in returning:
            run("docker", "start", node)  # the network is repaired on all of them, or fails
        for node in returning:
            self.start(node)
        self._mend()
        for node in self._cordoned[:]:
            self.uncordon(node)
        for node in self.names():
            self.wait_ready(node)

    # ------------------------------------------------------------------ pods and processes

    def of_pod(self, pod: str, kubectl: Kubectl) -> str:
        """The node that a pod runs on."""
        return str(kubectl.get("pod", pod)["spec"]["nodeName"])

    def place(self, pod: str, kubectl: Kubectl, container: str = "") -> PodPlace:
        """Node and container id of a pod's first container, or of the one that is named. What runs
        in it may have said so before the kubelet does."""

        def placed() -> PodPlace | None:
            found = kubectl.get("pod", pod)
            for status in found.get("status", {}).get("containerStatuses", []):
                if "containerID" in status and container in {"", status["name"]}:
                    id_ = status["containerID"].split("//")[-1]
                    return PodPlace(found["spec"]["nodeName"], id_)
            return None

        place = wait_until(f"pod {pod} runs {container or 'a container'}", placed, _PLACED_S)
        assert place is not None
        return place

    def processes(self, place: PodPlace) -> list[int]:
        """Process ids of a container as the node sees them, the first process first."""
        listed = self.shell(
            place.node, f"ctr -n k8s.io task ps {shlex.quote(place.container_id)}"
        ).splitlines()[1:]
        return sorted(int(line.split()[0]) for line in listed if line.strip())

    def kill_process(
        self, pod: str, kubectl: Kubectl, *, signal: str = "KILL", container: str = ""
    ) -> None:
        """Signals every process of a pod's container at once; KILL: no goodbye is said.

        Those that have ended since they were listed are no failure, except the container's first.
        """
        place = self.place(pod, kubectl, container)
        first, *others = self.processes(place)
        rest = " ".join(map(str, others)) or first
        self.shell(place.node, f"kill -{signal} {first} && {{ kill -{signal} {rest} || true; }}")


def is_ready(node: Manifest) -> bool:
    """Does the node's kubelet report Ready?"""
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _address(node: Manifest) -> IPv4Address:
    given = {one["type"]: one["address"] for one in node["status"]["addresses"]}
    return IPv4Address(given["InternalIP"])
