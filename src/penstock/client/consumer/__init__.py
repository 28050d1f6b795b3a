"""Consuming: fetching, positions, and committed offsets.

    poll ◀── FetchState per partition (pure) ◀── Fetcher, a long poll per leader
     └─▶ Assignment (pure): positions ──▶ Committer, TransactionOffsets ──▶ group coordinator

Belongs here: fetching, positions, seeks, bounded ranges without a consumer (`range_reader.py`), and
what a consumer does with the partitions its group assigns and revokes (`group_session.py`). Never
here: the protocol between a member and its coordinator (`penstock.client.group`), and anything
about producers. Start with `consumer.py`.
"""
