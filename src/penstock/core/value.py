"""Values that the type checker keeps frozen, and that Python creates as fast as any object.

A frozen dataclass sets each of its fields through `object.__setattr__`: creating one with 13 fields
takes five to seven times as long as one that Python does not guard. Classes with an instance or
more per batch, event or decision use `@value(frozen=True, slots=True)` instead. For mypy that is
`dataclass`: an assignment to a field is an error. At run time nothing prevents it, so only mypy
finds it; equality and hash are those of a frozen dataclass.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from collections.abc import Callable
    from dataclasses import dataclass
    from typing import TypeVar

    _C = TypeVar("_C", bound=type)

    def value(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[_C], _C]:
        """Like `dataclass`; see the module."""
        assert frozen, "a value does not change"
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)


__all__ = ["value"]
