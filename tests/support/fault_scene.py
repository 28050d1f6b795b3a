"""What a recording of a fault begins with: processes in health, and how to make the fault."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scene:
    """`targets`: instance to the address of its metrics; the fault may change it."""

    targets: dict[str, str]
    make_fault: Callable[[], None]
