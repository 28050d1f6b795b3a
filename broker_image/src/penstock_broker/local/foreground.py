"""`penstock local up`: runs a `LocalCluster` until a signal, or changes a running one.

    up ──▶ nothing runs here ──▶ run: start, watch, wait for SIGINT | SIGTERM | SIGHUP, stop
       └─▶ a cluster runs    ──▶ apply_to_running: topics only; other changes need a restart
    up --detach ──▶ `python -m penstock_broker.local.foreground …` in a session of its own,
                    and waits until its state.json says running

A second signal while stopping kills at once.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from penstock.core.manifest import Cluster, Manifest
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock_broker.local.apply import apply_topics
from penstock_broker.local.arguments import check_settings, settings_of
from penstock_broker.local.cluster import (
    LocalCluster,
    LocalOptions,
    process_names,
    refuse_to_shrink,
)
from penstock_broker.local.manifest_file import (
    DEFAULT_NAME,
    choose_cluster,
    default_text,
    parse_text,
    read_text,
)
from penstock_broker.local.ports import reserved_ports
from penstock_broker.local.processes import signals_deferred
from penstock_broker.local.registry import options_for, register, registry
from penstock_broker.local.security import check_mode
from penstock_broker.local.state import UMASK, LocalState, StateDirectory, private

POLL_S = 0.1
START_TIMEOUT_S = 90.0
SUPERVISOR_LOG = "supervisor"
FAILED = "penstock: "
"""Before the line that says why a detached supervisor ended."""


@dataclass(frozen=True, slots=True)
class UpRequest:
    """What the user asked for. `path` None: no manifest. `data_dir` None: the user's state
    directory. `dry_run`: nothing is made, started or changed."""

    path: str | None
    cluster: str | None = None
    data_dir: Path | None = None
    base_port: int = 0
    secure: bool = False
    dry_run: bool = False


def manifest_of(request: UpRequest) -> tuple[str, str]:
    """Where the manifest is from, and its text: the named one, else that of the last start, else
    the default. Raises MisuseError."""
    if request.path is not None:
        source = "<stdin>" if request.path == "-" else request.path
        return source, read_text(request.path)
    name = request.cluster or DEFAULT_NAME
    last = StateDirectory(request.data_dir or registry() / name).manifest_file
    if last.is_file():
        return str(last), read_text(str(last))
    return "the default manifest", default_text(name)


class LocalUp:
    """One `up`: manifest read and checked, directory chosen."""

    def __init__(self, request: UpRequest, progress: Callable[[str], None]) -> None:
        source, text = manifest_of(request)
        self.request = request
        self.progress = progress
        self.manifest: Manifest = parse_text(text, source)
        self.cluster: Cluster = choose_cluster(self.manifest, request.cluster)
        check_settings(self.cluster, self.manifest.source)
        root = request.data_dir or registry() / self.cluster.name
        self.directory = StateDirectory(root)
        if not request.dry_run:
            self.directory.create()
        check_mode(self.directory, secure=request.secure)
        self._text = text

    def running(self) -> LocalState | None:
        """The cluster that runs in this directory; waits while it is starting."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (state := self.directory.read()) is not None and state.is_supervised:
            if state.phase == "running":
                return state
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the cluster in {self.directory.root} is {state.phase} and makes no "
                    f"progress; stop it with {self.stop_command()}",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            time.sleep(POLL_S)
        return None

    def check_port(self, state: LocalState, port: int) -> None:
        """Raises MisuseError if it runs, and its first broker listens on another port."""
        first = state.bootstrap.partition(",")[0]
        if not first.endswith(f":{port}"):
            raise MisuseError(
                f"--port is {port}, but Cluster/{state.cluster} is running, with broker 0 on "
                f"{first}; leave --port out, or run {self.stop_command()} first"
            )

    def apply_to_running(self, state: LocalState) -> list[str]:
        """Applies the manifest's topics; raises MisuseError if more than topics changed."""
        wanted = settings_of(self.cluster).fingerprint
        if state.cluster != self.cluster.name:
            raise MisuseError(
                f"{self.directory.root} runs Cluster/{state.cluster}, but the manifest contains "
                f"Cluster/{self.cluster.name}; use another --data-dir"
            )
        changed = [
            f"{key} ({state.settings.get(key, 'not set')} → {wanted.get(key, 'not set')})"
            for key in sorted(wanted.keys() | state.settings.keys())
            if wanted.get(key) != state.settings.get(key)
        ]
        if changed:
            raise MisuseError(
                f"{self.manifest.source}: Cluster/{self.cluster.name} is running with different "
                f"settings: {', '.join(changed)}; settings are read at start: run "
                f"{self.stop_command()}, then `up`",
                ErrorCode.INVALID_CONFIG,
            )
        return apply_topics(
            state.bootstrap,
            self.manifest,
            self.cluster,
            self.directory.client_files,
            dry_run=self.request.dry_run,
        )

    def plan(self) -> list[str]:
        """What a start would do, a line each. Raises MisuseError for what would keep it from that:
        the directory, data of more brokers, a port in use."""
        self.directory.check_usable()
        refuse_to_shrink(self.manifest, self.cluster, self.directory.root)
        with reserved_ports(
            process_names(self.cluster), self.request.base_port, secure=self.request.secure
        ):
            pass
        name, brokers = self.cluster.name, self.cluster.spec.brokers
        source, root = self.manifest.source, self.directory.root
        topics = [f"Topic/{one.spec.topic_name}" for one in self.manifest.topics_of(name)]
        return [f"{brokers} brokers and a controller, from {source}, data in {root}", *topics]

    def run(self, on_ready: Callable[[LocalCluster], None]) -> None:
        """Starts the cluster and returns after a signal, when nothing runs any more.

        A signal during the start raises KeyboardInterrupt, after everything has been stopped.
        """
        self.directory.write_manifest(self._text)
        options = LocalOptions(
            base_port=self.request.base_port,
            restart_crashed=True,
            progress=self.progress,
            secure=self.request.secure,
        )
        cluster = LocalCluster(self.manifest, self.cluster, self.directory, options)
        with stop_signals(later=cluster.kill_all):
            is_ready = False
            try:
                self._register()
                cluster.start()
                is_ready = True
                on_ready(cluster)
                while True:
                    signal.pause()
            except KeyboardInterrupt:
                if not is_ready:
                    raise
                self.progress("stopping (press Ctrl-C again to kill)")
            finally:
                cluster.stop()

    def stop_command(self) -> str:
        """The command that stops this cluster, and no other one, in quotes."""
        chosen = self.request.data_dir
        options = options_for(self.directory.root, by_directory=chosen is not None)
        return f"`penstock local down{options}`"

    def _register(self) -> None:
        """Called before the start, so that a cluster that hangs there can be stopped, too."""
        try:
            register(self.cluster.name, self.directory.root)
        except (OSError, MisuseError) as error:
            self.progress(
                f"{error}; `penstock local status` and `down` will find this cluster only with "
                f"--data-dir {self.directory.root}"
            )

    def detach(self) -> LocalState:
        """Starts `run` in a session of its own; returns when the cluster runs.

        Raises ClusterError with the supervisor's last line if it ends before that. Ctrl-C while
        waiting stops the supervisor, too.
        """
        self.directory.write_manifest(self._text)
        log_file = self.directory.log_file(SUPERVISOR_LOG)
        command = [
            sys.executable, "-m", "penstock_broker.local.foreground",
            "--manifest", str(self.directory.manifest_file), "--source", self.manifest.source,
            "--cluster", self.cluster.name, "--data-dir", str(self.directory.root),
            "--port", str(self.request.base_port),
            *(["--secure"] if self.request.secure else []),
        ]  # fmt: skip
        supervisor = None
        try:
            with open(log_file, "wb", opener=private) as log, signals_deferred():
                supervisor = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    umask=UMASK,
                )
            return self._wait_for(supervisor, log_file)
        except BaseException:
            if supervisor is not None:
                supervisor.terminate()
                supervisor.wait(START_TIMEOUT_S)
            raise

    def _wait_for(self, supervisor: "subprocess.Popen[bytes]", log_file: Path) -> LocalState:
        deadline = time.monotonic() + START_TIMEOUT_S
        shown = 0
        while time.monotonic() < deadline:
            code = supervisor.poll()
            lines = log_file.read_text(errors="replace").splitlines()
            for line in progress_in(lines[shown:]) if code is None else []:
                self.progress(line)
            shown = len(lines)
            if code is not None:
                last = lines[-1].removeprefix(FAILED) if lines else f"exit code {code}"
                raise ClusterError(f"the cluster did not start: {last}")
            state = self.directory.read()
            ours = state is not None and state.supervisor.pid == supervisor.pid
            if state is not None and ours and state.phase == "running":
                return state
            time.sleep(POLL_S)
        raise ClusterError(f"the cluster is not ready after {START_TIMEOUT_S:.0f} s: {log_file}")


def progress_in(lines: list[str]) -> list[str]:
    """What of a supervisor's log is shown as it comes: not why it ends, which the error says."""
    return [line for line in lines if not line.startswith(FAILED)]


@contextlib.contextmanager
def stop_signals(later: Callable[[], None]) -> Iterator[None]:
    """Inside the block, SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, once; not one that is
    ignored, as SIGHUP by `nohup`.

    Every further signal calls `later` instead, so that it does not interrupt the clean stop that
    the first one began. Main thread only.
    """
    assert threading.current_thread() is threading.main_thread()
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        if len(seen) == 1:
            raise KeyboardInterrupt
        later()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [one for one in numbers if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: list[str] | None = None) -> int:
    """The detached supervisor: prints progress, one line each, to its log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secure", action="store_true")
    args = parser.parse_args(argv)

    def progress(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        request = UpRequest(
            args.manifest, args.cluster, args.data_dir, args.port, secure=args.secure
        )
        LocalUp(request, progress).run(lambda _: None)
    except PenstockError as error:
        progress(f"{FAILED}{error.message}")
        return 1
    except OSError as error:
        progress(f"{FAILED}{error.filename or args.data_dir}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
