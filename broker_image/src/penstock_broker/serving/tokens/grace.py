"""Tokens of ServiceAccounts count on while nobody can renew them.

    a controller: the API server last answered 70 s ago ─▶ Outage ─▶ until when a token counts

The kubelet renews tokens through the API server. While that is unavailable, a token that this
broker has let in before counts for up to 12 h after its end, provided that it had not ended when
the API server last answered: whoever had no newer one by then had another reason. Nothing else is
believed longer: not tokens that are new here, nor those of other issuers. `Outage` is pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock_broker.observability import EventLog
from penstock_broker.serving.callers import with_leeway
from penstock_broker.serving.expiry import wall_s

GRACE_S: Final = 12 * 3600.0
"""Of a token, after its end; and of all, after the last word of a controller."""
RENEWAL_S: Final = 300.0
"""How long the kubelet may need to renew tokens once the API server answers again: it tries every
minute or two, and clients read the file again some seconds later."""
_events = EventLog("tokens")


@dataclass(frozen=True, slots=True)
class Outage:
    """Times in seconds since 1970.

    Attributes:
        began_s: When the API server last answered.
        heard_s: When a controller last said that it does not.
        over_s: When one said that it does again; None: not yet.
    """

    began_s: float
    heard_s: float
    over_s: float | None = None

    def counts_until(self, expires_s: float) -> float:
        """Until when a token counts that was let in before its end."""
        usual_s = with_leeway(expires_s)
        if expires_s < self.began_s:
            return usual_s
        over_s = self.heard_s + GRACE_S if self.over_s is None else self.over_s + RENEWAL_S
        return max(usual_s, min(expires_s + GRACE_S, over_s))


def after(last: Outage | None, unavailable_s: float, now_s: float) -> Outage | None:
    """What is known once a controller has said for how long the API server has been unavailable;
    0: it answers. None: there has been no outage yet."""
    if unavailable_s <= 0:
        if last is None or last.over_s is not None:
            return last
        return Outage(last.began_s, last.heard_s, over_s=now_s)
    began_s = now_s - unavailable_s
    # One that comes back before everybody has a new token is still the same.
    is_same = last is not None and (last.over_s is None or began_s < last.over_s + RENEWAL_S)
    if last is not None and is_same:
        began_s = min(began_s, last.began_s)
    return Outage(began_s, heard_s=now_s)


class Grace:
    """Of one broker; owned by its event loop. Its metric may be read in another thread."""

    def __init__(self, now_s: Callable[[], float] = wall_s) -> None:
        """`now_s`: seconds since 1970."""
        self._now_s = now_s
        self._outage: Outage | None = None

    @property
    def is_on(self) -> bool:
        """Whether tokens count that would not otherwise, as far as controllers have said."""
        outage = self._outage
        return (
            outage is not None
            and outage.over_s is None
            and self._now_s() < outage.heard_s + GRACE_S
        )

    def heard(self, unavailable_s: float) -> None:
        """A controller has said for how long the API server has been unavailable; 0: it answers.

        While no controller says anything, the last word counts.
        """
        was_on = self.is_on
        self._outage = after(self._outage, unavailable_s, self._now_s())
        if self.is_on and not was_on:
            _events.warning(
                "the API server is unavailable, and nobody can renew tokens of ServiceAccounts: "
                "those that are known here count on",
                unavailable_s=round(unavailable_s),
                at_most_s=GRACE_S,
            )
        elif was_on and not self.is_on:
            _events.info(
                "the API server is available again: tokens that have ended count no longer",
                after_s=RENEWAL_S,
            )

    def counts_until(self, expires_s: float) -> float:
        """See `CountsUntil`, for tokens of ServiceAccounts."""
        outage = self._outage
        return with_leeway(expires_s) if outage is None else outage.counts_until(expires_s)
