"""Background work on a broker's logs: retention, compaction, checking the disk.

Belongs here: work in rounds that can wait, gives way to producers and is bounded per step. Never
here: what may be removed or rewritten (`penstock.core.compaction`, the replica machine), writes
that bypass the group commit (`replication.writer`), anything that a client waits for.
"""
