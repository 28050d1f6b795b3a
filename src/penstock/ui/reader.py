"""Asks a cluster what pages and `penstock top` show; never changes anything.

Every method answers with a value or with the reason why there is none, and raises nothing of the
cluster. All of it goes through one `Memo`, so neither the number of readers nor their hurry matters
to the brokers.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Final, Unpack

from penstock.client import (
    EARLIEST,
    LATEST,
    AsyncAdmin,
    BlockingTransaction,
    ClusterDescription,
    ConfigEntry,
    GroupListing,
    LogDescription,
    MoveDescription,
    TopicDescription,
    TopicPartition,
    TransactionListing,
)
from penstock.client.config import ClientOptions
from penstock.errors import PenstockError
from penstock.ui.memo import Memo
from penstock.views.answers import Answer, Logs, TopicTraffic, traffic
from penstock.views.groups import GroupAnswer
from penstock.views.overview import ClusterAnswers, without_room
from penstock.views.shortfalls import Shortfall, topic_shortfalls
from penstock.views.topics import Offsets, is_internal

CONNECT_TIMEOUT_MS: Final = 3_000
REQUEST_TIMEOUT_MS: Final = 5_000
"""Shorter than a person waits for a page: a broker that hangs is a finding, not a blank screen."""
BLOCKING_MS: Final = 30_000
"""Transactions that block readers for less are everyday life."""
RATE_SPAN_S: Final = 10.0
"""Rates are means of about this time."""
RATE_SPAN_MAX_S: Final = 60.0
"""If nobody looked for longer, rates begin again."""


def bounded(options: ClientOptions) -> ClientOptions:
    """The options with a page's timeouts, unless they say others."""
    return {
        "connect_timeout_ms": CONNECT_TIMEOUT_MS,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        **options,
    }


class Reader:
    """Owns an admin client."""

    def __init__(self, bootstrap: str, **options: Unpack[ClientOptions]) -> None:
        """Connects on first use. Raises MisuseError for invalid settings."""
        self._admin = AsyncAdmin(bootstrap, **bounded(options))
        self._memo = Memo()
        self._samples: deque[Logs] = deque()

    async def close(self) -> None:
        await self._admin.close()

    async def overview(self) -> ClusterAnswers:
        """All of the first page."""
        cluster = await self.cluster()
        if cluster.value is None:
            return ClusterAnswers(
                cluster=cluster, logs=Answer(), short=Answer(()), blocking=Answer([])
            )
        async with asyncio.TaskGroup() as asking:
            logs = asking.create_task(self.logs())
            short = asking.create_task(self._shortfalls(cluster.value))
            blocking = asking.create_task(self.blocking(BLOCKING_MS))
        return ClusterAnswers(
            cluster=cluster,
            logs=logs.result(),
            short=short.result(),
            blocking=blocking.result(),
            moves=await self._moves_to_full_disks(logs.result().value),
        )

    async def cluster(self) -> Answer[ClusterDescription]:
        return await self._memo.answer("cluster", self._admin.describe_cluster)

    async def topics(self) -> Answer[dict[str, TopicDescription]]:
        """All, internal ones too."""
        return await self._memo.answer("topics", self._admin.describe_topics)

    async def topic(self, name: str) -> Answer[TopicDescription]:
        async def ask() -> TopicDescription:
            return (await self._admin.describe_topics([name]))[name]

        return await self._memo.answer(("topic", name), ask)

    async def settings(self, topic: str) -> Answer[list[ConfigEntry]]:
        return await self._memo.answer(
            ("settings", topic), lambda: self._admin.describe_configs(topic)
        )

    async def offsets(self, partitions: Sequence[TopicPartition]) -> Answer[Offsets]:
        """Of partitions that have a leader; one without would make all of them wait."""

        async def ask() -> Offsets:
            starts = await self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
            return Offsets(
                starts, await self._admin.list_offsets(dict.fromkeys(partitions, LATEST))
            )

        return await self._memo.answer(("offsets", *partitions), ask)

    async def logs(self) -> Answer[Logs]:
        """What every live broker stores, those that answer."""
        return await self._memo.answer("logs", self._all_logs)

    async def traffic(self) -> Mapping[str, TopicTraffic]:
        """By topic; empty if nothing is known."""
        answer = await self.logs()
        if answer.value is None:
            return {}
        before = self._samples[0] if len(self._samples) > 1 else None
        return traffic(answer.value, before)

    async def groups(self) -> Answer[list[GroupListing]]:
        return await self._memo.answer("groups", self._admin.list_groups)

    async def group(self, group_id: str) -> Answer[GroupAnswer]:
        """With its lag."""

        async def ask() -> GroupAnswer:
            seen = await self._admin.describe_group(group_id)
            return GroupAnswer(seen, await self._admin.group_lag(seen))

        return await self._memo.answer(("group", group_id), ask)

    async def several_groups(self, group_ids: Iterable[str]) -> dict[str, Answer[GroupAnswer]]:
        async with asyncio.TaskGroup() as asking:
            found = {one: asking.create_task(self.group(one)) for one in group_ids}
        return {one: task.result() for one, task in found.items()}

    async def transactions(self) -> Answer[list[TransactionListing]]:
        return await self._memo.answer("transactions", self._admin.list_transactions)

    async def blocking(self, older_than_ms: int = 0) -> Answer[list[BlockingTransaction]]:
        return await self._memo.answer(
            ("blocking", older_than_ms),
            lambda: self._admin.blocking_transactions(older_than_ms=older_than_ms),
        )

    async def _shortfalls(self, cluster: ClusterDescription) -> Answer[tuple[Shortfall, ...]]:
        """Only a cluster that counts some is asked which: the list of all partitions is long."""
        if not (
            cluster.offline_partitions
            or cluster.under_min_isr_partitions
            or cluster.under_replicated_partitions
        ):
            return Answer(())
        topics = await self.topics()
        # The users' own come first: of many, only the first are named.
        ordered = sorted(
            (topics.value or {}).items(), key=lambda item: (is_internal(*item), item[0])
        )
        short = tuple(one for _, topic in ordered for one in topic_shortfalls(topic))
        return Answer(short, topics.problem, asked_ms=topics.asked_ms)

    async def _moves_to_full_disks(self, logs: Logs | None) -> Answer[tuple[MoveDescription, ...]]:
        """All moves, asked only if some may wait for a disk: the controller goes through all
        partitions for them."""
        if not without_room(logs):
            return Answer(())

        async def ask() -> tuple[MoveDescription, ...]:
            return (await self._admin.describe_moves()).moves

        return await self._memo.answer("moves", ask)

    async def _all_logs(self) -> Logs:
        cluster = await self._admin.describe_cluster()
        asked = [one.broker_id for one in cluster.brokers if one.alive]
        async with asyncio.TaskGroup() as asking:
            tasks = {one: asking.create_task(self._logs_of(one)) for one in asked}
        answers = {one: task.result() for one, task in tasks.items()}
        seen = Logs(
            monotonic(),
            {one: answer.value for one, answer in answers.items() if answer.value is not None},
            {one: answer.problem for one, answer in answers.items() if answer.problem},
        )
        if self._samples and seen.at_s - self._samples[-1].at_s > RATE_SPAN_MAX_S:
            self._samples.clear()
        self._samples.append(seen)
        while len(self._samples) > 2 and seen.at_s - self._samples[1].at_s >= RATE_SPAN_S:
            self._samples.popleft()
        return seen

    async def _logs_of(self, broker_id: int) -> Answer[LogDescription]:
        try:
            (found,) = await self._admin.describe_logs(broker_ids=[broker_id])
        except PenstockError as error:
            return Answer(problem=error.message)
        return Answer(found)
