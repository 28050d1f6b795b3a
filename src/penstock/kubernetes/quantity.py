"""Kubernetes' quantities, such as `500m` and `10Gi`, as numbers. Pure."""

import re
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?")
"""Bounded, because digits that are not a quantity may look like a power of ten that is too large to
compute."""
_UNITS: Final = {
    "": Decimal(1),
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def quantity(text: str) -> Decimal | None:
    """The number in the base unit (bytes, cores); None if the text is no quantity."""
    digits = text.rstrip("nukKmMGTPEi")
    factor = _UNITS.get(text[len(digits) :])
    return Decimal(digits) * factor if factor is not None and _NUMBER.fullmatch(digits) else None
