"""The state directory of a local cluster, and `state.json` in it: how other processes find it.

    <root>/.penstock-local says that what follows was made here by local mode
           state.json      which processes run where; replaced atomically
           manifest.yaml   the manifest in force
           lock            held (flock) by the process that runs the cluster
           logs/*.log      standard error of each process: JSON lines
           controller/  broker-0/ …   data directories
           security/       keys, certificates and tokens, of a cluster made with --secure

Only the user who starts a cluster can read what is in it. All users of the machine reach loopback,
where its processes listen, but records, logs and manifests lie in folders of mode 0700.

Standard library only: `penstock` reads this to find the running cluster, without the broker
extra. `registry` lists the directories.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.errors import MisuseError
from penstock_broker.local.processes import ProcessIdentity, is_alive

FORMAT = 1
FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
"""Of the processes of a cluster."""
_MARKER_TEXT = "Made by `penstock local`; `penstock local down --purge` removes what it made.\n"
_BROKER = re.compile(r"broker-\d+")
Phase = Literal["starting", "running", "stopping"]


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """One server process. `restarts` counts how often it was restarted after it died."""

    name: str
    identity: ProcessIdentity | None
    address: str
    metrics_address: str
    restarts: int = 0
    certificate_address: str = ""
    """For users who show a certificate; empty: for none."""


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
    def certificate_bootstrap(self) -> str:
        """The same for users who show a certificate; empty: nobody may."""
        return ",".join(p.certificate_address for p in self.processes if p.certificate_address)

    @property
    def is_supervised(self) -> bool:
        return is_alive(self.supervisor)


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner may read."""
    return os.open(path, flags, FILE_MODE)


class StateDirectory:
    """Paths and files of one local cluster."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def marker_file(self) -> Path:
        """Exists once a cluster was started here, until it is purged."""
        return self.root / ".penstock-local"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"

    @property
    def manifest_file(self) -> Path:
        return self.root / "manifest.yaml"

    @property
    def security(self) -> Path:
        """Exists if the cluster was made with --secure (`local.security`)."""
        return self.root / "security"

    @property
    def client_files(self) -> dict[str, str]:
        """What its own helpers' clients use: the admin's token, or plaintext."""
        if not self.security.is_dir():
            return {"ca_file": "", "token_file": ""}
        files = {"ca_file": "ca.crt", "token_file": "admin.token"}
        return {setting: str(self.security / name) for setting, name in files.items()}

    def log_file(self, process: str) -> Path:
        return self.root / "logs" / f"{process}.log"

    def data(self, process: str) -> Path:
        return self.root / process

    def create(self) -> None:
        """Makes the directory, or what is missing in it, and marks it.

        Raises MisuseError where something else has folders of our names: a purge would remove them.
        """
        try:
            self.root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            if not self._is_ours():
                self._refuse_to_share()
            self.marker_file.write_text(_MARKER_TEXT)
            (self.root / "logs").mkdir(FOLDER_MODE, exist_ok=True)
            for folder in self._folders():  # an earlier release let everybody read them
                folder.chmod(FOLDER_MODE)
        except OSError as error:
            raise MisuseError(
                f"{self.root}: cannot be used as data directory: {error.strerror}; "
                "choose another with --data-dir"
            ) from error

    def check_usable(self) -> None:
        """Raises MisuseError if `create` would, as far as can be seen without making anything."""
        if not self.root.exists():
            above = next(one for one in self.root.absolute().parents if one.exists())
            if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
                why = "cannot be written" if above.is_dir() else "is no directory"
                raise MisuseError(
                    f"{self.root}: cannot be used as data directory: {above} {why}; choose "
                    "another with --data-dir"
                )
        elif not self._is_ours():
            self._refuse_to_share()

    def read(self) -> LocalState | None:
        """None if no cluster was started here, or its state cannot be read or parsed."""
        try:
            return _from_json(json.loads(self.state_file.read_text()))
        except (OSError, KeyError, TypeError, ValueError):
            return None

    def write(self, state: LocalState) -> None:
        text = json.dumps({"format": FORMAT, **asdict(state)}, indent=2) + "\n"
        self._write(self.state_file, text)

    def write_manifest(self, text: str) -> None:
        self._write(self.manifest_file, text)

    def _write(self, path: Path, text: str) -> None:
        """Raises MisuseError; what was there before is still there then."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8", opener=private) as file:
                file.write(text)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise MisuseError(
                f"{path}: cannot be written: {error.strerror}; mend that, or choose another "
                "directory with --data-dir"
            ) from error

    def forget(self) -> None:
        self.state_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Yields whether this process is now the one that runs the cluster."""
        with open(self.lock_file, "a", opener=private) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def purge(self) -> None:
        """Removes only what local mode created here; then the directory, if empty.

        Raises as `check_ours`, and MisuseError if a cluster runs or starts here, or if something
        cannot be removed.
        """
        self.check_ours()
        try:
            with self.lock() as is_alone:
                if not is_alone:
                    raise MisuseError(
                        f"{self.root}: a local cluster runs or starts here, so nothing was "
                        "removed; stop it with `penstock local down`, and purge again"
                    )
                for folder in self._folders():
                    shutil.rmtree(folder)
                # The marker is last: a purge that was interrupted can be repeated.
                for file in (self.state_file, self.manifest_file, self.lock_file, self.marker_file):
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise MisuseError(
                f"{error.filename or self.root}: cannot be removed: {error.strerror}; records may "
                "be left. Mend that, and purge again"
            ) from error
        with contextlib.suppress(OSError):
            self.root.rmdir()

    def check_ours(self) -> None:
        """Raises MisuseError where no cluster ever was: then `logs` and the like belong to
        something else."""
        if not self._is_ours():
            raise MisuseError(
                f"{self.root}: there is no local cluster here, so nothing was removed; `penstock "
                "local list` shows running clusters"
            )

    def _folders(self) -> list[Path]:
        """Those with our names; a link may lead anywhere, so it is none of them."""
        names = [entry.name for entry in self.root.iterdir() if _BROKER.fullmatch(entry.name)]
        folders = [self.root / name for name in ("controller", "logs", "security", *names)]
        return [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]

    def _is_ours(self) -> bool:
        """Whether local mode made what is here; an earlier release left no marker."""
        if self.marker_file.exists() or self.read() is not None:
            return True
        lock = self.lock_file
        if not lock.is_file() or lock.stat().st_size:
            return False
        return self.manifest_file.exists() or any(
            (folder / "meta.json").is_file() for folder in self._folders()
        )

    def _refuse_to_share(self) -> None:
        found = [folder.name for folder in self._folders()]
        if found:
            raise MisuseError(
                f"{self.root} has a folder {found[0]!r} that no local cluster made; choose another "
                "directory with --data-dir"
            )


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
                certificate_address=entry.get("certificate_address", ""),
            )
            for entry in document["processes"]
        ),
        settings=dict(document["settings"]),
    )
