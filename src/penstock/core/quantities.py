"""Sizes as people and manifests write them: `1048576`, `10Mi`, `1.5Gi`. Pure, and imports nothing
that the command line does not need anyway."""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Final

QUANTITY_PATTERN: Final = r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?"
"""The part of Kubernetes' quantities that makes sense for sizes; no unit means bytes."""
QUANTITY_CHARS_MAX: Final = 20
_UNITS: Final[Mapping[str, int]] = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kMGTP", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTP", 1)},
}


def parse_bytes(text: str) -> int | None:
    """A quantity as manifests have it, such as 1048576 or 1Mi; None: it is none."""
    if len(text) > QUANTITY_CHARS_MAX or not re.fullmatch(QUANTITY_PATTERN, text):
        return None
    return quantity_bytes(text)


def quantity_bytes(quantity: str) -> int:
    """Of a text that QUANTITY_PATTERN matches; a part of a byte counts as one, as in Kubernetes."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    assert found is not None, quantity
    size_bytes: int = ceil(Fraction(found[1]) * _UNITS[found[2]])
    return size_bytes
