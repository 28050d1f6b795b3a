"""Questions to a cluster that is looked at, asked at the same time.

One that hangs costs the time of one, and hides no answer of another.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import Admin, ClusterDescription, LogDescription

Answer = TypeVar("Answer")
AT_ONCE_MAX: Final = 32


def at_once(questions: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers, in the same order. Raises the first error."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - not needed for --help

    pool = ThreadPoolExecutor(AT_ONCE_MAX)
    try:
        return list(pool.map(lambda ask: ask(), questions))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def describe_soon(admin: "Admin") -> "ClusterDescription":
    """The cluster, by a broker that answers at once: of several the first may be frozen."""
    admin.cluster_id()
    return admin.describe_cluster()


def logs_at_once(
    admin: "Admin", broker_ids: Iterable[int], topics: Sequence[str] | None = None
) -> "tuple[list[LogDescription], dict[int, str]]":
    """What these brokers store, and why others did not say, by id."""

    def ask(broker_id: int) -> "LogDescription | str":
        try:
            (found,) = admin.describe_logs(topics, broker_ids=[broker_id])
        except PenstockError as error:
            return error.message
        return found

    asked = list(broker_ids)
    answers = dict(zip(asked, at_once([partial(ask, one) for one in asked]), strict=True))
    silent = {one: found for one, found in answers.items() if isinstance(found, str)}
    return [found for found in answers.values() if not isinstance(found, str)], silent
