"""What the parts of `attacks.py` share: a secure cluster, its users, and who asks meanwhile."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.common import local_cluster, progress
from benchmarks.latency_figures import Run
from benchmarks.latency_job import PARTITIONS, Job
from benchmarks.latency_stage import Side, take_turn
from benchmarks.load import Writing
from benchmarks.transaction_stage import await_whole
from penstock.client import Admin
from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.local.security import token_of

BROKERS: Final = 3
ADA, MALLORY = "ada", "mallory"
"""An honest user, and the one who attacks."""
PROBE_S: Final = 5.0
"""How long the kubelet waits for a probe."""
LIVENESS: Final = "penstock.liveness"
TOKEN_S: Final = 3_600.0


class Stage:
    """The cluster and its users. `quick`: shows only that it works."""

    def __init__(self, running: ExitStack, *, quick: bool) -> None:
        self.rounds = 1 if quick else 4
        self.seconds = 0.4 if quick else 4.0
        self.tries = 2 if quick else 12
        self.held = 300 if quick else 20_000
        progress("starting a secure cluster")
        self.cluster = running.enter_context(local_cluster(BROKERS, secure=True))
        self.settings: dict[str, Any] = dict(self.cluster.directory.client_files)
        self.admin = running.enter_context(Admin(self.cluster.bootstrap, **self.settings))

    def user(self, name: str) -> dict[str, str]:
        """The settings of a user's clients."""
        root = self.cluster.directory.root
        file = root / f"{name}.token"
        file.write_text(token_of(root, name, TOKEN_S))
        return {"ca_file": str(self.settings["ca_file"]), "token_file": str(file)}

    def topic(self, of: str, *writers: str, configs: Mapping[str, str] | None = None) -> str:
        """A new topic whose replicas all follow, and which these users may write."""
        topic = f"{of}-{time.monotonic_ns()}"
        self.admin.create_topic(topic, PARTITIONS, BROKERS, configs)
        await_whole(self.admin, topic)
        if writers:
            rule = Rule(principals=tuple(map(principal, writers)), operations=(Operation.WRITE,))
            self.admin.alter_access(Resource(Kind.TOPIC, topic), [rule])
        return topic

    def append(self, topic: str, clients: int) -> Run:
        """Ada's clients, in a process of their own, which each wait for the acknowledgement of one
        record of 100 B after the other."""
        side = Side("ours", "", self.cluster.bootstrap, list, 0.0, _nothing, _nothing)
        job = Job(
            side="ours",
            role="append",
            bootstrap=self.cluster.bootstrap,
            topic=topic,
            clients=tuple(range(clients)),
            seconds=self.seconds,
            settle_s=self.seconds / 4,
            settings=self.user(ADA),
        )
        return take_turn(side, [job])


def principal(user: str) -> str:
    return f"serviceaccount:local/{user}"


class Asking(Writing):
    """Asks an address again and again, from when it is made until `took_ms`."""

    def __init__(self, address: str, ask: Callable[[], object], every_s: float) -> None:
        self._ask, self._every_s = ask, every_s
        self._took_ms: list[float] = []
        super().__init__(address)

    def took_ms(self) -> list[float]:
        """Stops it; how long each answer took."""
        self.stop()
        return self._took_ms

    def _run(self) -> None:
        while True:
            began = time.perf_counter()
            self._ask()
            took_s = time.perf_counter() - began
            self._took_ms.append(1e3 * took_s)
            if self._stop.wait(max(0.0, self._every_s - took_s)):
                return


@contextmanager
def metadata_of(address: str, settings: Mapping[str, str]) -> Iterator[Callable[[], object]]:
    """What asks a broker for its metadata, over one connection, as a user."""
    shown = (("authorization", f"Bearer {Path(settings['token_file']).read_text()}"),)
    with open_channel(address, Tls(TlsFiles(Path(settings["ca_file"])))) as channel:
        ask: Any = BrokerServiceStub(channel).Metadata

        def metadata() -> object:
            return ask(pb.MetadataRequest(), metadata=shown, timeout=60)

        metadata()
        yield metadata


def probe(address: str) -> None:
    """As the kubelet, over a connection of its own. Returns after `PROBE_S` if it fails."""
    began = time.perf_counter()
    with open_channel(address) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest(service=LIVENESS)
        try:
            check(request, timeout=PROBE_S)
        except grpc.RpcError:
            time.sleep(max(0.0, PROBE_S - (time.perf_counter() - began)))


def _nothing(*_: object) -> None:
    return None
