"""A broker that may have lost writes says so in its logs before it tells the controller."""

from pathlib import Path

from support.local_broker import local_broker
from support.wire import make_batch

from penstock.core.replication.contract import MISSING, UNPROMISED, Checkpoint, EpochStart
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock_broker.datadir import DataDirectory
from penstock_broker.store.interface import PartitionWrite
from penstock_broker.store.losses import promise_nothing
from penstock_broker.store.rocks import RocksLogStore

KEYS = [ReplicaKey(TopicId("id"), partition) for partition in range(2)]
KNOWN = Checkpoint(LeaderEpoch(1), Offset(2), Offset(1), (EpochStart(LeaderEpoch(1), Offset(0)),))


def fill(path: Path) -> None:
    """Two logs [0, 3), committed up to 2, from 1 on."""
    store = RocksLogStore(path)
    batch = make_batch([b"a", b"b", b"c"]).stamped(Offset(0), LeaderEpoch(1), 0)
    for key in KEYS:
        write = PartitionWrite(store.open_slot(key), [batch], KNOWN)
        store.write([write], sync=True)
    store.close()


def stored(path: Path) -> list[tuple[int, int, int]]:
    """High watermark, log start and log end of each log."""
    store = RocksLogStore(path)
    found = [store.recover(store.open_slot(key)) for key in KEYS]
    store.close()
    return [
        (log.checkpoint.high_watermark, log.checkpoint.log_start_offset, log.log_end_offset)
        for log in found
    ]


def test_logs_keep_what_they_have_and_promise_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    store = RocksLogStore(tmp_path)
    promise_nothing(store)
    store.close()
    assert stored(tmp_path) == [(UNPROMISED, 1, 3)] * 2


def test_a_log_that_was_missing_still_is(tmp_path: Path) -> None:
    fill(tmp_path)
    store = RocksLogStore(tmp_path)
    slot = store.open_slot(KEYS[0])
    missing = Checkpoint(LeaderEpoch(3), MISSING, Offset(0), ())
    store.write([PartitionWrite(slot, truncate_to=Offset(0), checkpoint=missing)], sync=True)
    promise_nothing(store)
    store.close()
    assert [high_watermark for high_watermark, _, _ in stored(tmp_path)] == [MISSING, UNPROMISED]


def test_a_store_without_logs_has_nothing_to_take_back(tmp_path: Path) -> None:
    store = RocksLogStore(tmp_path)
    promise_nothing(store)
    assert store.slots() == {}
    store.close()


async def test_a_broker_takes_its_promises_back_before_its_loss_is_accepted(
    tmp_path: Path,
) -> None:
    """Killed after that, before it follows anyone, it must still know."""
    lost = DataDirectory.open(
        tmp_path, cluster_id=None, broker_id=BrokerId(0), boot_id="another kernel's"
    )
    lost.registration_accepted()
    fill(lost.log_path)
    lost.close(clean=False)
    async with local_broker(tmp_path):
        pass  # registered, and never told of its partitions
    directory = DataDirectory.open(tmp_path, cluster_id=None, broker_id=BrokerId(0))
    assert directory.data_intact, "the loss was accepted"
    assert stored(directory.log_path) == [(UNPROMISED, 1, 3)] * 2
    directory.close(clean=True)


async def test_a_broker_that_kept_everything_keeps_its_promises(tmp_path: Path) -> None:
    kept = DataDirectory.open(tmp_path, cluster_id=None, broker_id=BrokerId(0))
    kept.registration_accepted()
    fill(kept.log_path)
    kept.close(clean=True)
    async with local_broker(tmp_path):
        pass
    assert stored(tmp_path / "log") == [(2, 1, 3)] * 2
