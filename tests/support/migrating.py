"""A cluster of processes whose members go from plaintext to TLS and back, one at a time.

    with Migrating(tmp_path) as cluster:
        cluster.start()                     everything in plaintext
        cluster.roll(Mode.MIGRATE)          the controller, then broker by broker
        Admin(cluster.secure_bootstrap, **cluster.user("root"))

`root` is an administrator wherever somebody is asked who they are.
"""

from enum import Enum
from pathlib import Path
from typing import Any, Final

import grpc
from support.channels import patient_channel
from support.cluster import PATIENT, Cluster
from support.processes import ReservedPort, ServerProcess
from support.secure import CLUSTER_ID, Certificates
from support.tokens import Issuer, write_issuers
from support.waiting import wait_until

from penstock.errors import PenstockError

ROOT: Final = "serviceaccount:etl/root"


class Mode(Enum):
    """As `spec.security.mode`."""

    DISABLED = "Disabled"
    MIGRATE = "Migrate"
    STRICT = "Strict"


class Migrating(Cluster):
    """Brokers 0 … n-1 and a controller; `modes` says how each broker runs."""

    def __init__(self, path: Path, *, brokers: int = 3, mode: Mode = Mode.DISABLED) -> None:
        super().__init__(path, brokers=brokers, start=False, controller_config=PATIENT)
        self.servers = Certificates(path / "certificates")
        self.issuer = Issuer()
        self._issuers = write_issuers(path / "issuers.json", self.issuer)
        self._reserved: list[ReservedPort] = []
        self.secure = {broker_id: self._port() for broker_id in self.brokers}
        """Where clients with TLS call."""
        self.internal = {broker_id: self._port() for broker_id in self.brokers}
        self.secure_controller = self._port()
        self.modes: dict[int, Mode] = {}
        self._plain: dict[str, list[str]] = {}
        for process in self.processes:
            process.health_address = self._port()
            words = [*process.arguments, "--health-listen", process.health_address]
            self._plain[process.name] = words
        self._plain[self.controller.name] += ["--cluster-id", CLUSTER_ID]
        self.change_controller(mode)
        for broker_id in self.brokers:
            self.change(broker_id, mode)

    def _port(self) -> str:
        self._reserved.append(ReservedPort())
        return self._reserved[-1].address

    @property
    def secure_bootstrap(self) -> str:
        """All brokers, for clients with TLS."""
        return ",".join(self.secure.values())

    def user(self, name: str, **claims: Any) -> dict[str, Any]:
        """What a client of serviceaccount:etl/`name` is started with."""
        token = self.path / f"{name}.token"
        token.write_text(self.issuer.token(f"etl/{name}", **claims))
        return {"ca_file": self.servers.stranger().files.ca, "token_file": token}

    # ------------------------------------------------------------ changes

    def change_controller(self, mode: Mode) -> None:
        """For its next start."""
        words = [*self.servers.controller().options, "--secure-listen", self.secure_controller]
        self._change(self.controller, mode, words)

    def change(self, broker_id: int, mode: Mode) -> None:
        """The same of a broker."""
        words = [
            *self.servers.broker(broker_id).options,
            "--secure-listen",
            self.secure[broker_id],
            "--internal-listen",
            self.internal[broker_id],
            "--controllers",
            self.secure_controller,
            "--token-issuers",
            str(self._issuers),
        ]
        self._change(self.brokers[broker_id], mode, words)
        self.modes[broker_id] = mode

    def _change(self, process: ServerProcess, mode: Mode, words: list[str]) -> None:
        process.arguments = list(self._plain[process.name])
        if mode is not Mode.DISABLED:
            process.arguments += [*words, "--admin", ROOT]
        if mode is Mode.MIGRATE:
            process.arguments.append("--migrate")

    def roll(self, mode: Mode, *topics: str) -> None:
        """Everything to this mode, brokers one by one as the operator does, with these topics in
        sync before the next one stops.

        A controller has TLS before a broker does, and until no broker does.
        """
        if mode is not Mode.DISABLED:
            self._roll_controller(mode)
        for broker_id in self.brokers:
            self.roll_one(broker_id, mode, *topics)
        if mode is Mode.DISABLED:
            self._roll_controller(mode)

    def _roll_controller(self, mode: Mode) -> None:
        assert self.controller.stop() == 0
        self.change_controller(mode)
        self.controller.start()
        self.wait_controller()

    def roll_one(self, broker_id: int, mode: Mode, *topics: str) -> None:
        """One broker."""
        assert self.brokers[broker_id].stop() == 0
        self.change(broker_id, mode)
        self.brokers[broker_id].start()
        self.wait_alive(set(self.brokers))
        for topic in topics:
            self.wait_in_sync(topic)

    def wait_told(self, admin: Any, addresses: set[str]) -> None:
        """Until a client is told exactly these."""

        def told() -> bool:
            try:
                known = admin.describe_cluster().brokers
            except PenstockError:
                return False
            return {f"{one.host}:{one.port}" for one in known} == addresses

        wait_until(told, what=f"clients are told {sorted(addresses)}")

    # ------------------------------------------------------------ as a Cluster

    def channel(self, at: int | None = None) -> grpc.Channel:
        """See `Cluster`: at a plaintext port if there is one, else as broker 0."""
        if at is None:
            at = next(number for number, one in self.brokers.items() if one.is_running)
        if self.modes[at] is Mode.STRICT:
            return self.servers.broker(0).channel(self.internal[at])
        return patient_channel(self.brokers[at].address)

    def close(self) -> None:
        """See `Cluster`."""
        super().close()
        for port in self._reserved:
            port.close()
