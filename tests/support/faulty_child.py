"""Entry point of a server process whose disk or clock does what a test says, else as `local.child`.

    PENSTOCK_TEST_FAULTS=folder python -P faulty_child.py broker --broker-id 0 …

`folder/kill` "decision before 0": the process is killed with -9 before it writes the next decision
of a transaction; "decision after 0": once the write is done, and nobody has heard of it. Process
ids instead of 0: those are killed. What else can be named: `support.faults.POINTS`.
`folder/free`: how many bytes are free on every disk. `folder/slow`: the seconds that every write
takes more. `folder/clock`: the milliseconds that its wall clock is ahead. `folder/coordinators`: no
coordinator can read its log. Files appear and go while the process runs (`support.faults` writes
them).
"""

import os
import runpy
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.batch import Batch, BatchFlags
from penstock.core.records import decode_batch
from penstock.core.transactions.records import BranchRecord, decode_key, decode_value
from penstock.core.types import Offset
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.clock import SystemClock
from penstock_broker.logged.host import MachineHost
from penstock_broker.store.interface import PartitionWrite
from penstock_broker.store.rocks import RocksLogStore

FOLDER = Path(os.environ["PENSTOCK_TEST_FAULTS"])
CUT = b"cut"
"""The key of the records at which a test lets a process die."""
_MARKER = BatchFlags.COMMIT | BatchFlags.ABORT
_OF_OFFSETS = {b'"pending"': "pending", b'"ended"': "ended"}
_statvfs = os.statvfs
_write = RocksLogStore.write
_try_write = RocksLogStore.try_write
_wall_ms = SystemClock.wall_ms
_read_log = MachineHost._read
_T = TypeVar("_T")


def points_of(batch: Batch) -> set[str]:
    """Which steps of a transaction this batch is."""
    if batch.header.flags & _MARKER:
        return {"marker"}
    if batch.header.flags & BatchFlags.TRANSACTIONAL:
        return {"data"}
    records = decode_batch(batch)
    found = set()
    for key, value in zip(records.keys(), records.values(), strict=True):
        if key == CUT:
            found.add("record")
        if key is None or value is None:
            continue
        found |= {point for kind, point in _OF_OFFSETS.items() if kind in key}
        if b'"branch"' not in key:
            continue
        what = decode_key(key)
        branch = decode_value(what, value) if what is not None else None
        if isinstance(branch, BranchRecord):
            found.add(_step(branch))
    return found


def _step(branch: BranchRecord) -> str:
    if branch.is_open:
        return "join"
    return "decision" if branch.finishing else "finished"


def _dying(writes: Sequence[PartitionWrite], write: Callable[[], _T]) -> _T:
    with suppress(FileNotFoundError):
        time.sleep(float((FOLDER / "slow").read_text()))
    try:
        point, when, *victims = (FOLDER / "kill").read_text().split()
    except FileNotFoundError:
        return write()
    hit = any(point in points_of(batch) for one in writes for batch in one.batches)
    if hit and when == "before":
        _kill(victims)
    written = write()
    if hit and written is not False:
        _kill(victims)
    return written


def _kill(victims: Sequence[str]) -> None:
    try:
        (FOLDER / "kill").unlink()
    except FileNotFoundError:
        return  # another thread's write has done it
    for victim in victims:
        os.kill(int(victim) or os.getpid(), signal.SIGKILL)


def _dying_write(self: RocksLogStore, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
    _dying(writes, lambda: _write(self, writes, sync=sync))


def _dying_try_write(self: RocksLogStore, writes: Sequence[PartitionWrite]) -> bool:
    return _dying(writes, lambda: _try_write(self, writes))


def _told_space(path: str | Path) -> os.statvfs_result:
    real = _statvfs(path)
    try:
        free = int((FOLDER / "free").read_text())
    except FileNotFoundError:
        return real
    blocks = free // real.f_frsize
    return os.statvfs_result((*real[:3], blocks, blocks, *real[5:]))


def _shown_ms(self: SystemClock) -> int:
    try:
        return _wall_ms(self) + int((FOLDER / "clock").read_text())
    except FileNotFoundError:
        return _wall_ms(self)


async def _read_damaged(self: MachineHost[Any, Any, Any], end: Offset) -> int:
    if (FOLDER / "coordinators").exists():
        raise ClusterError("a record of a newer release", ErrorCode.DATA_CORRUPTED)
    return await _read_log(self, end)


if __name__ == "__main__":
    RocksLogStore.write = _dying_write  # type: ignore[method-assign]
    RocksLogStore.try_write = _dying_try_write  # type: ignore[method-assign]
    os.statvfs = _told_space  # type: ignore[assignment]
    SystemClock.wall_ms = _shown_ms  # type: ignore[method-assign]
    MachineHost._read = _read_damaged  # type: ignore[method-assign]
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
