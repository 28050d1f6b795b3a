"""Asks all live brokers, for lists to which each one adds what it coordinates."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.errors import ClusterError, ErrorCode, PenstockError

LISTING_S: Final = 10.0
"""How long to wait for brokers that are still reading their logs."""

Question = Callable[[Connection, float], Awaitable[Any]]
"""Asks one broker, with a timeout in seconds; the answer has `loading_partitions`."""


async def ask_every_broker(cluster: Cluster, question: Question, timeout_s: float) -> list[Any]:
    """One answer of each live broker, all of them complete.

    Raises COORDINATOR_LOADING if a broker's answer is not complete yet, UnreachableError if a live
    broker does not answer: an incomplete list would look complete.
    """
    deadline = monotonic() + min(LISTING_S, timeout_s)
    while True:
        view = await cluster.refresh()
        answers: list[Any] = []
        trouble: PenstockError | None = None
        for broker in view.brokers.values():
            if not broker.alive:
                continue
            try:
                connection = cluster.connections.to(broker.address)
                answers.append(await question(connection, timeout_s))
            except PenstockError as error:
                trouble = error
        loading = {each for answer in answers for each in answer.loading_partitions}
        if loading and trouble is None:
            trouble = ClusterError(
                f"{len(loading)} coordinators are still reading their logs; try again",
                ErrorCode.COORDINATOR_LOADING,
            )
        if trouble is None:
            return answers
        if monotonic() >= deadline or not trouble.retriable:
            raise trouble
        await asyncio.sleep(cluster.config.retry_backoff_max_ms / 1000)
