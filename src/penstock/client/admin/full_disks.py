"""Which brokers refuse writes because their disks are full: what a status must not hide."""

from collections.abc import Iterable
from typing import Protocol

from penstock.client.model import BrokerDescription, LogDescription
from penstock.errors import PenstockError


class Logs(Protocol):
    """An admin client, as it is asked here."""

    def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]: ...


def full_disks(admin: Logs, brokers: Iterable[BrokerDescription]) -> tuple[int, ...]:
    """Ids of those that are live, each asked by itself. One of which nothing is known is not among
    them: it does not answer, or the caller may not ask."""
    return tuple(one.broker_id for one in brokers if one.alive and _is_full(admin, one.broker_id))


def _is_full(admin: Logs, broker_id: int) -> bool:
    try:
        return any(one.disk_is_full for one in admin.describe_logs(broker_ids=[broker_id]))
    except PenstockError:
        return False
