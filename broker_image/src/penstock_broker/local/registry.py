"""Lists every local cluster of this user, wherever its data is, for `status`, `down` and clients.

    $XDG_STATE_HOME/penstock/local/<cluster>          a data directory (~/.local/state if not set)
                                  /<cluster>@<hash>   a link to one that --data-dir chose elsewhere

A link is named after its directory, so that clusters of one name do not replace each other's links.
The registry only says where to look: whether a cluster runs is in its `state.json`, whose
supervisor must be alive. So nothing is removed when a cluster stops; entries left by a crash, a
reboot or `rm -r` are skipped, and the next `register` removes dangling links. Standard library
only, as `state`.
"""

import contextlib
import hashlib
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MisuseError
from penstock_broker.local.state import FOLDER_MODE, LocalState, StateDirectory

LINK_MARK = "@"
"""Separates the name of a cluster, which cannot contain it, from the part that identifies its
directory."""


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """A cluster with a `state.json`: it runs, or it was killed with its supervisor."""

    root: Path
    state: LocalState

    @property
    def phase(self) -> str:
        """As recorded; `down` when its supervisor is gone."""
        return self.state.phase if self.state.is_supervised else "down"


def registry() -> Path:
    """Folder that lists this user's clusters. Raises MisuseError if there is no home directory."""
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise MisuseError(
            "there is no home directory for local clusters; set XDG_STATE_HOME"
        ) from error
    return Path(home) / "penstock" / "local"


def register(cluster: str, root: Path) -> None:
    """Makes a cluster in another directory findable. Raises OSError if nothing can be written."""
    place = registry()
    place.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    for entry in place.iterdir():
        if entry.is_symlink() and not entry.exists():  # its directory was removed
            entry.unlink(missing_ok=True)
    root = root.resolve()
    if root.parent != place.resolve():
        name = f"{cluster}{LINK_MARK}{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"
        with contextlib.suppress(FileExistsError):
            (place / name).symlink_to(root, target_is_directory=True)


def known_clusters() -> list[KnownCluster]:
    """Every registered cluster that was started and not stopped, by name, then by directory."""
    with contextlib.suppress(MisuseError):
        states = {root: StateDirectory(root).read() for root in _roots()}
        known = [KnownCluster(root, state) for root, state in states.items() if state is not None]
        return sorted(known, key=lambda one: (one.state.cluster, one.root))
    return []


def running_clusters() -> list[KnownCluster]:
    """Clusters whose supervisor is alive."""
    return [one for one in known_clusters() if one.state.is_supervised]


def find_root(cluster: str | None, data_dir: Path | None, *, stopped: bool = False) -> Path:
    """The directory of the cluster a command means: by directory, by name, or the only one.

    A running cluster is preferred to a killed one. A stopped one is chosen only with `stopped`, and
    must be named. Raises MisuseError if there is none, or more than one.
    """
    if data_dir is not None:
        return data_dir
    known = [one for one in known_clusters() if cluster in (None, one.state.cluster)]
    chosen = [one for one in known if one.state.is_supervised] or known
    if len(chosen) == 1:
        return chosen[0].root
    if chosen:
        raise MisuseError(f"there are {len(chosen)} local clusters; choose one: {_choices(chosen)}")
    kept = [root for root, name in _roots().items() if cluster in (None, name)] if stopped else []
    if len(kept) == 1 and cluster is not None:
        return kept[0]
    if kept:
        directories = " or ".join(_by_directory(root) for root in kept)
        raise MisuseError(f"no local cluster is running; to choose a stopped one: {directories}")
    raise MisuseError(_none(cluster))


def options_for(root: Path, *, by_directory: bool = False) -> str:
    """The options that make `penstock local down` stop this cluster, as typed in a shell.

    `by_directory`: options that stay valid whatever else is started later.
    """
    directory = f" {_by_directory(root)}"
    running = running_clusters()
    ours = [one for one in running if one.root.resolve() == root.resolve()]
    if by_directory or not ours:  # it could not be listed
        return directory
    if len(running) == 1:
        return ""
    name = ours[0].state.cluster
    same_name = [one for one in running if one.state.cluster == name]
    return directory if len(same_name) > 1 else f" --cluster {name}"


def _choices(clusters: Iterable[KnownCluster]) -> str:
    return " or ".join(
        f"{options_for(one.root).strip()} ({one.phase} on {one.state.bootstrap})"
        for one in clusters
    )


def _none(cluster: str | None) -> str:
    running = [one.state.cluster for one in running_clusters()]
    if cluster is not None and running:
        return f"no local cluster {cluster} is running, but {', '.join(running)}"
    return (
        f"no local cluster {cluster or ''}".rstrip() + " is running; start one with "
        "`penstock local up` (or name its directory with --data-dir)"
    )


def _by_directory(root: Path) -> str:
    return f"--data-dir {shlex.quote(str(root.resolve()))}"


def _roots() -> dict[Path, str]:
    """Directories that are or were clusters', each once, with the cluster's name."""
    place = registry()
    entries = sorted(place.iterdir()) if place.is_dir() else []
    return {
        entry.resolve() if entry.is_symlink() else entry: entry.name.partition(LINK_MARK)[0]
        for entry in entries
        if entry.is_dir()
    }
