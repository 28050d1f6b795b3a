"""Which brokers refuse writes because their disks are full: what a status must not hide."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.client.model import BrokerDescription, LogDescription
from penstock.errors import PenstockError


class Logs(Protocol):
    """An async admin client, as it is asked here."""

    async def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]: ...


@dataclass(frozen=True, slots=True)
class Disks:
    """Ids of live brokers. `silent`: who did not answer, and why; their disks may be full."""

    full: tuple[int, ...]
    silent: Mapping[int, str]


async def describe_disks(admin: Logs, brokers: Iterable[BrokerDescription]) -> Disks:
    """Of live brokers. All are asked at once, each by itself: one that does not answer hides
    nothing of another, and several cost the time of one."""
    asked = [one.broker_id for one in brokers if one.alive]
    async with asyncio.TaskGroup() as asking:
        tasks = {one: asking.create_task(_is_full(admin, one)) for one in asked}
    answers = {one: task.result() for one, task in tasks.items()}
    return Disks(
        tuple(one for one, answer in answers.items() if answer is True),
        {one: answer for one, answer in answers.items() if isinstance(answer, str)},
    )


async def _is_full(admin: Logs, broker_id: int) -> bool | str:
    """Whether its disk is; or why it does not say."""
    try:
        (found,) = await admin.describe_logs(broker_ids=[broker_id])
    except PenstockError as error:
        return error.message
    return found.disk_is_full
