"""What is known of an upgrade that is not finalized, and what is said about it, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FORMAT_PENDING: Final = "FormatPending"
NEWEST_FORMAT: Final = "NewestFormat"


@dataclass(frozen=True, slots=True)
class FormatSaid:
    """The condition FormatPending as the status has it.

    `reason` empty: there never was one. `since`: when it began to hold, RFC 3339; empty: it does
    not.
    """

    reason: str = ""
    since: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "FormatSaid":
        for each in status.get("conditions") or ():
            if each["type"] == FORMAT_PENDING:
                holds = each["status"] == "True"
                return cls(each["reason"], each["lastTransitionTime"] if holds else "")
        return cls()


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
