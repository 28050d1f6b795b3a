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


def logs_of_each(
    admin: Logs, broker_ids: Iterable[int]
) -> tuple[list[LogDescription], dict[int, str]]:
    """What these brokers store, each asked by itself, and why others did not say, by id: one that
    does not answer hides nothing of another."""
    logs: list[LogDescription] = []
    problems: dict[int, str] = {}
    for broker_id in broker_ids:
        try:
            logs += admin.describe_logs(broker_ids=[broker_id])
        except PenstockError as error:
            problems[broker_id] = error.message
    return logs, problems


def describe_disks(admin: Logs, brokers: Iterable[BrokerDescription]) -> Disks:
    """Of live brokers."""
    logs, problems = logs_of_each(admin, [one.broker_id for one in brokers if one.alive])
    return Disks(tuple(one.broker_id for one in logs if one.disk_is_full), problems)
