"""The server of the console: what it does with signals."""

import signal
from collections.abc import Iterator

import pytest

from penstock.ui import server


@pytest.fixture
def _as_python_starts() -> Iterator[None]:
    """A SparkContext of an earlier test has left its own handler in this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_as_python_starts")
def test_ctrl_c_counts_from_the_moment_that_the_link_is_there() -> None:
    """Before that, it raises wherever the program is: in what swallows exceptions, too."""
    handlers: list[object] = []

    def announce(_url: str) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        signal.raise_signal(signal.SIGINT)

    with server.listen(0) as listener, pytest.raises(KeyboardInterrupt):
        server.serve(listener, "local", announce, lambda *_: None, "127.0.0.1:1")
    (handler,) = handlers
    assert handler is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
