"""What happens to a record whose handler fails for good, in worker pools and in transformers.

It goes to a dead-letter topic, with its key, value and headers, and with five more headers that say
where it came from and why; without such a topic, the program stops: nothing is skipped silently. It
also stops at a letter that is too large for its topic: what an exception says is left out first,
then someone has to raise `max.message.bytes` of that topic. And it stops where the system gives the
process no thread, and at the end of the program, when Python starts nothing in threads any more.
Neither is a fault of the record: it becomes no letter.
"""

from typing import Final

from penstock.client.model import Record
from penstock.client.threads import MORE_THREADS
from penstock.core.columns import Header
from penstock.errors import ClusterError, MisuseError, PenstockError

_CAUSE_CHARS_MAX: Final = 1_000


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


def no_thread(record: Record, loop: str, refusal: RuntimeError) -> PenstockError:
    """The error of a worker pool or a transformer whose handler could start no thread."""
    return PenstockError(
        f"the {loop} has stopped at {place_of(record)}, and has committed only what was done "
        "before: the system gives this process no thread for what the handler begins "
        f"({refusal}). Let handlers begin fewer, run fewer of them at once, or {MORE_THREADS}"
    )


def program_ended(record: Record, loop: str) -> MisuseError:
    """The error of a worker pool or a transformer that runs in a thread, in a program that ends."""
    return MisuseError(
        f"the {loop} has stopped at {place_of(record)}, and has committed only what was done "
        "before: the program's main thread has ended, and then Python starts nothing in threads "
        "of pools. Call run in the main thread, or join the thread that runs it"
    )
