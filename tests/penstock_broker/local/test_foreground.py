"""Signals of a cluster in the foreground, and files of tokens."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_broker.local.foreground import stop_signals
from penstock_broker.local.security import write_token

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {one: signal.getsignal(one) for one in SIGNALS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def raise_inside(number: signal.Signals) -> None:
    with stop_signals(later=lambda: None):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_it_unless_it_is_ignored(number: signal.Signals) -> None:
    """As `nohup` ignores that the terminal is closed."""
    signal.signal(number, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt):
        raise_inside(number)
    assert signal.getsignal(number) is signal.SIG_DFL
    signal.signal(number, signal.SIG_IGN)
    raise_inside(number)
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_token_that_cannot_be_written_is_in_no_other_file(tmp_path: Path) -> None:
    taken = tmp_path / "token"
    taken.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_token(taken, "secret")
    assert list(tmp_path.iterdir()) == [taken]
