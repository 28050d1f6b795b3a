"""Questions to a cluster that is looked at, asked at the same time.

One that hangs costs the time of one, and hides no answer of another.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import PenstockError
from penstock.waits import take

if TYPE_CHECKING:
    from penstock.client import Admin, ClusterDescription, LogDescription, ScrubDescription

Answer = TypeVar("Answer")
AT_ONCE_MAX: Final = 32


def at_once(questions: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers, in the same order. Raises the first error. Ctrl-C ends it, and waits for none:
    the threads are daemons."""
    left, done = deque(enumerate(questions)), SimpleQueue[tuple[int, Answer | BaseException]]()

    def work() -> None:
        while left:
            with suppress(IndexError):  # another thread was quicker
                index, ask = left.popleft()
                done.put((index, _outcome(ask)))

    for _ in range(min(AT_ONCE_MAX, len(questions))):
        Thread(target=work, name="asks", daemon=True).start()
    try:
        found = dict(take(done) for _ in questions)
    finally:
        left.clear()
    answers = []
    for index in range(len(questions)):
        answer = found[index]
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


def _outcome(ask: Callable[[], Answer]) -> Answer | BaseException:
    try:
        return ask()
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
        return error


def describe_soon(admin: "Admin") -> "ClusterDescription":
    """The cluster, by a broker that answers at once: of several the first may be frozen."""
    admin.cluster_id()
    return admin.describe_cluster()


def each_at_once(
    broker_ids: Iterable[int], question: Callable[[int], Answer]
) -> tuple[list[Answer], dict[int, str]]:
    """What these brokers answer, each asked by itself, and why others did not, by id."""

    def ask(broker_id: int) -> "Answer | _Silent":
        try:
            return question(broker_id)
        except PenstockError as error:
            return _Silent(error.message)

    asked = list(broker_ids)
    answers = dict(zip(asked, at_once([partial(ask, one) for one in asked]), strict=True))
    silent = {one: found.why for one, found in answers.items() if isinstance(found, _Silent)}
    return [found for found in answers.values() if not isinstance(found, _Silent)], silent


@dataclass(frozen=True, slots=True)
class _Silent:
    """In place of an answer."""

    why: str


def logs_at_once(
    admin: "Admin", broker_ids: Iterable[int], topics: Sequence[str] | None = None
) -> "tuple[list[LogDescription], dict[int, str]]":
    """What these brokers store, and why others did not say, by id."""

    def ask(broker_id: int) -> "LogDescription":
        (found,) = admin.describe_logs(topics, broker_ids=[broker_id])
        return found

    return each_at_once(broker_ids, ask)


def scrubs_at_once(
    admin: "Admin", broker_ids: Iterable[int]
) -> "tuple[list[ScrubDescription], dict[int, str]]":
    """How far these brokers have read their logs, and why others did not say, by id."""

    def ask(broker_id: int) -> "ScrubDescription":
        (found,) = admin.describe_scrub([broker_id])
        return found

    return each_at_once(broker_ids, ask)


STORED: Final = "what it stores"
SCRUBBED: Final = "how far it has read"


def silence(silent: Mapping[int, str], what: str) -> list[str]:
    """Which brokers did not say this, and why, a line each."""
    return [f"broker {one} does not say {what}: {why}" for one, why in silent.items()]


def tell_silent(silent: Mapping[int, str], what: str = STORED) -> bool:
    """Writes `silence` to standard error; whether there is any."""
    for line in silence(silent, what):
        sys.stderr.write(f"penstock: {line}\n")
    return bool(silent)
