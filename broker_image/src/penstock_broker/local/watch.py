"""Restarts crashed processes, after a pause that doubles while they keep crashing.

A thread, because blocking programs use `LocalCluster`. It only checks and calls back; the cluster
decides what may be restarted, and does it.
"""

import threading
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock_broker.local.server import ServerProcess

LOOK_EVERY_S = 0.2
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 30.0
"""After a process has run for this long, pauses start over with the first one."""


class RestartPause:
    """How long to wait before a process is restarted. Pure: times are passed in, in seconds."""

    __slots__ = ("_down_since", "_pause_s", "_up_since")

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._down_since: float | None = None
        self._up_since: float | None = None

    def is_due(self, running: bool, now_s: float) -> bool:
        """Called at every check; true once, when the pause after a crash is over."""
        if running:
            if self._up_since is None:
                self._up_since = now_s
            elif now_s - self._up_since >= STEADY_S:
                self._pause_s = FIRST_PAUSE_S
            self._down_since = None
            return False
        self._up_since = None
        if self._down_since is None:
            self._down_since = now_s
        if now_s - self._down_since < self._pause_s:
            return False
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._down_since = None
        return True


class Watcher:
    """Calls `restart(server)` for each of `watched()` that ended and whose pause is over.

    If that fails, as on a full disk, `tell` is told, and it is called again after another pause.
    """

    def __init__(
        self,
        watched: Callable[[], list[ServerProcess]],
        restart: Callable[[ServerProcess], None],
        tell: Callable[[str], None],
    ) -> None:
        self._watched = watched
        self._restart = restart
        self._tell = tell
        self._failed: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_watching(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        assert self._thread is None, "one watcher per cluster"
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="restart-crashed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No restart happens after this returns. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        pauses: dict[str, RestartPause] = {}
        while not self._stopping.wait(LOOK_EVERY_S):
            for server in self._watched():
                pause = pauses.setdefault(server.name, RestartPause())
                is_well = server.is_running and server.name not in self._failed
                if pause.is_due(is_well, time.monotonic()):
                    self._try_restart(server)

    def _try_restart(self, server: ServerProcess) -> None:
        try:
            self._restart(server)
        except (PenstockError, OSError) as error:
            self._failed.add(server.name)
            self._tell(f"{server.name} could not be restarted: {error}; it is tried again")
        else:
            self._failed.discard(server.name)
