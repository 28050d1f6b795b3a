"""One replica machine under a hand-driven clock (`support.replica_driver`)."""

from typing import Any

import pytest
from support.replica_driver import Drive, Driver, recovered

from penstock.core.replication import contract as c


@pytest.fixture
def drive() -> Drive:
    """drive(end, **recovered fields) -> Driver over a log that was found on disk."""

    def start(end: int = 0, *, intact: bool = True, **fields: Any) -> Driver:
        if not intact:
            fields["high_watermark"] = c.UNPROMISED
        return Driver(recovered(end, **fields))

    return start


@pytest.fixture
def leader(drive: Drive) -> Driver:
    """Broker 1 leads epoch 1 of an empty log; 2 and 3 follow; all are in the ISR; min ISR 2."""
    driver = drive()
    driver.assign()
    driver.written(synced=True)
    driver.follow(2, 0)
    driver.follow(3, 0)
    return driver


@pytest.fixture
def follower(drive: Drive) -> Driver:
    """Broker 1 follows 2 in epoch 1, from offset 0 of an empty log."""
    driver = drive()
    driver.assign(2)
    driver.written(synced=True)
    driver.answer_epoch(-1, 0)
    return driver
