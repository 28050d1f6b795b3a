"""How the broker's database is tuned, and why. Measurements: docs/decisions/0005 and 0013."""

from dataclasses import dataclass

import rocksdict


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes in bytes; the defaults keep an idle broker far below 200 MB of memory.

    `write_buffer_bytes`: batches collected in memory before they go to one blob file; also the unit
        in which retention frees space.
    `write_buffers`: how many of them may exist while the disk is slow; then writes wait.
    `block_cache_bytes`: index blocks and small batches; payloads are in the page cache.
    `wal_bytes`: the write-ahead log is cut to this size, which bounds replay at start.
    `open_files`: descriptors RocksDB may hold (I23).
    `min_free_bytes`: with less free disk than this, appends are refused with DISK_FULL, while
        truncation, retention and checkpoints still work. It leaves space for the write buffers to
        be flushed, so that RocksDB itself never fills the disk.
    `single_deletes_max`: up to this many batches are deleted one by one. A range delete costs the
        same for any number, but after each one the next read makes RocksDB sort all range deletes
        of a write buffer again: over thousands of partitions, that cost is quadratic.
    `stall_timeout_s`: how long a write waits for flushes that do not keep up.
    `strict_wal`: True refuses to open a log that is damaged before its torn end: without a power
        loss that is bit rot, and continuing would silently lose acknowledged records. After a power
        loss (data directory not intact) use False: everything up to the damage is kept.
    """

    write_buffer_bytes: int = 32 << 20
    write_buffers: int = 3
    block_cache_bytes: int = 16 << 20
    wal_bytes: int = 192 << 20
    open_files: int = 512
    min_free_bytes: int = 64 << 20
    single_deletes_max: int = 256
    stall_timeout_s: float = 30.0
    strict_wal: bool = True


def database_options(
    options: StoreOptions, *, merges: bool = True
) -> tuple[rocksdict.Options, rocksdict.Options]:
    """RocksDB's options for the column families `default` (batches) and `state`.

    `merges`: False if a table is damaged (see `damaged_table`). Writes then never wait for merges.
    """
    cache = rocksdict.Cache(options.block_cache_bytes)
    batches = _family(cache, options.write_buffer_bytes, options.write_buffers)
    batches.set_disable_auto_compactions(not merges)
    batches.create_if_missing(True)
    batches.create_missing_column_families(True)
    batches.set_max_total_wal_size(options.wal_bytes)
    batches.set_max_open_files(options.open_files)
    batches.set_max_background_jobs(2)
    batches.set_wal_recovery_mode(
        rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records()
        if options.strict_wal
        else rocksdict.DBRecoveryMode.point_in_time()
    )
    # An idle database does nothing at all: no statistics threads, a small, bounded info log.
    batches.set_stats_dump_period_sec(0)
    batches.set_stats_persist_period_sec(0)
    batches.set_keep_log_file_num(3)
    batches.set_max_log_file_size(4 << 20)
    # Write back in steps; otherwise a flush hands the disk a whole write buffer at once.
    batches.set_bytes_per_sync(4 << 20)
    batches.set_enable_blob_files(True)
    batches.set_min_blob_size(512)
    batches.set_enable_blob_gc(False)  # until it pays: `Database.collect_garbage`
    state = _family(cache, options.write_buffer_bytes // 4, 2)
    state.set_disable_auto_compactions(not merges)
    return batches, state


def _family(
    cache: rocksdict.Cache, write_buffer_bytes: int, write_buffers: int
) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    family = rocksdict.Options(raw_mode=True)
    family.set_block_based_table_factory(table)
    family.set_compression_type(rocksdict.DBCompressionType.none())
    family.set_write_buffer_size(write_buffer_bytes)
    family.set_max_write_buffer_number(write_buffers)
    return family
