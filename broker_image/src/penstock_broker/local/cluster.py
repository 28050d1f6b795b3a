"""`LocalCluster`: a controller and brokers as children of this process.

    with LocalCluster.from_manifest("cluster.yaml", data_dir=folder) as cluster:
        Producer(cluster.bootstrap) …
        cluster.kill(1)            # SIGKILL; cluster.start_broker(1) or the watcher restarts it

Used in process by the demo, tests and benchmarks, and by `penstock local up` through `foreground`.
It blocks; call it from a thread in asynchronous programs. Every start and stop of a process is
written to `state.json`, so that `penstock local status` and `down` can see it.

    start: lock the directory ─▶ end leftovers ─▶ reserve ports ─▶ spawn all ─▶ wait for SERVING
           ─▶ apply topics.     If a step fails, everything started is stopped.
    stop:  brokers one by one (each hands over its leaderships), then the controller; bounded.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.core.manifest import Cluster, Manifest
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock_broker.local.apply import apply_topics, wait_for_brokers
from penstock_broker.local.arguments import (
    broker_arguments,
    check_settings,
    controller_arguments,
    settings_of,
)
from penstock_broker.local.manifest_file import choose_cluster, load_manifest
from penstock_broker.local.ports import Ports, reserved_ports
from penstock_broker.local.processes import identify_self
from penstock_broker.local.registry import options_for, registry
from penstock_broker.local.security import ADMIN_PRINCIPAL, LocalSecurity, check_mode
from penstock_broker.local.server import ServerProcess
from penstock_broker.local.state import LocalState, Phase, StateDirectory
from penstock_broker.local.sweep import end_leftovers
from penstock_broker.local.watch import Watcher

POLL_S = 0.1
LEFTOVERS_TIMEOUT_S = 20.0
CONTROLLER = "controller"
Target = int | str
"""A broker by its id, or a process by its name (`controller`, `broker-0`)."""


def process_names(cluster: Cluster) -> list[str]:
    """Of the controller and all brokers."""
    return [CONTROLLER, *(f"broker-{i}" for i in range(cluster.spec.brokers))]


def _silent(_: str) -> None:
    """Discards progress messages."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options for running a cluster.

    `base_port`: brokers listen on base + id, the controller on base - 1; 0 = any free ports.
    `restart_crashed`: a process that exits or is killed is restarted after a
    growing pause. `ready_timeout_s` bounds `start` and `start_broker`; `stop_timeout_s` bounds
    the clean stop of each process, before SIGKILL. `progress` gets one line per step. `secure`:
    with TLS, tokens and rules; the files for clients are in the folder `security`.
    """

    base_port: int = 0
    restart_crashed: bool = False
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 10.0
    progress: Callable[[str], None] = _silent
    secure: bool = False


class LocalCluster:
    """The processes of one Cluster on this machine. See the module for its life cycle."""

    def __init__(
        self, manifest: Manifest, cluster: Cluster, directory: StateDirectory, options: LocalOptions
    ) -> None:
        check_settings(cluster, manifest.source)
        self.manifest = manifest
        self.cluster = cluster
        self.directory = directory
        self.options = options
        self._security = LocalSecurity(directory, cluster.name) if options.secure else None
        self._servers: dict[str, ServerProcess] = {}
        self._phase: Phase = "starting"
        self._held = contextlib.ExitStack()
        self._lock = threading.RLock()
        self._watcher = Watcher(self._restartable, self._restart_crashed, self._tell)
        self._stopped_on_purpose: set[str] = set()

    @classmethod
    def from_manifest(
        cls,
        path: str | Path,
        *,
        data_dir: str | Path | None = None,
        cluster: str | None = None,
        options: LocalOptions | None = None,
    ) -> Self:
        """Creates a cluster without starting it.

        Args:
            path: manifest with a Cluster and its Topics.
            data_dir: folder of data, logs and `state.json`; None = the user's state directory.
            cluster: which Cluster, if the manifest contains several.

        Raises:
            MisuseError: the manifest is invalid (all problems in one message).
        """
        manifest = load_manifest(path)
        chosen = choose_cluster(manifest, cluster)
        root = Path(data_dir) if data_dir is not None else registry() / chosen.name
        return cls(manifest, chosen, StateDirectory(root), options or LocalOptions())

    # ── Life ──────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Starts everything and returns when topics are applied and all brokers serve.

        Raises:
            MisuseError: the directory is in use, a port is in use, brokers would be left out.
            ClusterError: a process ended or was not ready in time; all others are stopped.
        """
        self.directory.create()
        if not self._held.enter_context(self.directory.lock()):
            self._held.close()
            raise MisuseError(
                f"a local cluster already runs in {self.directory.root}; `penstock local "
                f"down{options_for(self.directory.root)}` stops it; --data-dir uses another "
                "directory"
            )
        try:
            self._start_processes()
            self._phase = "running"
            self._record()
        except BaseException:
            self.stop()
            raise
        if self._security is not None:
            self._security.start_renewing(self._tell)
        if self.options.restart_crashed:
            self._watcher.start()

    def _start_processes(self) -> None:
        deadline = time.monotonic() + self.options.ready_timeout_s
        self._phase = "starting"
        refuse_to_shrink(self.manifest, self.cluster, self.directory.root)
        check_mode(self.directory, secure=self._security is not None)
        end_leftovers(self.directory.read(), LEFTOVERS_TIMEOUT_S)
        names = process_names(self.cluster)
        ports = self._held.enter_context(
            reserved_ports(names, self.options.base_port, secure=self._security is not None)
        )
        if self._security is not None:
            self._security.prepare(names)
        self._servers = {name: self._server_process(name, ports) for name in names}
        for server in self._servers.values():
            server.start()
        self._record()
        for server in self._servers.values():
            self._wait_until_serving(server, deadline)
            self.options.progress(f"{server.name} is ready on {server.address}")
        files = self.directory.client_files
        wait_for_brokers(self.bootstrap, len(names) - 1, deadline, self._raise_if_ended, files)
        self.apply(self.manifest)

    def stop(self) -> None:
        """Stops everything; nothing runs when it returns. Idempotent; kills slow processes."""
        self._watcher.stop()
        if self._security is not None:
            self._security.stop_renewing()
        with self._lock:
            self._phase = "stopping"
            if self._servers:
                with contextlib.suppress(MisuseError):  # on a full disk they must end, too
                    self._record()
            controller_last = sorted(self._servers.values(), key=lambda s: s.name == CONTROLLER)
            for server in controller_last:
                server.stop(self.options.stop_timeout_s)
                self._tell(f"{server.name} stopped")
            if self._servers:
                self.directory.forget()
            self._servers = {}
        self._held.close()

    def kill_all(self) -> None:
        """Ends every process at once, without a clean stop. Follow with `stop`."""
        for server in list(self._servers.values()):
            server.signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def apply(self, manifest: Manifest) -> list[str]:
        """Makes topics and rules of access those of the manifest; returns a line for each change.

        Other settings of its Cluster are read at start. Raises ManifestError, before anything is
        changed, if a change is impossible.
        """
        name = self.cluster.name
        cluster = next((one for one in manifest.clusters if one.name == name), self.cluster)
        lines = apply_topics(self.bootstrap, manifest, cluster, self.directory.client_files)
        for line in lines:
            self.options.progress(line)
        return lines

    # ── Facts ─────────────────────────────────────────────────────────────────────────────

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, separated by commas, running or not."""
        return ",".join(s.address for s in self._servers.values() if s.name != CONTROLLER)

    @property
    def broker_ids(self) -> list[int]:
        return list(range(self.cluster.spec.brokers))

    def address(self, target: Target) -> str:
        return self._server(target).address

    def health_address(self, target: Target) -> str:
        return self._server(target).health_address

    def metrics_address(self, target: Target) -> str:
        return self._server(target).record().metrics_address

    def pid(self, target: Target) -> int | None:
        """None while the process is not running."""
        return self._server(target).pid

    def broker_pid(self, broker_id: int) -> int | None:
        return self.pid(broker_id)

    def log_file(self, target: Target) -> Path:
        return self._server(target).log_file

    # ── One process ───────────────────────────────────────────────────────────────────────

    def kill(self, target: Target, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal; after SIGKILL the process has ended when this returns.

        With `restart_crashed` the watcher restarts the process; otherwise call `start_broker`.
        """
        server = self._server(target)
        server.signal(number)
        if number is signal.SIGKILL:
            server.wait(self.options.stop_timeout_s)

    def stop_broker(self, target: Target) -> None:
        """Stops one process cleanly. It stays down until `start_broker`."""
        with self._lock:
            server = self._server(target)
            self._stopped_on_purpose.add(server.name)
            server.stop(self.options.stop_timeout_s)
            self._record()

    def start_broker(self, target: Target) -> None:
        """Starts a process that is down, on its old address and data; returns when it serves."""
        server = self._server(target)
        with self._lock:
            self._stopped_on_purpose.discard(server.name)
            if not server.is_running:
                server.start()
            self._record()
        self._wait_until_serving(server, time.monotonic() + self.options.ready_timeout_s)

    # ── Inside ────────────────────────────────────────────────────────────────────────────

    def _server(self, target: Target) -> ServerProcess:
        name = target if isinstance(target, str) else f"broker-{target}"
        if name not in self._servers:
            running = ", ".join(self._servers) or "none: the cluster is not running"
            raise MisuseError(f"there is no process {name}; running are {running}")
        return self._servers[name]

    def _server_process(self, name: str, ports: dict[str, Ports]) -> ServerProcess:
        data = self.directory.data(name)
        if name == CONTROLLER:
            arguments = controller_arguments(self.cluster, data, ports[name])
        else:
            broker_id = int(name.removeprefix("broker-"))
            controller = ports[CONTROLLER]
            arguments = broker_arguments(self.cluster, broker_id, data, ports[name], controller)
        environment = {}
        if self._security is not None:
            arguments += self._security.options(name, ports[name])
            environment = {"PENSTOCK_ADMINS": ADMIN_PRINCIPAL}
        log_file = self.directory.log_file(name)
        return ServerProcess(name, arguments, ports[name], log_file, environment)

    def _wait_until_serving(self, server: ServerProcess, deadline: float) -> None:
        while not server.is_serving():
            if not self._watcher.is_watching:
                self._raise_if_ended(server)
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{server.name} is not ready after {self.options.ready_timeout_s:.0f} s; "
                    f"its last log line: {server.last_words()!r} (its log: {server.log_file})",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            time.sleep(POLL_S)

    def _raise_if_ended(self, *waited_for: ServerProcess) -> None:
        """While the cluster starts, none may end: without a controller, no broker ever serves."""
        concerned = self._servers.values() if self._phase == "starting" else waited_for
        for server in concerned:
            if not server.is_running:
                raise server.failure()

    def _restartable(self) -> list[ServerProcess]:
        return [s for s in self._servers.values() if s.name not in self._stopped_on_purpose]

    def _restart_crashed(self, server: ServerProcess) -> None:
        """Once more if this raised: then it may run, and only its record is missing."""
        with self._lock:
            if self._phase != "running":
                return
            if not server.is_running:
                self._tell(f"{server.failure()}; restarting it")
                server.restarts += 1
                server.start()
            self._record()

    def _tell(self, line: str) -> None:
        """A log on a full disk, or a terminal that is gone, keeps nothing from going on."""
        with contextlib.suppress(OSError):
            self.options.progress(line)

    def _record(self) -> None:
        self.directory.write(
            LocalState(
                cluster=self.cluster.name,
                phase=self._phase,
                manifest=self.manifest.source,
                supervisor=identify_self(),
                processes=tuple(server.record() for server in self._servers.values()),
                settings=settings_of(self.cluster).fingerprint,
            )
        )


def refuse_to_shrink(manifest: Manifest, cluster: Cluster, root: Path) -> None:
    """Raises MisuseError if there is data of brokers that would not be started."""
    brokers = cluster.spec.brokers
    present = [entry.name for entry in root.glob("broker-*") if entry.is_dir()]
    ids = [int(text) for name in present if (text := name.removeprefix("broker-")).isdecimal()]
    if ids and max(ids) >= brokers:
        raise MisuseError(
            f"{manifest.source}: Cluster/{cluster.name}: spec.brokers is {brokers}, but {root} "
            f"contains data of broker {max(ids)}; set spec.brokers to {max(ids) + 1}, or remove "
            f"all data with `penstock local down --purge{options_for(root)}`",
            ErrorCode.INVALID_CONFIG,
        )
