"""A controller that enrols brokers, and brokers that have no certificate yet: real processes.

What Kubernetes gives otherwise: the CA in files, tokens of pods signed by an issuer of the test,
and the issuer's keys in a file.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from support.processes import HOST, ReservedPort, ServerProcess
from support.tokens import Issuer, write_issuers

from penstock.kubernetes.names import ClusterNames
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import Authority

NAMES = ClusterNames("flights", "air")
CLUSTER_ID = "c-1"


def pod_token(issuer: Issuer, broker_id: int, **changes: Any) -> str:
    """Of the pod of a broker, as the kubelet mounts it; `changes` of claims."""
    claims = issuer.claims(f"{NAMES.namespace}/{NAMES.broker}", aud=[NAMES.enrolment_audience])
    claims["kubernetes.io"]["pod"] = {"name": NAMES.pod(broker_id), "uid": "9c1d"}
    return issuer.sign({**claims, **changes})


class EnrolmentScene:
    """`start_controller`, `start_broker`; ports stay the same over restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.issuer = Issuer(audience=NAMES.audience)
        self._stack = ExitStack()
        self._ports = {name: self._port() for name in ("control", "enrol", "probes", "health")}
        self._broker_ports = {name: self._port() for name in ("listen", "internal", "replicate")}
        write_issuers(path / "issuers.json", self.issuer)
        self.authority = self.new_authority()
        self.write_token(pod_token(self.issuer, 0))
        self.controller = self._controller()
        self.broker = self._broker()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.broker, self.controller):
            process.close()
        self._stack.close()

    @property
    def enrol_address(self) -> str:
        return self._ports["enrol"].address

    @property
    def broker_address(self) -> str:
        """Where users reach the broker."""
        return self._broker_ports["listen"].address

    @property
    def internal_address(self) -> str:
        return self._broker_ports["internal"].address

    @property
    def pem(self) -> Path:
        """The broker's certificate and key."""
        return self.path / "data" / "tls" / "server.pem"

    def new_authority(self) -> Authority:
        """Another CA, in the controller's files and in what the broker trusts."""
        self.authority = Authority.new("flights")
        (self.path / "ca.crt").write_bytes(self.authority.certificate)
        (self.path / "ca.key").write_bytes(self.authority.pair.key)
        (self.path / "trust.crt").write_bytes(self.authority.certificate)
        return self.authority

    def write_token(self, token: str) -> None:
        (self.path / "token").write_text(f"{token}\n")

    def tls(self) -> Tls:
        """Of somebody who trusts the CA, and has no certificate."""
        return Tls(TlsFiles(self.path / "trust.crt"))

    def start(self) -> None:
        """Both, until they serve."""
        self.controller.start()
        self.broker.start()

    def _port(self) -> ReservedPort:
        return self._stack.enter_context(ReservedPort())

    def _controller(self) -> ServerProcess:
        path, ports = self.path, self._ports
        arguments = [
            *("controller", "--metadata-dir", str(path / "metadata")),
            *("--listen", ports["control"].address, "--health-listen", ports["probes"].address),
            *("--enrol-listen", ports["enrol"].address),
            *("--ca-certificate", str(path / "ca.crt"), "--ca-key", str(path / "ca.key")),
            *("--cluster", NAMES.cluster, "--namespace", NAMES.namespace),
            *("--certificate-host", HOST, "--new-cluster-id", CLUSTER_ID),
            *("--enrol-issuers", str(path / "issuers.json")),
            *("--config", "default.replication.factor=1"),
        ]
        log = path / "controller.log"
        return ServerProcess("controller", arguments, log, ports["probes"])

    def _broker(self) -> ServerProcess:
        path, ports = self.path, self._broker_ports
        health = self._ports["health"]
        arguments = [
            *("broker", "--broker-id", "0", "--data-dir", str(path / "data")),
            *("--listen", ports["listen"].address, "--internal-listen", ports["internal"].address),
            *("--replication-listen", ports["replicate"].address),
            *("--health-listen", health.address),
            *("--controllers", self._ports["control"].address),
            *("--enrol-at", self.enrol_address, "--enrol-token", str(path / "token")),
            *("--enrol-ca", str(path / "trust.crt")),
        ]
        return ServerProcess("broker", arguments, path / "broker.log", health)
