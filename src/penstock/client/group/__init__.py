"""Membership of a consumer group: the member's state machine, its stream, its messages.

Belongs here: when a member joins, owns, gives up and has lost partitions (`membership.py`, pure),
the calls to its coordinator, and the data that describes groups. Never here: what a member does
with its partitions (`penstock.client.consumer`). Start with `contract.py`.
"""
