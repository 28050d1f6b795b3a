"""A broker's data directory: whose data it is, and whether all of it is still there.

    data-dir/
        lock         held with flock while a broker runs; holds its process id, for the message
        meta.json    who owns it, newest controller seen, how the last run ended
        generations.json  names of its last openings and stops
        journal.json the metadata journal (services.journal)
        scrub.json   how far the scrub of each log is (maintenance.scrub)
        log/         the log store

    open ──▶ [register, adopt_cluster_id, registration_accepted] ──▶ remember_metadata …
         ──▶ stop_asked ──▶ close(clean)
         ──▶ [refused: older than the cluster knows] ──▶ distrust ──▶ close

Three questions decide what a broker may claim after a start. *Is this my directory?* Another
cluster's or broker's is refused (I21, I22). *Did it survive?* After a kill, the page cache is still
there, which the kernel's boot id proves; after a power loss it is not, and the broker must not
claim its old ISR seats ("last replica standing", I7). A loss is remembered until the controller has
been told of it; otherwise a crash right after the first start would hide it. *Is it the newest?* A
volume that was restored says all this of then: so each opening and each stop gets a name, and
controllers know the newest, which an older copy lacks (`core.control.generations`).

Every change of one of these files is atomic and durable (`DurableFile`).
All calls block; none is needed on the data path.
"""

import fcntl
import os
import shutil
import threading
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final

import msgspec

from penstock.core.limits import GENERATIONS_KEPT
from penstock.core.types import BrokerId, ControllerEpoch
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock_broker.durable_files import DurableFile, SmallFile, fsync_folder

FORMAT: Final = 1
_META: Final = "meta.json"
_GENERATIONS: Final = "generations.json"
_LOCK: Final = "lock"
_JOURNAL: Final = "journal.json"
_SCRUB: Final = "scrub.json"
_LOG: Final = "log"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of `meta.json`.

    `cluster_id` is empty until the first registration. `clean_shutdown` is true only while no
    broker runs. `data_lost`: records acknowledged by an earlier run may be missing, or never were
    here (a new directory), and the controller has not confirmed that it knows.
    """

    format: int
    cluster_id: str
    broker_id: int
    directory_id: str
    boot_id: str
    clean_shutdown: bool = False
    data_lost: bool = True
    controller_epoch: int = 0
    metadata_version: int = 0


class DataDirectory:
    """An open, locked data directory; opened by `open`, released by `close`.

    Calls from several threads follow each other: a broker stores metadata versions in one, and all
    else on its event loop.
    """

    def __init__(self, path: Path, meta: Meta, lock: IO[str], *, fresh: bool = False) -> None:
        """Takes ownership of `lock`; use `open` instead."""
        self.path = path
        self.fresh = fresh
        """The directory was created by this run: it is empty."""
        self._meta = meta
        self._lock = lock
        self._generations: tuple[str, ...] = ()
        self._opened = ""
        self._changing = threading.Lock()

    @classmethod
    def open(
        cls, path: Path, *, cluster_id: str | None, broker_id: BrokerId, boot_id: str | None = None
    ) -> "DataDirectory":
        """Creates or validates the directory and locks it.

        Args:
            path: created if missing.
            cluster_id: the cluster it must belong to; None: any.
            broker_id: the broker it must belong to.
            boot_id: of the running kernel; None reads it. Empty: unknown, equal to none.

        Raises:
            MisuseError: it belongs to another cluster or broker, is in use, or cannot be used.
            ClusterError: DATA_CORRUPTED, its `meta.json` is damaged or missing.
        """
        lock = _take_lock(path)
        try:
            running = _running_boot_id() if boot_id is None else boot_id
            stored = _load(path)
            if stored is None:
                meta = Meta(FORMAT, cluster_id or "", broker_id, str(uuid.uuid4()), running)
            else:
                _check_owner(path, stored, cluster_id, broker_id)
                survived = stored.clean_shutdown or (running != "" and stored.boot_id == running)
                meta = replace(
                    stored,
                    cluster_id=stored.cluster_id or cluster_id or "",
                    boot_id=running,
                    clean_shutdown=False,
                    data_lost=stored.data_lost or not survived,
                )
            directory = cls(path, meta, lock, fresh=stored is None)
            if stored is not None:
                directory._generations = _load_generations(path)
            directory._store(meta)
            directory._begin_run()
        except OSError as error:
            lock.close()
            raise _unusable(path, error) from error
        except PenstockError:
            lock.close()
            raise
        return directory

    @property
    def log_path(self) -> Path:
        """Folder of the log store."""
        return self.path / _LOG

    @property
    def journal_file(self) -> SmallFile:
        """File of `services.journal`."""
        return DurableFile(self.path / _JOURNAL)

    @property
    def scrub_file(self) -> SmallFile:
        """File of `maintenance.scrub`."""
        return DurableFile(self.path / _SCRUB)

    @property
    def cluster_id(self) -> str:
        """Empty before the first registration."""
        return self._meta.cluster_id

    @property
    def directory_id(self) -> str:
        """UUID of the directory: to the controller, another directory is another broker."""
        return self._meta.directory_id

    @property
    def data_intact(self) -> bool:
        """Everything that earlier runs acknowledged is still here (clean stop, or same boot).

        False for a new directory, and after a loss until `registration_accepted`.
        """
        return not self._meta.data_lost

    @property
    def controller_epoch(self) -> ControllerEpoch:
        """The newest epoch seen; 0 = none yet."""
        return ControllerEpoch(self._meta.controller_epoch)

    @property
    def metadata_version(self) -> int:
        """The newest version applied; 0 = none yet."""
        return self._meta.metadata_version

    @property
    def generations(self) -> tuple[str, ...]:
        """What a registration says of the directory; the last is of this run, or of its stop."""
        return self._generations

    def adopt_cluster_id(self, cluster_id: str) -> None:
        """Binds the directory for ever to the cluster that accepted the first registration.

        Raises MisuseError(CLUSTER_ID_MISMATCH) if it belongs to another one.
        """
        _check_owner(self.path, self._meta, cluster_id, BrokerId(self._meta.broker_id))
        with self._changing:
            if self._meta.cluster_id != cluster_id:
                self._store(replace(self._meta, cluster_id=cluster_id))

    def registration_accepted(self) -> None:
        """A controller knows of this run, and of what was lost if `data_intact` was false.

        From now on a kill loses nothing, and what earlier runs are called does not matter.
        """
        with self._changing:
            known = self._generations
            if self._opened in known[1:]:
                self._store_generations(known[known.index(self._opened) :])
            if self._meta.data_lost:
                self._store(replace(self._meta, data_lost=False))

    def distrust(self, generation: str) -> None:
        """The cluster knows `generation` of this directory, which lacks it: nothing is trusted.

        The next run knows it, and says that records may be missing. Raises OSError if that cannot
        be stored: the next run is then refused as this one was.
        """
        with self._changing:
            # In this order: who knows the generation is believed, unless its data is lost.
            self._store(replace(self._meta, data_lost=True))
            self._store_generations((generation,))

    def stop_asked(self) -> None:
        """The broker is asked to stop: call it before a controller learns of that.

        Raises OSError if it cannot be stored: copies of this run are then not recognized.
        """
        with self._changing:
            self._note_generation()

    def remember_metadata(self, epoch: ControllerEpoch, version: int) -> None:
        """Records the newest controller epoch and metadata version, before they take effect.

        Raises ClusterError(STALE_CONTROLLER_EPOCH) if either is older than the newest one seen: the
        controller was deposed, or its metadata comes from a backup (I21). The image is refused.
        """
        with self._changing:
            self._remember(epoch, version)

    def _remember(self, epoch: ControllerEpoch, version: int) -> None:
        known = self._meta
        if epoch < known.controller_epoch or version < known.metadata_version:
            raise ClusterError(
                f"controller epoch {epoch} with metadata version {version} is older than epoch "
                f"{known.controller_epoch} with version {known.metadata_version}, which broker "
                f"{known.broker_id} has seen before: the controller was deposed, or its metadata "
                "was restored from a backup; nothing was applied",
                ErrorCode.STALE_CONTROLLER_EPOCH,
            )
        if (epoch, version) != (known.controller_epoch, known.metadata_version):
            self._store(replace(known, controller_epoch=epoch, metadata_version=version))

    def free_bytes(self) -> int:
        """Space left on the volume for this process's user."""
        return shutil.disk_usage(self.path).free

    def total_bytes(self) -> int:
        """What is used of the volume, by anybody, and what is left for this process's user, as in
        `df`: the rest is reserved for root."""
        usage = shutil.disk_usage(self.path)
        return usage.used + usage.free

    def close(self, *, clean: bool) -> None:
        """Unlocks. `clean`: the log store was closed and fsynced; the next run is told."""
        if self._lock.closed:
            return
        try:
            if clean:
                with self._changing:
                    self._store(replace(self._meta, clean_shutdown=True))
        finally:
            self._lock.close()

    def _begin_run(self) -> None:
        self._note_generation()
        self._opened = self._generations[-1]

    def _note_generation(self) -> None:
        """Of more than a registration says, the oldest stays: that one a controller has stored;
        those after it, perhaps."""
        names = (*self._generations, self._new_generation())
        if len(names) > GENERATIONS_KEPT:
            names = (names[0], *names[1 - GENERATIONS_KEPT :])
        self._store_generations(names)

    def _new_generation(self) -> str:
        return str(uuid.uuid4())

    def _store_generations(self, names: tuple[str, ...]) -> None:
        """In a file of their own: releases that do not know them rewrite `meta.json` without what
        they do not know, and may have done so in vain."""
        DurableFile(self.path / _GENERATIONS).replace(msgspec.json.encode(names) + b"\n")
        self._generations = names

    def _store(self, meta: Meta) -> None:
        text = msgspec.json.format(msgspec.json.encode(asdict(meta)), indent=2)
        DurableFile(self.path / _META).replace(text + b"\n")
        self._meta = meta


def _take_lock(path: Path) -> IO[str]:
    try:
        if not path.is_dir():
            path.mkdir(parents=True)
            fsync_folder(path.parent)
        lock = (path / _LOCK).open("a+", encoding="ascii")
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read(20).strip() or "unknown"
        lock.close()
        raise MisuseError(
            f"data directory {path} is in use by another broker (process {holder}); stop that "
            "broker, or give this one its own directory",
            ErrorCode.INVALID_CONFIG,
        ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _load(path: Path) -> Meta | None:
    """None: a new directory. Raises ClusterError(DATA_CORRUPTED) for data without an owner."""
    try:
        text = (path / _META).read_bytes()
    except FileNotFoundError:
        if (path / _LOG).exists():
            raise ClusterError(
                f"data directory {path} contains a log but no {_META}, so its owner is unknown. "
                f"Restore {_META}, or give this broker an empty directory",
                ErrorCode.DATA_CORRUPTED,
            ) from None
        return None
    try:
        meta = msgspec.json.decode(text, type=Meta)
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{path / _META} is damaged ({error}); restore it, or give this broker an empty "
            "directory: it will copy its partitions from the other replicas",
            ErrorCode.DATA_CORRUPTED,
        ) from error
    if meta.format != FORMAT:
        raise MisuseError(
            f"data directory {path} has format {meta.format}, but this version reads {FORMAT}; "
            "start the version that wrote it",
            ErrorCode.INVALID_CONFIG,
        )
    return meta


def _load_generations(path: Path) -> tuple[str, ...]:
    """Empty: the directory was never open in a release that names them."""
    file = path / _GENERATIONS
    text = DurableFile(file).read()
    if text is None:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{file} is damaged ({error}); remove it: nothing of the directory is trusted then, "
            "and what is missing is copied from the other brokers",
            ErrorCode.DATA_CORRUPTED,
        ) from error


def _check_owner(path: Path, meta: Meta, cluster_id: str | None, broker_id: BrokerId) -> None:
    if cluster_id and meta.cluster_id and meta.cluster_id != cluster_id:
        raise MisuseError(
            f"data directory {path} belongs to cluster {meta.cluster_id!r}, not to {cluster_id!r}; "
            f"point this broker at its own directory or at the cluster it belongs to",
            ErrorCode.CLUSTER_ID_MISMATCH,
        )
    if meta.broker_id != broker_id:
        raise MisuseError(
            f"data directory {path} belongs to broker {meta.broker_id}, not to broker "
            f"{broker_id}; start it with --broker-id {meta.broker_id} or with a different "
            "directory",
            ErrorCode.INVALID_CONFIG,
        )


def _running_boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""  # not Linux: only a clean stop counts


def _unusable(path: Path, error: OSError) -> MisuseError:
    return MisuseError(
        f"data directory {path} cannot be used: {error.strerror or error}; it must be a "
        "directory that this user can write to, with free space",
        ErrorCode.INVALID_CONFIG,
    )
