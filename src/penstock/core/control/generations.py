"""Recognizes a data directory that is older than what the cluster knows of it (I7).

    broker       opens its directory ─▶ a new generation, on disk ─▶ registers with all it knows
                 is asked to stop    ─▶ a new generation, on disk ─▶ says it, and that it leaves
    controller   stores the newest that it has heard, in the broker's registration;
                 the next run has to know that one

A generation is a name that is used once. A volume that was restored from a snapshot carries what
was on it then: that nothing is lost, and the generations of then. It lacks the newest, however
often it is opened before it registers, which is why they are not counted. What it says is not
believed, even that it lost its data: it may be a late message of a run that has ended, and the one
that lives would pay for it with its seats. The broker is told the newest, and comes back with it as
one that has lost its data.

A directory knows several where the answer to a registration was lost: any of them may be the one
that was stored. None is of a release that keeps none: nothing is compared with it, and none is what
is stored after such a run, as nothing in the directory names it.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from penstock.core.control.contract import BrokerRegistered
from penstock.core.control.documents import BrokerRegistration
from penstock.core.control.draft import Draft
from penstock.core.control.sessions import Sessions
from penstock.core.limits import GENERATIONS_MAX
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, StaleDataDirectoryError

_LONGEST: Final = 64
"""Characters of a name; brokers use UUIDs."""


def check_generations(event: BrokerRegistered, known: BrokerRegistration | None) -> None:
    """Raises StaleDataDirectoryError for another run on an older copy of the same directory.

    And ClusterError(INVALID_REQUEST) for names that cannot be.
    """
    names = event.generations
    if len(names) > GENERATIONS_MAX or not all(map(_is_name, names)):
        raise ClusterError(
            f"broker {event.broker_id} registers with {len(names)} generations of its data "
            f"directory; there may be {GENERATIONS_MAX}, each of 1 to {_LONGEST} printable "
            "characters of ASCII",
            ErrorCode.INVALID_REQUEST,
        )
    if known is None or known.directory_id != event.directory_id:
        return
    if known.incarnation == event.incarnation or not (known.generation and names):
        return
    if known.generation not in names:
        raise StaleDataDirectoryError(
            f"data directory {event.directory_id} of broker {event.broker_id} lacks the last start "
            f"or stop that the cluster knows of ({known.generation}): its volume was restored from "
            "an older copy, or this is an earlier run",
            known.generation,
        )


def newest_generation(event: BrokerRegistered, known: BrokerRegistration | None) -> str:
    """What to store of a registration that is accepted.

    A late message of a run that has said meanwhile that it stops takes nothing back.
    """
    names = event.generations
    if known is not None and names and known.generation:
        same_run = (known.incarnation, known.directory_id) == (
            event.incarnation,
            event.directory_id,
        )
        if same_run and known.generation not in names:
            return known.generation
    return names[-1] if names else ""


def note_stops(draft: Draft, leaving: Collection[BrokerId], sessions: Sessions) -> None:
    """These brokers want to stop: stores the generations that their stops made.

    Before they hear that they may: nothing else is certain to be stored of a stop. A broker without
    a seat leaves nothing, and its death may come when no controller runs any more.
    """
    for broker_id in leaving:
        session, known = sessions.get(broker_id), draft.cluster.brokers.get(broker_id)
        if session is None or known is None or not known.generation:
            continue
        if _is_name(session.generation):
            draft.put_broker(replace(known, generation=session.generation))


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and text.isascii() and text.isprintable()
