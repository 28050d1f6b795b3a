"""The state directory of a local cluster, and `state.json` in it: how other processes find it.

    <root>/state.json      which processes run where; replaced atomically
           manifest.yaml   the manifest in force
           lock            held (flock) by the process that runs the cluster
           logs/*.log      standard error of each process: JSON lines
           controller/  broker-0/ …   data directories

Standard library only: `penstock` reads this to find the running cluster, without the broker
extra. `registry` lists the directories.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.errors import MisuseError
from penstock_broker.local.processes import ProcessIdentity, is_alive

FORMAT = 1
Phase = Literal["starting", "running", "stopping"]


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """One server process. `restarts` counts how often it was restarted after it died."""

    name: str
    identity: ProcessIdentity | None
    address: str
    metrics_address: str
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class LocalState:
    """The content of `state.json`. `settings` is what the processes were started with."""

    cluster: str
    phase: Phase
    manifest: str
    supervisor: ProcessIdentity
    processes: tuple[RecordedProcess, ...]
    settings: dict[str, str]

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, separated by commas."""
        return ",".join(p.address for p in self.processes if p.name.startswith("broker-"))

    @property
    def is_supervised(self) -> bool:
        return is_alive(self.supervisor)


class StateDirectory:
    """Paths and files of one local cluster."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def lock_file(self) -> Path:
        """Exists once a cluster was started here, until it is purged."""
        return self.root / "lock"

    @property
    def manifest_file(self) -> Path:
        return self.root / "manifest.yaml"

    def log_file(self, process: str) -> Path:
        return self.root / "logs" / f"{process}.log"

    def data(self, process: str) -> Path:
        return self.root / process

    def create(self) -> None:
        try:
            (self.root / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MisuseError(
                f"{self.root}: cannot be used as data directory: {error.strerror}; "
                "choose another with --data-dir"
            ) from error

    def read(self) -> LocalState | None:
        """None if no cluster was started here, or its state cannot be read or parsed."""
        try:
            return _from_json(json.loads(self.state_file.read_text()))
        except (OSError, KeyError, TypeError, ValueError):
            return None

    def write(self, state: LocalState) -> None:
        temporary = self.state_file.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"format": FORMAT, **asdict(state)}, indent=2) + "\n")
        temporary.replace(self.state_file)

    def forget(self) -> None:
        self.state_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Yields whether this process is now the one that runs the cluster."""
        with self.lock_file.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def purge(self) -> None:
        """Removes only what local mode created here; then the directory, if empty.

        Raises MisuseError where no cluster ever was: then `logs` and the like belong to something
        else.
        """
        if not self.lock_file.exists() and not self.state_file.exists():
            raise MisuseError(
                f"{self.root}: there is no local cluster here, so nothing was removed; `penstock "
                "local list` shows running clusters"
            )
        for data in [self.data("controller"), self.root / "logs", *self.root.glob("broker-*")]:
            shutil.rmtree(data, ignore_errors=True)
        for file in (self.state_file, self.manifest_file, self.lock_file):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()


def _from_json(document: dict[str, Any]) -> LocalState | None:
    if document["format"] != FORMAT:
        return None
    return LocalState(
        cluster=document["cluster"],
        phase=document["phase"],
        manifest=document["manifest"],
        supervisor=ProcessIdentity(**document["supervisor"]),
        processes=tuple(
            RecordedProcess(
                name=entry["name"],
                identity=ProcessIdentity(**entry["identity"]) if entry["identity"] else None,
                address=entry["address"],
                metrics_address=entry["metrics_address"],
                restarts=entry["restarts"],
            )
            for entry in document["processes"]
        ),
        settings=dict(document["settings"]),
    )
