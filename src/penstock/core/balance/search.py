"""How a replica that fits is found among many: by size, from about the right one outwards."""

from collections.abc import Callable
from itertools import islice

from penstock.core.balance.layout import Layout

WINDOW = 48
"""How many replicas of about the right size are compared; more only while none of them may go."""

Key = tuple[int, ...]


class Asked:
    """Remembers which broker had nothing for which other one, so that it is not asked each time.

    It may have something again once other replicas of a partition have moved. So when nothing is
    found any more, everybody is asked once more, until that finds nothing either: what remains
    depends on the layout alone.
    """

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()
        self._found = True

    def again(self) -> bool:
        """Whether to look through all brokers (again): something was found the last time."""
        self._pairs.clear()
        found, self._found = self._found, False
        return found

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return pair in self._pairs

    def note(self, source: int, target: int, *, found: bool) -> bool:
        """Keeps the answer of `source`, and returns it."""
        if found:
            self._found = True
        else:
            self._pairs.add((source, target))
        return found


def pick(
    layout: Layout, source: int, target: int, size: int, key: Callable[[int], Key]
) -> int | None:
    """Of the replicas of about `size` bytes that may go, the one with the smallest key; None if
    none may go."""
    near = islice(layout.givable(source, target, size), WINDOW)
    found = min(((key(partition), partition) for partition in near), default=None)
    return None if found is None else found[1]
