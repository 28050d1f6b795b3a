"""Which brokers refuse writes because their disks are full: what a status must not hide."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.client.model import BrokerDescription, LogDescription
from penstock.errors import PenstockError


class Logs(Protocol):
    """An admin client, as it is asked here."""

    def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]: ...


@dataclass(frozen=True, slots=True)
class Disks:
    """Ids of live brokers. `unknown`: those that do not say, and why; their disks may be full."""

    full: tuple[int, ...]
    unknown: Mapping[int, str]


def describe_disks(admin: Logs, brokers: Iterable[BrokerDescription]) -> Disks:
    """Each live broker is asked by itself: one that does not answer hides no full disk of
    another."""
    full: list[int] = []
    unknown: dict[int, str] = {}
    for broker_id in (one.broker_id for one in brokers if one.alive):
        try:
            logs = admin.describe_logs(broker_ids=[broker_id])
        except PenstockError as error:
            unknown[broker_id] = error.message
        else:
            full += [one.broker_id for one in logs if one.disk_is_full]
    return Disks(tuple(full), unknown)
