"""Controller processes on a real API server, each behind a proxy of its own that can be cut."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.api_proxy import ApiProxy
from support.apiserver import ApiServer
from support.channels import patient_aio_channel, patient_channel
from support.processes import ReservedPort, ServerProcess
from support.sessions import Broker
from support.waiting import wait_until_async

from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub

LIVENESS = "penstock.liveness"
ACTIVE = "penstock.proto.v1.ControllerService"
SESSION = "--config=broker.session.timeout.ms=60000"
"""Brokers of tests are tasks of the test's process: if it stands still for seconds, they are not
considered dead."""


class Pod:
    """A controller process behind a proxy of its own."""

    def __init__(self, server: ApiServer, namespace: str, path: Path, name: str) -> None:
        self.namespace = namespace
        self.proxy = ApiProxy(server)
        port, metrics = ReservedPort(), ReservedPort()
        self.metrics_address = metrics.address
        arguments = [
            "controller", "--metadata=kubernetes", "--cluster=flights", f"--namespace={namespace}",
            f"--listen={port.address}", f"--metrics-listen={metrics.address}", SESSION,
        ]  # fmt: skip
        self.process = ServerProcess(name, arguments, path / f"{name}.log", port, metrics)
        self.kubeconfig = self.proxy.kubeconfig(path / f"{name}.kubeconfig")

    @property
    def address(self) -> str:
        return self.process.address

    def says(self, service: str) -> bool:
        """Whether health says SERVING for the service."""
        with patient_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20.0)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        self.process.close()
        self.proxy.close()


Make = Callable[[str], Pod]


async def all_serve(brokers: list[Broker], epoch: int) -> float:
    """Waits until all have a session with a controller of this epoch or a later one; how long that
    took (s). A machine that stands still for longer than the lease makes for one more."""
    began = time.monotonic()
    await wait_until_async(
        lambda: all(
            broker.session.connected and broker.controller_epoch >= epoch for broker in brokers
        ),
        what=f"all brokers have sessions of epoch {epoch}",
        timeout_s=60.0,
    )
    return time.monotonic() - began


async def create(pod: Pod, topic: str, **fields: Any) -> None:
    async with patient_aio_channel(pod.address) as channel:
        request = admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(topic=topic, **fields)])
        answer = await AdminServiceStub(channel).CreateTopics(request, timeout=120)
    assert not answer.results[0].HasField("error"), answer
