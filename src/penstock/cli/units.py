"""Settings of topics with units, as people write them: `retention.ms=7d`, `retention.bytes=10Gi`.

A number alone stays what it is, so nothing that worked means something else. Which unit a setting
takes, its name says; whether the number is allowed, the cluster says.
"""

import re
from collections.abc import Mapping
from typing import Final

from penstock.cli.usage import WrongUsageError
from penstock.core.quantities import parse_bytes
from penstock.errors import MisuseError

_PLAIN: Final = re.compile(r"-?[0-9]+")


def plain(settings: Mapping[str, str]) -> dict[str, str]:
    """With numbers in place of texts with units. Raises WrongUsageError."""
    return {name: _plain(name, text) for name, text in settings.items()}


def _plain(name: str, text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    if name.endswith(".ms"):
        return _milliseconds(name, text)
    if name.endswith(".bytes"):
        size = parse_bytes(text.removesuffix("B") if text.endswith("iB") else text)
        if size is None:
            raise _wrong(name, text, "bytes, or a size as 512Ki, 10Mi, 1Gi")
        return str(size)
    return text


def _milliseconds(name: str, text: str) -> str:
    from penstock.core.offset_reset import parse_duration_ms  # noqa: PLC0415 - not for --help

    if found := re.fullmatch(r"([0-9]{1,18})ms", text):
        return found[1]
    try:
        return str(parse_duration_ms(text))
    except MisuseError:
        raise _wrong(name, text, "milliseconds, or a duration as 90s, 12h, 7d") from None


def _wrong(name: str, text: str, wanted: str) -> WrongUsageError:
    return WrongUsageError(
        f"{name} is {text!r}; it must be {wanted}; -1 where it may have no limit"
    )
