"""What only a store on a real disk can get wrong: damage, full disks, kills, restarts, space."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import rocksdict

from penstock.core.batch import Batch, BatchHeader, compute_crc, pack_batch
from penstock.core.replication.contract import Checkpoint
from penstock.core.types import LeaderEpoch, Offset, ProducerId, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store import layout
from penstock_broker.store.interface import DamagedLogError, PartitionWrite, Rewrite, Slot
from penstock_broker.store.options import StoreOptions, database_options
from penstock_broker.store.rocks import RocksLogStore

END = Offset(2**62)
KEY = ReplicaKey(TopicId("orders"), 0)
UNGUARDED = StoreOptions(min_free_bytes=-(1 << 40))  # RocksDB itself runs into the wall


def batch(offset: int, count: int = 1, size: int = 5000, time_ms: int | None = None) -> Batch:
    """Random payload of its own seed, so that one batch is never mistaken for another."""
    payload = random.Random(offset).randbytes(size - 72)
    at_ms = 1000 + offset if time_ms is None else time_ms
    header = BatchHeader(
        record_count=count,
        first_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms,
        uncompressed_bytes=len(payload),
        crc=0,
        producer_id=ProducerId(7),
        producer_epoch=0,
        base_sequence=offset,
        base_offset=Offset(offset),
        leader_epoch=LeaderEpoch(1),
    )
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


def write(store: RocksLogStore, slot: Slot, *batches: Batch, sync: bool = False) -> None:
    store.write([PartitionWrite(slot, batches)], sync=sync)


def eventually(attempt: Callable[[], None], within_s: float) -> None:
    """Repeats `attempt` until it raises no ClusterError any more."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            attempt()
        except ClusterError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.1)
        else:
            return


def fill(store: RocksLogStore, slot: Slot, size: int) -> tuple[int, ClusterError]:
    """Appends batches until one is refused: how many were not, and why."""
    for n in range(1000):
        try:
            write(store, slot, batch(n, size=size))
        except ClusterError as error:
            return n, error
    raise AssertionError("the disk never became full")


def flip(path: Path, position: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[position] ^= 0x10
    path.write_bytes(stored)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A volume of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"a small volume cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=120)


def grow(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=96m", str(disk)], check=True, timeout=120)


# ------------------------------------------------------------------ damage


def stored_on_disk(path: Path, count: int = 10) -> Slot:
    """Writes `count` batches and brings them into blob files."""
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    write(store, slot, *(batch(n) for n in range(count)))
    store.reclaim()
    store.close()
    return slot


def tamper(path: Path, key: bytes, value: bytes | None) -> None:
    """Changes a batch as RocksDB would: its own checksums are right afterwards."""
    options, state = database_options(StoreOptions())
    database = rocksdict.Rdict(str(path), options, column_families={"state": state})
    if value is None:
        database.delete(key)
    else:
        database.put(key, value)
    database.close()


def test_a_flipped_bit_in_a_blob_file_is_never_served(path: Path) -> None:
    slot = stored_on_disk(path)
    [blob] = path.glob("*.blob")
    # Inside the payload of the batch at offset 4: each blob is key, value and a small header.
    position = blob.read_bytes().index(batch(4).payload) + 2000
    flip(blob, position)
    store = RocksLogStore(path)
    with pytest.raises(ClusterError) as caught:
        store.read(slot, Offset(4), 1, END)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    assert f"slot {slot} offset 4" in caught.value.message
    assert store.read(slot, Offset(5), 1, END) == [batch(5)]
    assert store.read(slot, Offset(0), 1 << 30, END) == [batch(n) for n in range(4)]
    store.close()


def test_bytes_changed_behind_rocksdbs_back_fail_our_own_check(path: Path) -> None:
    slot = stored_on_disk(path)
    damaged = bytearray(pack_batch(batch(4)))
    damaged[500] ^= 1
    tamper(path, layout.batch_key(slot, 4), bytes(damaged))
    store = RocksLogStore(path)
    assert store.read(slot, Offset(0), 1 << 30, END) == [batch(n) for n in range(4)]
    with pytest.raises(ClusterError, match=f"slot {slot} offset 4") as caught:
        store.read(slot, Offset(4), 1 << 30, END)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    store.close()


def test_a_sound_batch_at_the_wrong_place_is_not_served(path: Path) -> None:
    slot = stored_on_disk(path)
    tamper(path, layout.batch_key(slot, 4), pack_batch(batch(3)))
    store = RocksLogStore(path)
    with pytest.raises(ClusterError, match="differs from the index") as caught:
        store.read(slot, Offset(4), 1, END)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    store.close()


def test_a_writer_that_is_always_faster_does_not_look_like_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every look at what the index chose, its first batch is removed."""
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    write(store, slot, *(batch(n) for n in range(50)))
    inner, removed = store._database.stored_batches, iter(range(1, 50))

    def remove_one() -> None:
        start = Offset(next(removed))
        store.try_write([PartitionWrite(slot, log_start_offset=start)])  # not while a reader reads

    def outrun(keys: Sequence[bytes]) -> list[bytes] | None:
        writer = threading.Thread(target=remove_one)
        writer.start()
        writer.join()
        return inner(keys)

    monkeypatch.setattr(store._database, "stored_batches", outrun)
    found = store.read(slot, Offset(0), 100_000, END)
    store.close()
    assert [each.base_offset for each in found] == list(
        range(found[0].base_offset, 20 + found[0].base_offset)
    )
    assert found[0].base_offset > 1


def test_a_missing_batch_is_not_an_empty_log(path: Path) -> None:
    slot = stored_on_disk(path)
    tamper(path, layout.batch_key(slot, 4), None)
    store = RocksLogStore(path)
    with pytest.raises(ClusterError) as caught:
        store.read(slot, Offset(4), 1, END)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    store.close()


def test_a_lost_blob_file_is_noticed(path: Path) -> None:
    slot = stored_on_disk(path)
    for blob in path.glob("*.blob"):
        blob.unlink()

    def use() -> None:
        store = RocksLogStore(path)
        try:
            store.read(slot, Offset(0), 1, END)
        finally:
            store.close()

    with pytest.raises(ClusterError) as caught:
        use()
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_a_damaged_index_does_not_look_like_the_end_of_the_log(path: Path) -> None:
    slot = stored_on_disk(path, count=200)
    [table] = [f for f in path.glob("*.sst") if layout.index_prefix(slot) in f.read_bytes()]
    flip(table, 9000)  # an index block in the middle
    store = RocksLogStore(path)
    for ask in (
        lambda: store.recover(slot),
        lambda: store.read(slot, Offset(0), 1 << 30, END),
        lambda: store.find_timestamp(slot, 1100, END),
    ):
        with pytest.raises(ClusterError) as caught:
            ask()
        assert caught.value.code is ErrorCode.DATA_CORRUPTED
    store.close()


@pytest.mark.parametrize(
    "write",
    [
        {"log_start_offset": Offset(190)},
        {"truncate_to": Offset(10)},
        {"rewrites": [Rewrite([batch(offset) for offset in range(60, 140)])]},
    ],
    ids=lambda write: next(iter(write)),
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_write_that_a_damaged_index_is_in_the_way_of_names_the_log_and_does_nothing(
    path: Path, write: dict[str, Any], at_once: bool
) -> None:
    slot = stored_on_disk(path, count=200)
    [table] = [f for f in path.glob("*.sst") if layout.index_prefix(slot) in f.read_bytes()]
    flip(table, 9000)
    store = RocksLogStore(path)
    sound = store.open_slot(ReplicaKey(TopicId("sound"), 0))
    writes = [PartitionWrite(sound, [batch(0)]), PartitionWrite(slot, **write)]
    attempt = store.try_write if at_once else partial(store.write, sync=True)
    with pytest.raises(DamagedLogError) as caught:
        attempt(writes)
    assert (caught.value.slot, caught.value.code) == (slot, ErrorCode.DATA_CORRUPTED)
    assert store.recover(sound).log_end_offset == 0
    assert store.header(slot, Offset(0)) == batch(0).header
    assert store.header(slot, Offset(199)) == batch(199).header
    store.write(writes[:1], sync=True)
    assert store.recover(sound).log_end_offset == 1
    store.close()


def read_back(path: Path, slot: Slot, truth: list[Batch]) -> ErrorCode | None:
    """None: everything is there and right. Otherwise what the store said."""
    try:
        store = RocksLogStore(path)
    except ClusterError as error:
        return error.code
    found: list[Batch] = []
    try:
        while len(found) < len(truth):  # a read ends before a damaged batch; the next one raises
            start = found[-1].next_offset if found else Offset(0)
            part = store.read(slot, start, 1 << 30, END)
            assert part, f"nothing at offset {start}, and no error"
            found += part
    except ClusterError as error:
        assert found == truth[: len(found)]
        return error.code
    finally:
        store.close()
    assert found == truth
    return None


def test_random_damage_anywhere_is_reported_or_harmless(path: Path, tmp_path: Path) -> None:
    """Whatever bit of whatever file flips: an error, or exactly what was written."""
    slot = stored_on_disk(path, count=5)
    truth = [batch(n) for n in range(5)]
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    files = [f for f in path.iterdir() if f.suffix in (".sst", ".blob", ".log")]
    outcomes: set[ErrorCode | None] = set()
    for round_number in range(30):
        copy = tmp_path / f"copy{round_number}"
        subprocess.run(["cp", "-r", str(path), str(copy)], check=True, timeout=120)
        victim = copy / rng.choice(files).name
        if victim.stat().st_size == 0:
            continue
        flip(victim, rng.randrange(victim.stat().st_size))
        outcomes.add(read_back(copy, slot, truth))
    assert outcomes <= {None, ErrorCode.DATA_CORRUPTED, ErrorCode.STORAGE_FAILED}
    assert ErrorCode.DATA_CORRUPTED in outcomes


def test_damage_in_a_table_of_batches_does_not_crash_the_process(path: Path) -> None:
    """RocksDB crashes when it follows some damaged offsets in a block that it did not verify.

    In another process, because a crash would end this one.
    """
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_rocks as t
        path = t.Path({str(path)!r})
        slot = t.stored_on_disk(path, count=60)
        index = t.layout.index_prefix(slot)
        [table] = [f for f in path.glob("*.sst") if index not in f.read_bytes()]
        sound = table.read_bytes()
        truth = [t.batch(n) for n in range(60)]
        for start in range(len(sound) // 3, len(sound), 16):
            end = min(start + 16, len(sound))
            damaged = bytes(byte ^ 0x80 for byte in sound[start:end])
            table.write_bytes(sound[:start] + damaged + sound[end:])
            print(t.read_back(path, slot, truth), start, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-200:], done.stderr)
    assert str(ErrorCode.DATA_CORRUPTED) in done.stdout.split()


def wal_with_damage_in_the_middle(path: Path) -> Slot:
    """Ten writes that are only in the write-ahead log; the fifth is damaged."""
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_rocks as t
        store = t.RocksLogStore(t.Path({str(path)!r}))
        slot = store.open_slot(t.KEY)
        for n in range(10):
            t.write(store, slot, t.batch(n), sync=True)
        print(slot, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    wal = max(path.glob("*.log"), key=lambda file: file.stat().st_size)
    flip(wal, wal.read_bytes().index(batch(4).payload) + 100)
    return Slot(int(done.stdout))


def test_a_damaged_write_ahead_log_is_refused_not_silently_cut(path: Path) -> None:
    wal_with_damage_in_the_middle(path)
    with pytest.raises(ClusterError) as caught:
        RocksLogStore(path)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_after_a_power_loss_everything_up_to_the_damage_is_kept(path: Path) -> None:
    slot = wal_with_damage_in_the_middle(path)
    store = RocksLogStore(path, StoreOptions(strict_wal=False))
    assert store.read(slot, Offset(0), 1 << 30, END) == [batch(n) for n in range(4)]
    assert store.recover(slot).log_end_offset == 4
    write(store, slot, batch(4))
    store.close()


# ------------------------------------------------------------------ full disks and failing ones


def test_appends_stop_before_the_disk_is_full_and_retention_still_works(small_disk: Path) -> None:
    options = StoreOptions(min_free_bytes=8 << 20, write_buffer_bytes=2 << 20)
    store = RocksLogStore(small_disk / "log", options)
    slot = store.open_slot(KEY)
    written, refusal = fill(store, slot, 200_000)
    assert refusal.code is ErrorCode.DISK_FULL
    assert "free" in refusal.message
    assert written > 10
    assert len(store.read(slot, Offset(0), 1 << 30, END)) == written
    checkpoint = Checkpoint(LeaderEpoch(1), Offset(written), Offset(0), ())
    store.write(
        [PartitionWrite(slot, checkpoint=checkpoint, log_start_offset=Offset(written))], sync=True
    )
    store.reclaim()
    eventually(lambda: write(store, slot, batch(written, size=200_000)), within_s=20)
    assert store.recover(slot).log_end_offset == written + 1
    store.close()


def test_a_full_disk_refuses_writes_serves_reads_and_resumes_by_itself(small_disk: Path) -> None:
    path = small_disk / "log"
    store = RocksLogStore(path, UNGUARDED)
    slot = store.open_slot(KEY)
    written, refusal = fill(store, slot, 1 << 20)
    assert refusal.code is ErrorCode.DISK_FULL
    with pytest.raises(ClusterError):
        write(store, slot, batch(written))
    everything = store.read(slot, Offset(0), 1 << 30, END)
    assert [found.base_offset for found in everything] == list(range(written))
    assert store.recover(slot).log_end_offset == written
    grow(small_disk)
    # The refused batch comes again, smaller: nothing of the failed writes may be left.
    eventually(lambda: write(store, slot, batch(written, size=3000), sync=True), within_s=30)
    store.close()
    store = RocksLogStore(path, UNGUARDED)
    assert store.recover(slot).log_end_offset == written + 1
    assert store.read(slot, Offset(written), 1 << 30, END) == [batch(written, size=3000)]
    assert len(store.read(slot, Offset(0), 1 << 30, END)) == written + 1
    store.close()


def redirect_wal(path: Path, device: str) -> None:
    """Puts `device` in the place of this process's open write-ahead log."""
    newest = max(path.glob("*.log"), key=lambda file: int(file.stem))
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and entry.readlink() == newest:
            target = os.open(device, os.O_WRONLY)
            os.dup2(target, int(entry.name))
            os.close(target)
            return
    raise AssertionError(f"{newest} is not open")


def test_after_a_failed_fsync_nothing_more_is_written_but_reads_go_on(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    write(store, slot, batch(0), sync=True)
    redirect_wal(path, "/dev/null")  # takes every write, refuses fsync
    with pytest.raises(ClusterError, match="fsync") as caught:
        write(store, slot, batch(1), sync=True)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    with pytest.raises(ClusterError, match="restart the broker"):
        write(store, slot, batch(2))
    assert store.read(slot, Offset(0), 1, END) == [batch(0)]
    with pytest.raises(ClusterError):
        store.close()
    store = RocksLogStore(path)
    assert store.read(slot, Offset(0), 1, END)[0] == batch(0)
    write(store, slot, *[b for b in [batch(1)] if store.recover(slot).log_end_offset == 1])
    store.close()


class FailsOnce:
    """RocksDB's handle: the first fsync fails, once the next one is on its way; that succeeds,
    although the kernel has given up the pages of the first."""

    def __init__(self, batches: rocksdict.Rdict) -> None:
        self._batches = batches
        self.second_may_begin = threading.Event()
        self.fsyncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def flush_wal(self, *, sync: bool) -> None:
        self.fsyncs += 1
        if self.fsyncs == 1:
            self.second_may_begin.wait(60)
            raise Exception("IO error: While fdatasync: Input/output error")  # noqa: TRY002
        self._batches.flush_wal(sync=sync)


def test_nobody_is_told_by_another_fsync_that_what_one_lost_is_on_disk(path: Path) -> None:
    store = RocksLogStore(path)
    slots = [store.open_slot(ReplicaKey(TopicId("orders"), n)) for n in range(2)]
    store._database.batches = disk = cast("Any", FailsOnce(store._database.batches))
    answers: list[ErrorCode | None] = []

    def write_and_note(slot: Slot) -> None:
        try:
            write(store, slot, batch(0), sync=True)
            answers.append(None)
        except ClusterError as error:
            answers.append(error.code)

    threads = [threading.Thread(target=write_and_note, args=(slot,)) for slot in slots]
    threads[0].start()
    eventually(lambda: check_at_least(disk.fsyncs, 1), within_s=60)
    threads[1].start()
    eventually(lambda: check_at_least(len(store.read(slots[1], Offset(0), 1, END)), 1), within_s=60)
    disk.second_may_begin.set()
    for thread in threads:
        thread.join(60)
    assert answers == [ErrorCode.STORAGE_FAILED] * 2
    with pytest.raises(ClusterError):
        store.close()
    assert disk.fsyncs == 1


def check_at_least(found: int, least: int) -> None:
    if found < least:
        raise ClusterError(f"{found}, not yet {least}")


# ------------------------------------------------------------------ kill, restart, space


def test_every_successful_write_survives_kill_9(path: Path) -> None:
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_rocks as t
        store = t.RocksLogStore(t.Path({str(path)!r}))
        slots = [store.open_slot(t.ReplicaKey(t.TopicId("orders"), n)) for n in range(4)]
        n = 0
        while True:
            t_writes = [t.PartitionWrite(slot, [t.batch(n)]) for slot in slots]
            store.write(t_writes, sync=n % 50 == 0)
            n += 1
            print(n, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    acknowledged = 0
    for line in process.stdout:
        acknowledged = int(line)
        if acknowledged == 400:
            process.kill()
            break
    # What it printed before it died was acknowledged too.
    rest = process.stdout.read().splitlines()
    process.stdout.close()
    process.wait(timeout=120)
    acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
    store = RocksLogStore(path)
    assert len(store.slots()) == 4
    ends = set()
    for slot in store.slots().values():
        end = store.recover(slot).log_end_offset
        ends.add(end)
        assert end >= acknowledged
        assert store.read(slot, Offset(0), 1 << 30, END) == [batch(n) for n in range(end)]
    assert len(ends) == 1, f"one write reached some partitions only: {ends}"
    store.close()


def test_recovery_reads_only_the_headers_behind_the_newest_snapshot(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    write(store, slot, *(batch(n, size=100) for n in range(1000)))
    producers = store.recover(slot).producers
    store.write([PartitionWrite(slot, producers=producers)], sync=False)
    write(store, slot, *(batch(n, size=100) for n in range(1000, 1007)))
    store.close()
    store = RocksLogStore(path)
    recovered = store.recover(slot)
    assert recovered.log_end_offset == 1007
    assert recovered.producers[0].batches[-1].base_offset == 1006
    assert store.headers_scanned == 7
    store.close()


def test_old_producer_snapshots_go(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    for n in range(30):
        mark = Checkpoint(LeaderEpoch(1), Offset(max(0, n - 2)), Offset(0), ())
        store.write([PartitionWrite(slot, [batch(n)], mark, producers=[])], sync=False)
    # The newest at or below the high watermark of 27, and those that truncation may remove.
    assert store._database.index.producer_snapshots(slot) == [27, 28, 29, 30]
    store.close()


def test_recovery_retention_and_time_look_up_read_no_payload(path: Path) -> None:
    """All payloads are damaged, and it does not matter to them."""
    slot = stored_on_disk(path, count=20)
    [blob] = path.glob("*.blob")
    stored = bytearray(blob.read_bytes())
    for n in range(20):
        stored[stored.index(batch(n).payload) + 50] ^= 1
    blob.write_bytes(stored)
    store = RocksLogStore(path)
    assert store.recover(slot).log_end_offset == 20
    assert store.size_bytes(slot) == 20 * 5000
    found = store.find_timestamp(slot, 1007, END)
    assert found is not None
    assert found.offset == 7
    assert store.retention_start(slot, older_than_ms=1003, max_bytes=None, end=END) == 3
    assert store.retention_start(slot, older_than_ms=None, max_bytes=50_000, end=END) == 10
    with pytest.raises(ClusterError):
        store.read(slot, Offset(0), 1, END)
    store.close()


def test_a_write_that_outruns_the_disk_waits_and_loses_nothing(path: Path) -> None:
    store = RocksLogStore(path, StoreOptions(write_buffer_bytes=1 << 20, write_buffers=2))
    slot = store.open_slot(KEY)
    written = 0
    while store.stalls == 0 and written < 500:
        write(store, slot, *(batch(n, size=1 << 20) for n in (written, written + 1)))
        written += 2
    assert store.stalls > 0
    for n in range(0, written, 50):
        assert store.read(slot, Offset(n), 1, END) == [batch(n, size=1 << 20)]
    assert store.size_bytes(slot) == written << 20
    store.close()


def test_a_disk_that_takes_nothing_for_too_long_is_given_up_in_words(path: Path) -> None:
    options = StoreOptions(write_buffer_bytes=1 << 20, write_buffers=2, stall_timeout_s=0.0)
    store = RocksLogStore(path, options)
    slot = store.open_slot(KEY)
    written = 0
    with pytest.raises(ClusterError) as refused:  # noqa: PT012 - one of them is the first to wait
        while written < 500:
            write(store, slot, *(batch(n, size=1 << 20) for n in (written, written + 1)))
            written += 2
    assert refused.value.code is ErrorCode.STORAGE_FAILED
    assert f"the disk of {path} has taken nothing for 0 s, the limit" in refused.value.message
    assert store.size_bytes(slot) == written << 20
    store.close()


def test_who_does_not_wait_is_told_that_the_disk_does_not_keep_up(path: Path) -> None:
    store = RocksLogStore(path, StoreOptions(write_buffer_bytes=1 << 20, write_buffers=2))
    slot = store.open_slot(KEY)
    written = 0
    while written < 500 and store.try_write(
        [PartitionWrite(slot, [batch(n, size=1 << 20) for n in (written, written + 1)])]
    ):
        written += 2
    assert written < 500
    assert store.size_bytes(slot) == written << 20
    write(store, slot, batch(written, size=1 << 20))  # it waits
    assert store.recover(slot).log_end_offset == written + 1
    store.close()


def test_nobody_waits_for_another_writer(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    outcomes: list[bool] = []
    with store._writing:
        other = threading.Thread(
            target=lambda: outcomes.append(store.try_write([PartitionWrite(slot, [batch(0)])]))
        )
        other.start()
        other.join(60)
    assert outcomes == [False]
    assert store.recover(slot).log_end_offset == 0
    store.close()


def disk_bytes(path: Path) -> int:
    return sum(f.stat().st_size for f in path.iterdir() if f.suffix in (".blob", ".sst"))


@pytest.mark.parametrize("single_deletes_max", [0, 256])
def test_reclaim_gives_removed_batches_back_to_the_file_system(
    path: Path, single_deletes_max: int
) -> None:
    options = StoreOptions(write_buffer_bytes=1 << 20, single_deletes_max=single_deletes_max)
    store = RocksLogStore(path, options)
    slots = [store.open_slot(ReplicaKey(TopicId("orders"), n)) for n in range(3)]
    size = 100_000
    for n in range(100):
        store.write([PartitionWrite(slot, [batch(n, size=size)]) for slot in slots], sync=False)
    store.reclaim()
    assert disk_bytes(path) < 31_000_000
    for slot in slots:
        checkpoint = Checkpoint(LeaderEpoch(1), Offset(100), Offset(0), ())
        store.write(
            [PartitionWrite(slot, checkpoint=checkpoint, log_start_offset=Offset(80))], sync=False
        )
    store.reclaim()
    kept = sum(store.size_bytes(slot) for slot in slots)
    assert kept == 3 * 20 * size
    # The write buffers that straddle the new start stay whole: about one per side.
    assert disk_bytes(path) < kept + 4 * options.write_buffer_bytes
    assert [b.base_offset for b in store.read(slots[1], Offset(0), 1 << 30, END)] == [
        *range(80, 100)
    ]
    store.drop(slots[1])
    store.reclaim()
    assert disk_bytes(path) < kept + 4 * options.write_buffer_bytes
    store.close()
    store = RocksLogStore(path, options)
    assert len(store.read(slots[2], Offset(0), 1 << 30, END)) == 20
    store.close()


def test_a_topic_that_is_kept_does_not_pin_what_others_wrote_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StoreOptions(write_buffer_bytes=256 << 10)
    store = RocksLogStore(path, options)
    short, long = (store.open_slot(ReplicaKey(TopicId(name), 0)) for name in ("short", "long"))
    kept = 4 * options.write_buffer_bytes
    pinned: list[int] = []
    collect = store._database.collect_garbage

    def noted(least_bytes: int) -> None:
        """A collection that begins here may be over by the time that `reclaim` returns."""
        pinned.append(store._database.garbage_bytes)
        collect(least_bytes)

    monkeypatch.setattr(store._database, "collect_garbage", noted)
    for n in range(120):
        big = [batch(at, size=32_000) for at in range(8 * n, 8 * n + 8)]
        store.write([PartitionWrite(short, big)], sync=False)
        store.write([PartitionWrite(long, [batch(n, size=1_000)])], sync=False)
        start = store.retention_start(short, older_than_ms=None, max_bytes=kept, end=END)
        if start is not None:
            checkpoint = Checkpoint(LeaderEpoch(1), start, Offset(0), ())
            write = PartitionWrite(short, checkpoint=checkpoint, log_start_offset=start)
            store.write([write], sync=False)
            store.reclaim()
            pinned.append(store.load().garbage_bytes)
    assert max(pinned) >= 8 * options.write_buffer_bytes, "it is let grow to this"
    needed = store.size_bytes(short) + store.size_bytes(long)
    limit = 3 * (needed + 8 * options.write_buffer_bytes)
    assert 3 * limit < 120 * 8 * 32_000, "or nothing would be shown"
    eventually(lambda: check_at_most(disk_bytes(path), limit), within_s=60)
    assert [b.base_offset for b in store.read(long, Offset(0), 1 << 30, END)] == [*range(120)]
    store.close()


def check_at_most(found: int, limit: int) -> None:
    if found > limit:
        raise ClusterError(f"{found} bytes on disk, the limit is {limit}")


def test_a_damaged_producer_snapshot_is_reported(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    store.write([PartitionWrite(slot, [batch(0)], producers=[])], sync=False)
    store.close()
    options, state = database_options(StoreOptions())
    database = rocksdict.Rdict(str(path), options, column_families={"state": state})
    family = database.get_column_family("state")
    family.put(layout.producers_key(slot, 1), b"\x09future")
    family.close()
    database.close()
    store = RocksLogStore(path)
    with pytest.raises(ClusterError, match="version") as caught:
        store.recover(slot)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    store.close()


def test_another_layout_version_is_refused(path: Path) -> None:
    stored_on_disk(path)
    options, state = database_options(StoreOptions())
    database = rocksdict.Rdict(str(path), options, column_families={"state": state})
    family = database.get_column_family("state")
    family.put(layout.VERSION_KEY, layout.pack_u32(99))
    family.close()
    database.close()
    with pytest.raises(ClusterError, match="layout version 99"):
        RocksLogStore(path)


def test_two_stores_in_one_directory_are_refused(path: Path) -> None:
    store = RocksLogStore(path)
    with pytest.raises(ClusterError) as caught:
        RocksLogStore(path)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    store.close()
    RocksLogStore(path).close()


def test_a_closed_store_says_so_and_closes_twice(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    store.close()
    store.close()
    with pytest.raises(ClusterError, match="closed"):
        store.read(slot, Offset(0), 1, END)


def test_closing_waits_for_readers(path: Path) -> None:
    store = RocksLogStore(path)
    slot = store.open_slot(KEY)
    write(store, slot, *(batch(n) for n in range(200)))
    started = threading.Event()
    last_words: list[str] = []

    def reader() -> None:
        try:
            while len(store.read(slot, Offset(0), 1 << 30, END)) == 200:
                started.set()
        except ClusterError as error:
            last_words.append(error.message)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(timeout=120)
    store.close()
    for thread in threads:
        thread.join(timeout=120)
    assert last_words == ["the log store is closed"] * 3
    RocksLogStore(path).close()


def test_a_process_with_an_idle_store_stays_small(path: Path) -> None:
    """The store's share of the 200 MB an idle broker may take; 1,000 slots, after a load."""
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_rocks as t
        store = t.RocksLogStore(t.Path({str(path)!r}))
        slots = [store.open_slot(t.ReplicaKey(t.TopicId("orders"), n)) for n in range(1000)]
        for n in range(2):
            store.write([t.PartitionWrite(s, [t.batch(n, size=2000)]) for s in slots], sync=False)
        for slot in slots:
            store.recover(slot)
        status = t.Path("/proc/self/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        print(line.split()[1])
        store.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert int(done.stdout) < 150_000
