"""How far copies are, in words: bytes, rate and time left; and when they end. Pure.

The words change with every look, so `pace` has to find them in a message again: `without_figures`
takes out of a text what `figures` has put into it.
"""

import re
from datetime import datetime, timedelta
from typing import Final

from penstock.core.balance.shortage import gib

_FIGURES: Final = re.compile(
    r", [\d.]+ [GM]iB(?: left| to copy)?"
    r"(?: at [\d.]+ [GM]iB/s, (?:about \d+ min|less than a minute))?"
)

_YEAR_S: Final = 365 * 86_400
"""Nobody waits longer; and a date has at most four figures of years."""


def figures(left: int | None, rate: int, after: str = "", *, seconds: int | None = None) -> str:
    """`, 14.2 GiB at 39 MiB/s, about 6 min`; without a rate, `, 14.2 GiB to copy`.

    `left` None: nobody knows; then, or if nothing is left, empty. `rate`: bytes per second. `after`
    (` left`, ` to copy`) follows the bytes. `seconds` None: as long as `left` takes at `rate`.
    """
    if not left:
        return ""
    if not rate:
        return f", {gib(left)}{after or ' to copy'}"
    minutes = -(-(-(-left // rate) if seconds is None else seconds) // 60)
    time_left = f"about {minutes} min" if minutes > 1 else "less than a minute"
    return f", {gib(left)}{after} at {gib(rate)}/s, {time_left}"


def without_figures(text: str) -> str:
    """The text as it would be if nobody knew how much is left."""
    return _FIGURES.sub("", text)


def end_of(seconds: int | None, now: str) -> str | None:
    """When so many have passed, RFC 3339, rounded up to minutes: it stays while all goes as it did.

    None: nobody knows. `now`: RFC 3339.
    """
    if seconds is None:
        return None
    at = datetime.fromisoformat(now) + timedelta(seconds=min(seconds, _YEAR_S), minutes=1)
    return at.replace(second=0, microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ")
