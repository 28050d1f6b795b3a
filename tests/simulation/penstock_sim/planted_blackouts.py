"""Bugs that only losses beyond the promise show, planted on purpose as in `planted`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.core.groups import pending
from penstock.core.groups.records import EndedKey
from penstock.core.replication.contract import ReplicaConfig
from penstock.core.replication.follower import Follower
from penstock.core.transactions import lost, producers
from penstock.core.transactions.orphans import endings
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.losses import promise_nothing
from penstock_broker.transactions import orphans
from penstock_sim import broker
from penstock_sim.scheduler import RATE
from penstock_sim.shell import LAG_MAX_MS, WatchedReplicas


def leave_open_what_has_ended_elsewhere(patch: Any) -> None:
    """A leader that lost a marker does nothing, because a coordinator knows the transaction."""

    def known(asked: Any, leaders: Any, answers: Any) -> Any:
        return endings(
            asked, leaders, {broker: replace(one, ended={}) for broker, one in answers.items()}
        )

    patch.setattr(orphans, "endings", known)


def leave_open_what_was_not_recorded(patch: Any) -> None:
    """A coordinator that lost the record of a transaction waits for its producer."""
    patch.setattr(lost, "abort", lambda _book, _branch, _epoch: None)


def refuse_another_outcome_than_the_first(patch: Any) -> None:
    """A group that has stored an outcome refuses another one, each time it is sent."""
    end = pending.end

    def strict(book: Any, event: Any) -> Any:
        known = book.ended.get(EndedKey(event.group_id, event.producer_id))
        if (
            known is not None
            and known.producer_epoch == event.producer_epoch
            and known.committed != event.commit
        ):
            raise ClusterError("told otherwise", ErrorCode.INVALID_TRANSACTION_STATE)
        return end(book, event)

    patch.setattr(pending, "end", strict)


def truncate_what_superseded(patch: Any) -> None:
    """A replica of a compacted log truncates it, and lacks what the cut records superseded."""
    patch.setattr(Follower, "_lacks_superseded", lambda _self, _target: False)


def wait_for_an_epoch_that_was_lost(patch: Any) -> None:
    """A coordinator that lost a producer's epoch sends it to look for another one."""
    patch.setattr(producers, "_abort_lost", lambda *_asked: None)


def notice_the_first_loss_alone(patch: Any) -> None:
    """What a broker loses in a second power loss is relied on, as far as its log knows."""

    def once(store: Any) -> None:
        if not hasattr(store, "has_lost"):
            store.has_lost = True
            promise_nothing(store)

    patch.setattr(broker, "promise_nothing", once)


def stop_what_an_unclean_leader_lacks(patch: Any) -> None:
    """A former member with committed records that its leader lacks waits for a person."""

    def config_of(_self: Any, topic: Any) -> ReplicaConfig:
        return ReplicaConfig(topic.config.min_insync_replicas, LAG_MAX_MS * RATE, 50)

    patch.setattr(WatchedReplicas, "config_of", config_of)


_COMPACTED: Final = {"transactions": False, "groups": False, "compaction": True}
_HOLES: Final = ("I3", "I4", "I7", "I20")
_TRANSACTIONS: Final = {"transactions": True, "groups": False, "moves": False}
BLACKOUT_BUGS: Final[dict[str, tuple[Callable[[Any], None], dict[str, Any], tuple[str, ...]]]] = {
    leave_open_what_has_ended_elsewhere.__name__: (
        leave_open_what_has_ended_elsewhere,
        _TRANSACTIONS,
        ("I24",),
    ),
    leave_open_what_was_not_recorded.__name__: (
        leave_open_what_was_not_recorded,
        _TRANSACTIONS,
        ("I24",),
    ),
    refuse_another_outcome_than_the_first.__name__: (
        refuse_another_outcome_than_the_first,
        {"pipe": True, "moves": False},
        ("I24",),
    ),
    truncate_what_superseded.__name__: (truncate_what_superseded, _COMPACTED, _HOLES),
    wait_for_an_epoch_that_was_lost.__name__: (
        wait_for_an_epoch_that_was_lost,
        {"bank": True, "moves": False},
        ("I24",),
    ),
    notice_the_first_loss_alone.__name__: (
        notice_the_first_loss_alone,
        {**_TRANSACTIONS, "transactions": False},
        ("I4", "I5"),
    ),
}
"""How each is planted, in which histories, and what may find it."""
UNCLEAN_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    stop_what_an_unclean_leader_lacks.__name__: stop_what_an_unclean_leader_lacks
}
"""The same, with unclean elections."""
