"""A Cluster whose brokers the command line reaches through an API server's port-forward."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import command_line
from support.apiserver import ApiServer
from support.cluster import PATIENT, Cluster
from support.kube_scene import Scene
from support.kubelet import Kubelet

_FINDING = """
import runpy, socket
known = socket.getaddrinfo

def found(host, *more, **named):
    return known("127.0.0.1" if str(host).endswith(".svc") else host, *more, **named)

socket.getaddrinfo = found
runpy.run_module("penstock_broker.local.child", run_name="__main__")
"""
"""Brokers that find each other by the names of a Kubernetes that is not there."""


@dataclass
class Reachable:
    """A Cluster resource, its brokers' pods, and the processes a kubelet leads to."""

    scene: Scene
    cluster: Cluster
    kubelet: Kubelet

    @property
    def name(self) -> str:
        return f"{self.scene.namespace}/flights"

    @property
    def environment(self) -> dict[str, str]:
        """Of commands that talk to its Kubernetes."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK")}
        return {
            **clean,
            "KUBECONFIG": str(self.scene.kubeconfig),
            "XDG_STATE_HOME": str(self.cluster.path),
        }

    def _which(self, cluster: bool) -> list[str]:
        return ["--cluster", self.name] if cluster else ["-n", self.scene.namespace]

    def start(self, *words: object, cluster: bool = True) -> "subprocess.Popen[bytes]":
        return command_line.start(
            *self._which(cluster),
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def ok(self, *words: object, stdin: str = "", cluster: bool = True) -> str:
        done = command_line.run(*self._which(cluster), *words, env=self.environment, stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert "penstock:" not in done.stderr, done.stderr  # progress is allowed, complaints not
        return done.stdout


@contextmanager
def reached(
    api_server: ApiServer, files: Path, brokers: int, *, replicate: bool = False
) -> Iterator[Reachable]:
    """Brokers that advertise names nobody here can resolve, not even they themselves, unless they
    `replicate`: others leave the ISR of their leader after ten seconds."""
    scene = Scene(api_server)
    scene.cluster(brokers=brokers)
    launcher = ["-c", _FINDING] if replicate else None
    cluster = Cluster(
        files, brokers=brokers, start=False, launcher=launcher, controller_config=PATIENT
    )
    files = api_server.directory
    with Kubelet(files / "server.crt", files / "server.key") as kubelet:
        for index, broker in cluster.brokers.items():
            node = node_of(scene, index)
            _make_node(api_server, node, kubelet.port)
            pod = f"flights-broker-{index}"
            advertised = f"{pod}.flights-brokers.{scene.namespace}.svc:9092"
            broker.arguments[broker.arguments.index("--advertise") + 1] = advertised
            kubelet.targets[pod] = broker.port
            scene.pod(pod, "broker", node=node)
        try:
            cluster.start()
            yield Reachable(scene, cluster, kubelet)
        finally:
            cluster.close()


def node_of(scene: Scene, broker: int) -> str:
    """Each broker's pod runs on a node of its own."""
    return f"node-{scene.namespace}-{broker}"


def _make_node(api_server: ApiServer, name: str, kubelet_port: int) -> None:
    api_server.request(
        "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    )
    api_server.request(
        "PATCH",
        f"/api/v1/nodes/{name}/status",
        {
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            }
        },
        Content_Type="application/merge-patch+json",
    )
