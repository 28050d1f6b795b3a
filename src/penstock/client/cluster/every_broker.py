"""Asks all live brokers at once, for lists to which each one adds what it coordinates."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from penstock.client.cluster.cluster import Cluster, is_silence
from penstock.client.cluster.connections import Connection
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError

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
        found = await _ask_all(cluster, question, timeout_s)
        answers = [one for one in found.values() if not isinstance(one, PenstockError)]
        trouble = _trouble(found, answers)
        if trouble is None:
            return answers
        if monotonic() >= deadline or not trouble.retriable:
            raise trouble
        await asyncio.sleep(cluster.config.retry_backoff_max_ms / 1000)


async def _ask_all(cluster: Cluster, question: Question, timeout_s: float) -> dict[int, Any]:
    """By broker id: the answer, or the error."""

    async def ask(address: str) -> Any:
        try:
            return await question(cluster.connections.to(address), timeout_s)
        except PenstockError as error:
            return error

    brokers = (await cluster.refresh()).brokers.values()
    async with asyncio.TaskGroup() as asking:
        tasks = {
            one.broker_id: asking.create_task(ask(one.address)) for one in brokers if one.alive
        }
    return {broker_id: task.result() for broker_id, task in tasks.items()}


def _trouble(found: Mapping[int, Any], answers: Sequence[Any]) -> PenstockError | None:
    """Why the list is not complete; first what a retry cannot cure."""
    errors = {one: error for one, error in found.items() if isinstance(error, PenstockError)}
    silent = {one: error for one, error in errors.items() if is_silence(error)}
    for error in errors.values():
        if not error.retriable:
            return error
    if silent:
        why = next(iter(silent.values())).message
        return UnreachableError(
            f"no answer of broker {listed(sorted(silent))} ({why}): what it coordinates would be "
            "missing; look at that broker, or try again: others coordinate it once the controller "
            "has noticed"
        )
    for error in errors.values():
        return error
    if loading := {each for answer in answers for each in answer.loading_partitions}:
        return ClusterError(
            f"{len(loading)} coordinators are still reading their logs; try again",
            ErrorCode.COORDINATOR_LOADING,
        )
    return None
