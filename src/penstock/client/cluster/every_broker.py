"""Asks brokers at once what each answers for itself; and all live ones for lists to which each
adds what it coordinates."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

from penstock.client.cluster.cluster import Cluster, is_silence
from penstock.client.cluster.connections import Connection
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError

LISTING_S: Final = 10.0
"""How long to wait for brokers that are still reading their logs."""

Answer = TypeVar("Answer")
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


async def ask_at_once(
    brokers: Mapping[int, Connection], ask: Callable[[Connection], Awaitable[Answer]]
) -> dict[int, Answer | PenstockError]:
    """By broker id, in the order given: the answer, or the error that `ask` raised instead."""

    async def answer(connection: Connection) -> Answer | PenstockError:
        try:
            return await ask(connection)
        except PenstockError as error:
            return error

    async with asyncio.TaskGroup() as asking:
        tasks = {one: asking.create_task(answer(to)) for one, to in brokers.items()}
    return {broker_id: task.result() for broker_id, task in tasks.items()}


async def _ask_all(cluster: Cluster, question: Question, timeout_s: float) -> dict[int, Any]:
    """By broker id: the answer, or the error."""
    known = (await cluster.refresh()).brokers.values()
    alive = {one.broker_id: cluster.connections.to(one.address) for one in known if one.alive}
    return await ask_at_once(alive, lambda connection: question(connection, timeout_s))


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
