"""A process to which the system gives no thread, as with too small a `pids.max`."""

import threading

import pytest


def refuse_threads(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """Threads whose names begin so do not start; others do, or nothing could be tested."""

    def start_unless_named(self: threading.Thread) -> None:
        if self.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(self)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start_unless_named)
