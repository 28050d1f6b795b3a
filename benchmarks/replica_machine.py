"""What one replica machine spends on idempotent produces, in a process of its own.

Runs on the code of any commit since 7da74ea, the last one before transactions: PYTHONPATH says
which. A leader of three replicas takes batches of ten producers in turn; each batch is appended,
persisted and acknowledged by both followers, four events, as in a quiet cluster with acks=all.
Prints microseconds per batch, the best of `rounds`, which was disturbed least: of the machine
alone, and with what a broker looks at after each event.
"""

import argparse
import gc
import json
import time

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication import contract as shared
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.types import (
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ProducerId,
    Sync,
)

try:
    from penstock.core.replication import contract_leader as leading
except ImportError:  # one contract for all, then
    leading = shared  # type: ignore[misc]

ME, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
EPOCH = LeaderEpoch(1)
PRODUCERS = 10
RECORDS = 10


def begun(log: shared.RecoveredLog) -> ReplicaMachine:
    """On a clock that is at 0; machines of earlier commits are not told."""
    try:
        return ReplicaMachine(ME, log, 0)
    except TypeError:
        return ReplicaMachine(ME, log)  # type: ignore[call-arg]


def led() -> ReplicaMachine:
    """The leader of an empty log, with both followers in sync."""
    empty = shared.RecoveredLog(
        log_end_offset=Offset(0),
        checkpoint=shared.Checkpoint(LeaderEpoch(0), Offset(0), Offset(0), ()),
    )
    machine = begun(empty)
    state = PartitionState(
        leader=ME, leader_epoch=EPOCH, isr=(ME, TWO, THREE), replicas=(ME, TWO, THREE), version=1
    )
    ready = machine.handle(shared.Assigned(state, shared.ReplicaConfig()), 0)
    machine.handle(shared.Persisted(ready.persist_id, True), 0)
    for follower in (TWO, THREE):
        machine.handle(leading.EpochQueried(follower, EPOCH, LeaderEpoch(-1)), 0)
        machine.handle(leading.FollowStarted(follower, EPOCH, Offset(0)), 0)
        machine.handle(leading.FollowerAcked(follower, EPOCH, Offset(0), Offset(0)), 0)
    return machine


def requests(count: int) -> list[leading.ProduceRequested]:
    """Batches of `RECORDS` records, of `PRODUCERS` producers in turn, each in sequence."""
    return [
        leading.ProduceRequested(
            request_id=number,
            batch=Batch(
                BatchHeader(
                    record_count=RECORDS,
                    first_timestamp_ms=1,
                    max_timestamp_ms=2,
                    uncompressed_bytes=1_000,
                    crc=7,
                    producer_id=ProducerId(number % PRODUCERS),
                    producer_epoch=0,
                    base_sequence=number // PRODUCERS * RECORDS,
                ),
                b"x",
            ),
            acks=Acks.ALL,
            sync=Sync.OS,
            deadline_ms=1_000_000,
        )
        for number in range(count)
    ]


def microseconds_per_batch(count: int, *, watched: bool) -> float:
    """Processor time of the four events of each of `count` batches.

    `watched`: and of what the broker's shell looks at after each event.
    """
    machine, pending = led(), requests(count)
    offset = answered = 0

    def handle(event: shared.Event) -> shared.Ready:
        ready = machine.handle(event, 0)
        if watched:
            machine.marks, machine.wants_tick  # noqa: B018 - what it costs is the question
        return ready

    gc.collect()
    gc.disable()
    began = time.process_time()
    for request in pending:
        ready = handle(request)
        handle(shared.Persisted(ready.persist_id, False))
        offset += RECORDS
        end = Offset(offset)
        handle(leading.FollowerAcked(TWO, EPOCH, end, Offset(0)))
        ready = handle(leading.FollowerAcked(THREE, EPOCH, end, Offset(0)))
        answered += len(ready.replies)
    took = time.process_time() - began
    gc.enable()
    assert answered == count, f"{answered} of {count} batches were acknowledged"
    return 1e6 * took / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    best = {
        name: min(microseconds_per_batch(args.batches, watched=watched) for _ in range(args.rounds))
        for name, watched in (("alone", False), ("watched", True))
    }
    print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main()
