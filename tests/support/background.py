"""Something that a test does in a thread for as long as a block runs; what fails is kept."""

import threading
from abc import ABC, abstractmethod
from typing import Self

PAUSE_S = 0.01
"""Between a record and the next, of a load that only shows that writing goes on: more records would
take the cores from what the test waits for."""


class Background(ABC):
    """`_run` is called once, and returns soon after `_stop` is set."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failures: list[Exception] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...
