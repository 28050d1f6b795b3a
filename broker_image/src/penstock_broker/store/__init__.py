"""How a broker keeps partitions on disk.

Belongs here: the seam (`interface`), its RocksDB implementation (`rocks` first; its parts: `layout`
and `state` for bytes, `database`, `index`, `lookups` and `compacting` for what is stored, `staging`
for writes, `options`, `faults`) and an implementation in memory (`memory`) for tests. All calls
block; the broker makes them from a bounded executor.

Never here: decisions about replication (what to append, truncate, acknowledge), when to retain or
reclaim, gRPC, asyncio, clocks. The store does what a `PartitionWrite` says, and returns what is
stored.
"""
