"""Reading: what a consumer fetches, how far it has come, and what it tells its group of that.

    poll ◀── FetchState per partition (pure) ◀── Fetcher, a long poll per leader
     └─▶ Assignment (pure): positions ──▶ Committer, TransactionOffsets ──▶ the group's coordinator

What belongs here: fetching, positions, seeks, and the consumer's side of a group, which takes and
gives up partitions between two polls. What never may: how a member speaks with its coordinator
(`penstock.client.group`), and anything of producers. Start reading at `consumer.py`.
"""
