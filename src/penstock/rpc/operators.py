"""How a call says which operator makes it."""

from typing import Final

OPERATOR_EPOCH: Final = "penstock-operator-epoch"
"""The key in a call's metadata. The value is a decimal number; none, and 0: a person calls."""
OPERATOR_EPOCH_MAX: Final = 2**63 - 1
