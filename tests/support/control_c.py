"""Ctrl-C at a chosen moment, while the main thread waits for another one."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_PATIENCE_S = 120.0


class ControlC:
    """Struck once."""

    def __init__(self) -> None:
        self.struck = False
        self._caught = threading.Event()

    def strike(self) -> None:
        """In another thread than the main one: returns when that one has it. Later calls do
        nothing."""
        if not self.struck:
            self.struck = True
            os.kill(os.getpid(), signal.SIGINT)
            assert self._caught.wait(_PATIENCE_S)

    def catch(self, *_: object) -> None:
        """The signal handler."""
        self._caught.set()
        raise KeyboardInterrupt


@contextmanager
def control_c() -> Iterator[ControlC]:
    """The block must be ended by it."""
    made = ControlC()
    before = signal.signal(signal.SIGINT, made.catch)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield made
    finally:
        signal.signal(signal.SIGINT, before)
    assert made.struck
