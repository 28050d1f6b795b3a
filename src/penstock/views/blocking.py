"""Transactions that block readers, as findings: who owns them, where readers wait, what helps."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

from penstock.views.findings import Finding, count_age, some

if TYPE_CHECKING:
    from penstock.client import BlockingTransaction

TRANSACTION_CODES: Final = ("transaction-open", "transaction-finishing", "transaction-unknown")
"""Codes of findings about blocked readers."""


def transaction_findings(blocking: Iterable["BlockingTransaction"]) -> Iterator[Finding]:
    """One per transaction, orphaned ones last."""

    def which(one: "BlockingTransaction") -> tuple[bool, str, int, int]:
        name = "" if one.owner is None else one.owner.transactional_id
        return one.owner is None, name, one.producer_id, one.producer_epoch

    for _, found in groupby(sorted(blocking, key=which), key=which):
        yield _finding(list(found))


def _finding(found: list["BlockingTransaction"]) -> Finding:
    first = found[0]
    names = some([str(one.where) for one in found])
    evidence = tuple(
        f"{one.where}: readers wait at offset {one.last_stable_offset}, "
        f"{one.high_watermark - one.last_stable_offset} before the end"
        for one in found[:3]
    )
    owner = first.owner
    if owner is None:
        return Finding(
            f"the transaction of producer {first.producer_id}, epoch {first.producer_epoch},",
            "transaction-unknown",
            f"blocks readers of committed records in {names}, and no coordinator knows it",
            evidence=evidence,
            do="bring back the brokers that are down: once all coordinators answer, the leader "
            "of the partition aborts what none of them knows, minutes after the longest "
            "timeout",
        )
    client = f"client {owner.client_id!r}" if owner.client_id else "a client without a name"
    of = f"of {client} at {owner.client_host or 'an unknown host'}"
    subject = f"transaction {owner.transactional_id!r}"
    since = count_age((first.age_ms or 0) / 1000)
    if first.is_decided:
        return Finding(
            subject,
            "transaction-finishing",
            f"{of} has ended, but {names} has not stored the outcome yet: readers of "
            "committed records wait",
            since=since,
            evidence=evidence,
            do="nothing, if the partition has enough in-sync replicas: the coordinator "
            "retries until it is stored",
        )
    return Finding(
        subject,
        "transaction-open",
        f"{of} is open and blocks readers of committed records in {names}",
        since=since,
        evidence=evidence,
        do=f"penstock txn abort {owner.transactional_id}, if its producer does not end it",
    )
