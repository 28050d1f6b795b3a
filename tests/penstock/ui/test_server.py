"""The server of the console: what it does with signals."""

import signal

import pytest

from penstock.ui import server


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
