"""Where Spark calls this source and sink: errors for users leave in one line.

Spark prints the whole traceback of each failed attempt, in executors and in the driver. A
`PenstockError` says what, which and what to do; frames of the client below it only hide that.
Every other exception is a defect, and keeps its traceback.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.errors import PenstockError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def at_edge(method: Callable[P, R]) -> Callable[P, R]:
    """The method, whose PenstockErrors have no frames of what it called."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return called


def iterated_at_edge(values: Iterator[T]) -> Iterator[T]:
    """The same for what is read value by value."""
    try:
        yield from values
    except PenstockError as error:
        raise error.with_traceback(None) from None
