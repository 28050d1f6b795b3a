"""All brokers lost power, and the log of a coordinator ends before its last decisions.

Partitions have stored later epochs of its producer: their logs lost less.
"""

from support.replica_driver import Driver, recovered
from support.transaction_desk import P0, Desk

from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT


def test_the_next_producer_can_write_where_later_epochs_are_known(desk: Desk) -> None:
    known = desk.init()
    partition = Driver(recovered())
    partition.assign(1)
    partition.written(synced=True)
    number = known[0] - TRANSACTIONAL_PRODUCER_BIT
    partition.end(500, producer=number)
    partition.commit()
    producer_id, epoch = desk.init(instance="restarted")
    desk.join((producer_id, epoch), P0)
    number = producer_id - TRANSACTIONAL_PRODUCER_BIT
    partition.transact(producer=number, epoch=epoch)
    partition.joined()
    partition.commit()
    assert partition.requests == 2
    assert partition.marks.log_end_offset == 2, "its record is behind the old marker"
