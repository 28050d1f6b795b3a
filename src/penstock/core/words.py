"""Values in sentences that people read."""

from collections.abc import Iterable


def listed(values: Iterable[object]) -> str:
    """`0, 1, 2`, in the order given; `none` if there are none."""
    return ", ".join(map(str, values)) or "none"
