"""Checks of settings: each names the setting, the value seen and what is allowed.

Configurations call them once, when they are made; admin calls check a group's id with them. All
raise MisuseError.
"""

from collections.abc import Mapping
from enum import IntEnum

from penstock.core.limits import GROUP_ID_MAX_CHARS, INT32_MAX, TRANSACTIONAL_ID_MAX_BYTES
from penstock.errors import MisuseError


def positive(config: object, *names: str, most: int = INT32_MAX) -> None:
    """Whole numbers above 0, up to what requests carry."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value <= 0:
            raise MisuseError(f"{name} must be a whole number above 0, not {value!r}")
        _check_most(name, value, most)


def not_negative(config: object, *names: str) -> None:
    """Whole numbers, 0 or more, up to what requests carry."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < 0:
            raise MisuseError(f"{name} must be a whole number, 0 or more, not {value!r}")
        _check_most(name, value, INT32_MAX)


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise MisuseError(f"{name} is {value:,}; it must be at most {most:,}")


def between(config: object, name: str, low: int, high: int) -> None:
    """A whole number, `low` to `high`, both included."""
    value = getattr(config, name)
    if not isinstance(value, int) or not low <= value <= high:
        raise MisuseError(f"{name} is {value!r}; it must be a whole number, {low:,} to {high:,}")


def one_of(config: object, name: str, *choices: str) -> None:
    """One of these texts."""
    value = getattr(config, name)
    if value not in choices:
        raise MisuseError(f"{name} is {value!r}; use one of {', '.join(map(repr, choices))}")


def become_member(
    config: object, name: str, members: type[IntEnum], choices: Mapping[object, IntEnum]
) -> None:
    """Replaces a choice by the enum member that it means."""
    value = getattr(config, name)
    if isinstance(value, members):
        return
    plain = type(value) in (str, int)  # True equals 1, but is not meant as a number
    member = choices.get(value) if plain else None
    if member is None:
        named = ", ".join(repr(choice) for choice in choices)
        raise MisuseError(
            f"{name} is {value!r}; use one of {named} or a member of {members.__name__}"
        )
    object.__setattr__(config, name, member)


def check_group_name(name: str, value: object) -> None:
    """Printable text of at most 249 characters."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > GROUP_ID_MAX_CHARS:
        raise MisuseError(
            f"{name} is {value!r}; it must be printable text of at most {GROUP_ID_MAX_CHARS} "
            "characters"
        )


def check_group_id(group_id: object) -> None:
    """Printable text of 1 to 249 characters."""
    check_group_name("group_id", group_id or None)


def check_transactional_id(given: object) -> None:
    """Printable text of 1 to 249 bytes."""
    size = len(given.encode()) if isinstance(given, str) else 0
    text = isinstance(given, str) and given.isprintable()
    if not text or not 1 <= size <= TRANSACTIONAL_ID_MAX_BYTES:
        raise MisuseError(
            f"transactional_id is {given!r} ({size} bytes); it must be printable text of 1 to "
            f"{TRANSACTIONAL_ID_MAX_BYTES} bytes"
        )
