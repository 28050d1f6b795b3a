"""What a broker does to its logs before it reports that they may lack unsynced writes.

    power loss ──▶ start: `promise_nothing`, fsynced ──▶ registration ──▶ leave all ISRs ──▶ follow

The loss is reported once. A broker that is killed between the report and following a leader must
still know afterwards that nobody relies on its logs: so it is written into them first (I4, I24).
"""

from dataclasses import replace

from penstock.core.replication.contract import UNPROMISED
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import LogStore, PartitionWrite


def promise_nothing(store: LogStore) -> None:
    """Marks every log, durably. Raises ClusterError (DISK_FULL, STORAGE_FAILED)."""
    writes = []
    for slot in store.slots().values():
        try:
            checkpoint = store.recover(slot).checkpoint
        except ClusterError as error:
            if error.code is not ErrorCode.DATA_CORRUPTED:
                raise
            continue  # whoever opens it finds the same, and has it copied again
        writes.append(
            PartitionWrite(
                slot,  # what was MISSING still is
                checkpoint=replace(
                    checkpoint, high_watermark=min(checkpoint.high_watermark, UNPROMISED)
                ),
            )
        )
    if writes:
        store.write(writes, sync=True)
