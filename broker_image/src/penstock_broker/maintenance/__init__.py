"""What a broker does to its logs while nobody asks: retention, compaction, a look at the disk.

Belongs here: work in rounds that can wait, gives way to producers and is bounded per step. Never
here: what may be removed or rewritten (`penstock.core.compaction`, the replica machine), writing
beside the group commit (`replication.writer`), anything that a client waits for.
"""
