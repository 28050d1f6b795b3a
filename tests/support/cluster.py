"""A cluster of real processes for tests: one controller and some brokers on ports of their own.

    with Cluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.brokers[cluster.leader("t", 0)].kill()

Timeouts of the controller are shortened, so that fail-over takes parts of a second. Logs are
shown when a test fails (`tests/conftest.py`). A process that ends by itself fails every wait.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import grpc
from support.channels import patient_channel
from support.processes import ReservedPort, ServerProcess
from support.secure import CLUSTER_ID, Certificates
from support.waiting import wait_until

from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2, broker_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.errors import error_from_rpc, error_from_wire

CONTROLLER_CONFIG = {
    "broker.heartbeat.interval.ms": "150",
    "broker.session.timeout.ms": "4000",
    "broker.session.grace.ms": "150",
    "leader.imbalance.check.interval.ms": "3600000",
}
"""For tests: quick fail-over when a process is killed, and leaders that stay where a test finds
them. Silence is no death before four seconds: another worker's Java may take every core for two."""
PATIENT = {"broker.session.timeout.ms": "60000"}
"""Of the controller, for tests in which nobody is frozen: who is killed is noticed by the closed
sockets, and a process that stands still for seconds is not considered dead."""
BROKER_CONFIG = {"log.retention.check.interval.ms": "3600000"}
"""For tests: nothing is removed unless a test asks for it. Records whose times a test has chosen
are older than any topic keeps, and would go in the first round, 30 seconds after the start."""

_A = TypeVar("_A")


class Cluster:
    """One controller and brokers 0 … n-1 below a directory."""

    def __init__(
        self,
        path: Path,
        *,
        brokers: int = 1,
        controller_config: dict[str, str] | None = None,
        broker_config: dict[str, str] | None = None,
        racks: list[str] | None = None,
        launcher: list[str] | None = None,
        start: bool = True,
        secure: bool = False,
        broker_options: list[str] | None = None,
        controller_options: list[str] | None = None,
        forked: bool = True,
    ) -> None:
        """`launcher`: of the brokers, other than `local.child`: words after `python`. `secure`:
        all have TLS; this object calls brokers as broker 0 does, at their internal ports.
        `…_options`: more command line. `forked`: see `ServerProcess`."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.certificates = Certificates(path / "certificates") if secure else None
        self.internal: dict[int, str] = {}
        """Addresses of the ports between servers; empty without TLS."""
        self._broker_options = broker_options or []
        self._made: list[ServerProcess] = []
        factor = {"default.replication.factor": str(min(brokers, 3) or 1)}
        config = {**CONTROLLER_CONFIG, **factor, **(controller_config or {})}
        port, metrics = ReservedPort(), ReservedPort()
        secured, health = self._secured_controller()
        self.controller = ServerProcess(
            "controller",
            [
                "controller",
                *secured,
                *(controller_options or []),
                "--metadata-dir",
                str(path / "metadata"),
                "--listen",
                port.address,
                "--metrics-listen",
                metrics.address,
                *_flags(config),
            ],
            path / "controller.log",
            port,
            metrics,
            *health,
        )
        self.controller.health_address = (health or [port])[0].address
        self._made.append(self.controller)
        self.controller_metrics_port = metrics.port
        self.metrics_ports: dict[int, int] = {}
        self._broker_config = {**BROKER_CONFIG, **(broker_config or {})}
        self._racks = racks or []
        self._launcher = launcher
        self._forked = forked
        self.controller.forked = forked
        self.brokers: dict[int, ServerProcess] = {}
        for broker_id in range(brokers):
            self.brokers[broker_id] = self.new_broker(broker_id)
        if start:
            self.start()

    def new_broker(self, broker_id: int, *, data: Path | None = None) -> ServerProcess:
        """A broker process, not started; `data`: another data directory than its own."""
        port, metrics = ReservedPort(), ReservedPort()
        self.metrics_ports[broker_id] = metrics.port
        rack = self._racks[broker_id] if broker_id < len(self._racks) else ""
        secured, more = self._secured_broker(broker_id)
        made = ServerProcess(
            f"broker {broker_id}",
            [
                "broker",
                "--broker-id",
                str(broker_id),
                "--data-dir",
                str(data or self.data_dir(broker_id)),
                "--listen",
                port.address,
                "--advertise",
                port.address,
                "--replication-listen",
                "127.0.0.1:0",
                "--stream-listen",
                "127.0.0.1:0",
                "--controllers",
                self.controller.address,
                "--metrics-listen",
                metrics.address,
                "--rack",
                rack,
                *secured,
                *self._broker_options,
                *_flags(self._broker_config),
            ],
            self.path / f"broker-{broker_id}.log",
            port,
            metrics,
            *more,
        )
        made.health_address = (more or [port])[0].address
        made.launcher = self._launcher or made.launcher
        made.forked = self._forked
        self._made.append(made)
        return made

    def _secured_controller(self) -> tuple[list[str], list[ReservedPort]]:
        """Words and ports that TLS adds, the port for health first."""
        if self.certificates is None:
            return [], []
        health = ReservedPort()
        words = [*self.certificates.controller().options, "--health-listen", health.address]
        return [*words, "--cluster-id", CLUSTER_ID], [health]

    def _secured_broker(self, broker_id: int) -> tuple[list[str], list[ReservedPort]]:
        """As above."""
        if self.certificates is None:
            return [], []
        health, internal = ReservedPort(), ReservedPort()
        self.internal[broker_id] = internal.address
        words = [*self.certificates.broker(broker_id).options, "--health-listen", health.address]
        return [*words, "--internal-listen", internal.address], [health, internal]

    def data_dir(self, broker_id: int) -> Path:
        return self.path / f"data-{broker_id}"

    @property
    def processes(self) -> list[ServerProcess]:
        return [self.controller, *self.brokers.values()]

    @property
    def bootstrap(self) -> str:
        """All brokers, as clients take it."""
        return ",".join(broker.address for broker in self.brokers.values())

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Starts everything, and waits until all brokers serve and know each other."""
        try:
            self.controller.start(wait=False)
            for broker in self.brokers.values():
                broker.start(wait=False)
            for broker in self.brokers.values():
                broker.wait_serving()
            self.wait_alive(set(self.brokers))
        except BaseException:
            self.close()
            raise

    def wait_alive(self, broker_ids: set[int]) -> None:
        """Until every running broker sees exactly these alive."""

        def all_see() -> bool:
            return all(
                {info.broker_id for info in self.metadata(at).brokers if info.alive} == broker_ids
                for at, broker in self.brokers.items()
                if broker.is_running
            )

        wait_until(_forgiving(all_see), what=f"brokers {sorted(broker_ids)} are alive")

    def wait_controller(self, *, reachable: bool = True) -> None:
        """Until every running broker says that it has a session, or none, with the controller."""

        def all_say() -> bool:
            return all(
                self.describe(at).controller_reachable == reachable
                for at, broker in self.brokers.items()
                if broker.is_running
            )

        there = "there" if reachable else "away"
        wait_until(_forgiving(all_say), what=f"all brokers say that the controller is {there}")

    def close(self) -> None:
        """Ends every process it made, also those that a test exchanged for others."""
        for process in self._made:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------ the cluster's API, blocking

    def metadata(self, at: int | None = None) -> broker_pb2.MetadataResponse:
        """What a broker (None: the first running one) knows; raises PenstockError."""
        with self.channel(at) as channel:
            try:
                return BrokerServiceStub(channel).Metadata(
                    broker_pb2.MetadataRequest(), timeout=20.0
                )
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error

    def describe(self, at: int | None = None) -> admin_pb2.DescribeClusterResponse:
        """Counts; raises PenstockError."""
        with self.channel(at) as channel:
            try:
                return AdminServiceStub(channel).DescribeCluster(
                    admin_pb2.DescribeClusterRequest(), timeout=20.0
                )
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error

    def channel(self, at: int | None = None) -> grpc.Channel:
        """To a broker (None: the first running one), which lets it do everything."""
        if at is None:
            running = [number for number, broker in self.brokers.items() if broker.is_running]
            assert running, f"no broker of {sorted(self.brokers)} runs"
            at = running[0]
        if self.certificates is not None:
            return self.certificates.broker(0).channel(self.internal[at])
        return patient_channel(self.brokers[at].address)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        configs: dict[str, str] | None = None,
        assignment: list[list[int]] | None = None,
    ) -> str:
        """Creates a topic and waits until all brokers know it with all leaders; its topic id.

        `replication_factor` 0: as many as there are brokers, at most 3. `assignment`: broker ids
        per partition, the first leads.
        """
        new = admin_pb2.NewTopic(topic=topic, configs=configs or {})
        if assignment is not None:
            new.assignment.extend(admin_pb2.ReplicaList(broker_ids=ids) for ids in assignment)
        else:
            new.partitions = partitions
            new.replication_factor = replication_factor or min(len(self.brokers), 3)
        request = admin_pb2.CreateTopicsRequest(topics=[new])
        asked = 0

        def made() -> tuple[str] | None:
            nonlocal asked
            asked += 1
            try:
                return (self._create(request, is_first=asked == 1),)
            except PenstockError as error:
                # A session with the controller that broke is renewed; only it can make topics.
                if error.code is not ErrorCode.CONTROLLER_UNAVAILABLE:
                    raise
                return None

        (topic_id,) = wait_until(made, what=f"the controller makes {topic}")
        self.wait_leaders(topic, topic_id)
        return topic_id or self.known(topic).topic_id

    def _create(self, request: admin_pb2.CreateTopicsRequest, *, is_first: bool) -> str:
        """The topic's id; "" if it was there already, made by a call that was not answered."""
        with self.channel() as channel:
            try:
                answer = AdminServiceStub(channel).CreateTopics(request, timeout=120.0)
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error
        (result,) = answer.results
        if not result.HasField("error"):
            return result.topic_id
        refused = error_from_wire(result.error)
        if refused.code is ErrorCode.TOPIC_ALREADY_EXISTS and not is_first:
            return ""
        raise refused

    def topic(self, topic: str, at: int | None = None) -> broker_pb2.TopicInfo | None:
        """One topic as a broker knows it."""
        found = [info for info in self.metadata(at).topics if info.topic == topic]
        return found[0] if found else None

    def known(self, topic: str, at: int | None = None) -> broker_pb2.TopicInfo:
        """One topic, which a broker knows."""
        info = self.topic(topic, at)
        assert info is not None, f"no topic {topic}"
        return info

    def partition(
        self, topic: str, partition: int, at: int | None = None
    ) -> broker_pb2.PartitionInfo:
        """One partition as a broker knows it."""
        info = self.known(topic, at)
        return next(part for part in info.partitions if part.partition == partition)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads; -1: nobody."""
        return self.partition(topic, partition).leader

    def wait_leaders(self, topic: str, topic_id: str = "") -> None:
        """Until every running broker knows a leader for every partition.

        `topic_id`: of this topic, not of one of the same name that was deleted a moment ago.
        """

        def all_know() -> bool:
            for at, broker in self.brokers.items():
                if not broker.is_running:
                    continue
                info = self.topic(topic, at)
                if info is None or any(part.leader < 0 for part in info.partitions):
                    return False
                if topic_id not in ("", info.topic_id):
                    return False
            return True

        wait_until(_forgiving(all_know), what=f"all brokers know the leaders of {topic}")

    def wait_leader_is_not(self, topic: str, partition: int, former: int) -> int:
        """Until another broker leads; which."""

        def found() -> int | None:
            leader = self.leader(topic, partition)
            return leader + 1 if leader not in {former, -1} else None

        return wait_until(_forgiving(found), what=f"{former} leads {topic}/{partition} no more") - 1

    def wait_leader(self, topic: str, partition: int, leader: int) -> None:
        """Until this broker leads."""

        def leads() -> bool:
            return self.leader(topic, partition) == leader

        wait_until(_forgiving(leads), what=f"{leader} leads {topic}/{partition}", timeout_s=60)

    def wait_in_sync(self, topic: str) -> None:
        """Until every partition's ISR is its replica list."""

        def in_sync() -> bool:
            info = self.topic(topic)
            return info is not None and all(
                part.leader >= 0 and set(part.isr) == set(part.replicas) for part in info.partitions
            )

        wait_until(_forgiving(in_sync), what=f"all replicas of {topic} are in sync", timeout_s=30)


def _forgiving(condition: Callable[[], _A]) -> Callable[[], _A | None]:
    """A broker that is down or behind is "not yet", not a failure."""

    def ask() -> _A | None:
        try:
            return condition()
        except PenstockError:
            return None

    return ask


def _flags(config: dict[str, str]) -> list[str]:
    return [part for key, value in config.items() for part in ("--config", f"{key}={value}")]
