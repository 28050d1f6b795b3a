"""What happens to a record whose handler fails for good, in worker pools and in transformers.

It goes to a dead-letter topic, with its key, value and headers, and with five more headers that say
where it came from and why; without such a topic, the program stops: nothing is skipped silently. It
also stops at a letter that is too large for its topic: what an exception says is left out first,
then someone has to raise `max.message.bytes` of that topic.
"""

import re
from typing import Final

from penstock.client.model import Record
from penstock.core.columns import Header
from penstock.errors import ClusterError, MisuseError, PenstockError

_CAUSE_CHARS_MAX: Final = 1_000
_AT_EXIT: Final = re.compile("interpreter shutdown|cannot schedule new futures after shutdown")


class HandlerFailedError(ClusterError):
    """A record could not be handled, and there is no dead-letter topic, or none that it fits into:
    the program has stopped."""


def place_of(record: Record) -> str:
    """For messages."""
    return f"{record.topic}/{record.partition} offset {record.offset}"


def cause_text(cause: BaseException) -> str:
    """The handler's exception, in one line of bounded length, as valid UTF-8: what it says may be a
    file's name, or an error of its own, and must not keep the record from the dead letters."""
    try:
        said = str(cause)
    except Exception:  # noqa: BLE001 - whatever it is: the record matters more
        said = "(its text is not available)"
    text = f"{type(cause).__name__}: {said}"[:_CAUSE_CHARS_MAX]
    return text.encode(errors="backslashreplace").decode()


def without_text(cause: str) -> str:
    """The exception's type alone: for a letter that is too large with all of `cause_text`."""
    return cause.partition(":")[0]


def refused_at_exit(error: BaseException) -> bool:
    """Whether Python refused to begin something in a thread, as it does once the program's main
    thread has ended: the error says so, or one that led to it.

    An executor speaks of the interpreter's shutdown until the first of its threads has noticed it,
    and then of its own. So a program that has shut down an executor of its own is told the same.
    """
    left: list[BaseException | None] = [error]
    seen = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        said = any(isinstance(each, str) and _AT_EXIT.search(each) for each in one.args)
        if isinstance(one, RuntimeError) and said:
            return True
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
    return False


def letter_headers(record: Record, cause: str, attempts: int) -> tuple[Header, ...]:
    """The record's own headers, plus where it came from, how often it failed and why."""
    return (
        *record.headers,
        ("penstock-dlt-topic", record.topic.encode()),
        ("penstock-dlt-partition", b"%d" % record.partition),
        ("penstock-dlt-offset", b"%d" % record.offset),
        ("penstock-dlt-error", cause.encode()),
        ("penstock-dlt-attempts", b"%d" % attempts),
    )


def handler_failed(record: Record, cause: str, attempts: int) -> HandlerFailedError:
    """The error of a program without a dead-letter topic."""
    return HandlerFailedError(
        f"{place_of(record)}: the handler failed {attempts} times, the last time with {cause}; "
        "the program has stopped and has not committed the record. Fix the handler, or set "
        "dead_letter_topic"
    )


def letter_too_large(
    record: Record, cause: str, attempts: int, topic: str, refusal: PenstockError
) -> HandlerFailedError:
    """The error of a program whose dead-letter topic refuses the letter for its size, even without
    the exception's text."""
    return HandlerFailedError(
        f"{place_of(record)}: the handler failed {attempts} times, the last time with {cause}; "
        f"with the headers of a dead letter, the record is too large for {topic}: "
        f"{refusal.message}. The program has stopped and has not committed the record: raise "
        f"max.message.bytes of {topic}, and start it again",
        refusal.code,
    )


def program_ended(record: Record) -> MisuseError:
    """The error of a worker pool that runs in a thread, in a program that ends: no dead letter."""
    return MisuseError(
        f"the worker pool has stopped at {place_of(record)}, and has committed what is done: the "
        "program's main thread has ended, and then Python starts nothing in the threads of a pool. "
        "Call run in the main thread, or join the thread that runs it"
    )


def no_thread(record: Record, workers: int, cause: RuntimeError) -> PenstockError:
    """The error of a worker pool that could start no thread: no dead letter, either."""
    return PenstockError(
        f"the worker pool has stopped at {place_of(record)}, and has committed what is done: the "
        f"system gives this process no thread for the handler ({cause}); the pool uses up to "
        f"{workers}. Lower workers, or raise the limit (ulimit -u, pids.max of a container)"
    )
