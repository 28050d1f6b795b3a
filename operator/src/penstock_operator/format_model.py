"""What is known of an upgrade that is not finalized, and what is said about it, as frozen data."""

from dataclasses import dataclass
from typing import Final

FORMAT_PENDING: Final = "FormatPending"


@dataclass(frozen=True, slots=True)
class FormatPending:
    """The condition FormatPending.

    Attributes:
        holds: The upgrade is complete, and the stored metadata older than it could be.
        reason: One word.
        message: For people; the same until something changes.
        automatic: It is finalized an hour after the condition began to hold.
    """

    holds: bool
    reason: str
    message: str
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class FinalizeFormat:
    """Asks the controller to store metadata in this format, which ends the way back."""

    to: int
