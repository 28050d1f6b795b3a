"""What an error says of the process it was raised in, not of the record at hand: Python begins
nothing in threads any more, or the system gives the process no thread.

Such a record must not become a dead letter: the next process can handle it.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_AT_EXIT: Final = re.compile("interpreter shutdown|cannot schedule new futures after shutdown")
_NO_THREAD: Final = re.compile("can't start new thread")
MORE_THREADS: Final = "raise the limit (ulimit -u, pids.max of a container)"
"""What to do, for messages."""


def refused_at_exit(error: BaseException) -> bool:
    """Whether Python refused to begin something in a thread, as it does once the program's main
    thread has ended: the error says so, or one that led to it.

    An executor speaks of the interpreter's shutdown until the first of its threads has noticed it,
    and then of its own. So a program that has shut down an executor of its own is told the same.
    """
    return _refusal(error, _AT_EXIT) is not None


def program_ends(error: BaseException) -> bool:
    """Whether `refused_at_exit`, and by this program: the error may be of another process, or of an
    executor that the program has shut down. Then Python refuses any executor."""
    if not refused_at_exit(error):
        return False
    probe = ThreadPoolExecutor(1)
    try:
        probe.submit(int)
    except RuntimeError as refusal:
        return refused_at_exit(refusal)
    finally:
        probe.shutdown(wait=False)
    return False


def thread_refusal(error: BaseException) -> RuntimeError | None:
    """Python's word that the system gave it no thread: the error, or one that led to it."""
    return _refusal(error, _NO_THREAD)


def _refusal(error: BaseException, words: re.Pattern[str]) -> RuntimeError | None:
    for one in _led_to(error):
        if isinstance(one, RuntimeError) and any(
            isinstance(each, str) and words.search(each) for each in one.args
        ):
            return one
    return None


def _led_to(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it was raised from, or while they were handled; each once."""
    left: list[BaseException | None] = [error]
    seen = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
