"""How a broker keeps partitions on disk.

Belongs here: the seam (`interface`), its RocksDB implementation (`rocks` and the modules it is
made of: `layout`, `index`, `staging`, `state`, `options`, `faults`) and its memory twin
(`memory`) for tests. All of it blocks; the broker calls it from a bounded executor.

Never here: decisions about replication (what to append, truncate, acknowledge), when to retain
or reclaim, gRPC, asyncio, clocks. The store does what one `PartitionWrite` says and answers
what is stored.
"""
