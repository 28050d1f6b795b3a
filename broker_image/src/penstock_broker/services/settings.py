"""What a topic's settings say of a batch that is to be appended: its size, its keys, its times.

    Producing ─▶ check_settings ─▶ when it is appended, or why not ─▶ ProduceRequested.refusal

Settings change while batches are on their way. So it is not the last word: the machine knows
whether the batch was appended before, and then its producer has to hear that.
"""

from penstock.core.batch import Batch, BatchHeader
from penstock.core.compaction.keymap import check_keys
from penstock.core.records import check_size
from penstock.core.topic import TimestampType, TopicConfig
from penstock.core.wall_clock import WallTime
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.replication.replica import Replica


def check_settings(
    batch: Batch, config: TopicConfig, replica: Replica, now: WallTime, *, is_opened: bool = False
) -> int:
    """The append time to stamp (ms since 1970), 0 if records keep their own timestamps.

    `is_opened`: the batch was opened before, and its keys are fine. Raises ClusterError:
    RECORD_TOO_LARGE; in a compacted topic INVALID_RECORD for one without a key; INVALID_TIMESTAMP.
    """
    check_size(batch, config.max_message_bytes)
    if config.cleanup_policy.compacts and not is_opened:
        check_keys(batch, str(replica))
    return _check_timestamps(batch, config, now, replica.recent.newest)


def _check_timestamps(
    batch: Batch, config: TopicConfig, now: WallTime, newest: BatchHeader | None
) -> int:
    """The append time to stamp (ms), 0 if records keep their own timestamps.

    `newest`: of the partition, if it is in memory. While the clock is in doubt, append times do not
    fall behind it, and records may be as far from the time that counts as from the one shown.
    Raises ClusterError(INVALID_TIMESTAMP) if the producer's are too far from the broker's clock.
    """
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        is_behind = newest is not None and not now.is_trusted and newest.append_time_ms > now.ms
        return newest.append_time_ms if newest is not None and is_behind else now.ms
    earliest = min(now.ms, now.shown_ms) - config.timestamp_before_max_ms
    latest = max(now.ms, now.shown_ms) + config.timestamp_after_max_ms
    header = batch.header
    for name, seen in (
        ("first", header.first_timestamp_ms),
        ("largest", header.max_timestamp_ms),
    ):
        if not earliest <= seen <= latest:
            raise ClusterError(
                f"the batch's {name} timestamp is {seen} ms, {seen - now.shown_ms:+} ms from the "
                f"broker's clock; the topic accepts {-config.timestamp_before_max_ms} to "
                f"+{config.timestamp_after_max_ms} (message.timestamp.before.max.ms, "
                "message.timestamp.after.max.ms); check the clock and the unit",
                ErrorCode.INVALID_TIMESTAMP,
            )
    return 0
