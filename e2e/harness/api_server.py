"""Outages of the Kubernetes API.

An outage has two faces, and programs meet both: `refuse`, where connections are refused at once
(the process is gone, the machine is up), and `hang`, where they are accepted by the kernel and
nothing ever answers (an overloaded or frozen server, a network that drops). Both first stop the
control plane's kubelet, which would otherwise bring the server back; pods go on running. The
truer one for a lost control plane is `hang`; `refuse` is what a rolling upgrade shows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

from e2e.harness.kubectl import Kubectl
from e2e.harness.nodes import Nodes
from e2e.harness.process import CommandError, wait_until

WRITING: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
REQUESTS: Final = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

Outage = Literal["refuse", "hang"]


class Write(NamedTuple):
    """What requests have in common. `group` "": the core's; `subresource` "": the object itself."""

    verb: str
    group: str
    resource: str
    subresource: str

    def __str__(self) -> str:
        place = "/".join(filter(None, (self.group, self.resource, self.subresource)))
        return f"{self.verb} {place}"


class ApiServer:
    """The one API server of the cluster: its outages, and what it was asked to write."""

    def __init__(self, kubectl: Kubectl, nodes: Nodes) -> None:
        self._kubectl = kubectl
        self._nodes = nodes
        self._outage: Outage | None = None

    def stop(self, outage: Outage) -> None:
        """From now on no request is answered, until `start`."""
        self._outage = outage
        signal = {"refuse": "KILL", "hang": "STOP"}[outage]
        self._on_node(f"systemctl stop kubelet && kill -{signal} $(pidof kube-apiserver)")
        wait_until("API server away", lambda: not self.answers(), 30.0)

    def start(self, ready_s: float = 120.0) -> None:
        """Ends the outage and waits until requests are answered again."""
        self._on_node("pids=$(pidof kube-apiserver) && kill -CONT $pids; systemctl start kubelet")
        self._outage = None
        wait_until("API server back", self.answers, ready_s)

    @contextmanager
    def away(self, outage: Outage) -> Iterator[None]:
        """`stop` and, however the block ends, `start`."""
        self.stop(outage)
        try:
            yield
        finally:
            self.start()

    def heal(self) -> None:
        """Ends an outage that is still there."""
        if self._outage is not None:
            self.start()

    def answers(self) -> bool:
        """Does the server say that it is ready, within two seconds?"""
        try:
            self._kubectl.call("get", "--raw=/readyz", "--request-timeout=2s", timeout_s=5.0)
        except CommandError:
            return False
        return True

    def writes(self) -> Counter[Write]:
        """Requests to change something that it has answered since it started, whoever sent them;
        refused ones too."""
        return count_writes(self._kubectl.call("get", "--raw=/metrics").decode())

    def _on_node(self, script: str) -> None:
        shell: Callable[[str, str], str] = self._nodes.shell
        shell(self._nodes.control_plane(), script)


def count_writes(metrics: str) -> Counter[Write]:
    """As the server's metrics tell, which are in Prometheus' text format."""
    found: Counter[Write] = Counter()
    for labels, value in REQUESTS.findall(metrics):
        named = dict(LABEL.findall(labels))
        if named["verb"] in WRITING:
            found[Write(*(named[name] for name in Write._fields))] += int(float(value))
    return found
