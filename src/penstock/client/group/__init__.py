"""Membership of a consumer group: the member's machine, its stream, its messages.

What belongs here: when a member joins, owns, gives up and has lost (`membership.py`, pure), what
it says to its coordinator, and what is shown of groups. What never may: what a member does with its
partitions, which is the consumer's (`penstock.client.consumer`). Start reading at `contract.py`.
"""
