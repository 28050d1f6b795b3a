"""Bugs planted in the production shells: an extra await, a lost wake-up, bytes not released.

Each replaces a piece of text in a function of the product; a text that is no longer there is an
error, so that no plant silently stops working.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any, Final

from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.following import LeaderLink
from penstock_broker.replication.lanes import Feeding
from penstock_broker.replication.recent import RecentBatches
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter
from penstock_broker.services.leading import Leading


def rewritten(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """The same function with `old` replaced by `new` in its text."""
    source = textwrap.dedent(inspect.getsource(function))
    old, new = textwrap.dedent(old).strip("\n"), textwrap.dedent(new).strip("\n")
    for indent in range(0, 24, 4):
        pad = " " * indent
        padded = textwrap.indent(old, pad)
        if f"\n{padded}" in source:
            source = source.replace(f"\n{padded}", f"\n{textwrap.indent(new, pad)}", 1)
            break
    else:
        raise AssertionError(f"{function.__qualname__} has no {old!r}")
    made: dict[str, Any] = {}
    module = sys.modules[function.__module__]
    exec(compile(source, f"<planted in {module.__name__}>", "exec"), vars(module), made)
    return made[function.__name__]  # type: ignore[no-any-return]


def in_text(owner: type, name: str, old: str, new: str) -> Callable[[Any], None]:
    def plant(patch: Any) -> None:
        function = inspect.getattr_static(owner, name)
        is_static = isinstance(function, staticmethod)
        changed = rewritten(function.__func__ if is_static else function, old, new)
        patch.setattr(owner, name, staticmethod(changed) if is_static else changed)

    return plant


def all_of(*plants: Callable[[Any], None]) -> Callable[[Any], None]:
    """For a rule that is enforced in more than one place."""

    def plant(patch: Any) -> None:
        for one in plants:
            one(patch)

    return plant


SHELL_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    # ---------------------------------------------------------------- the writer
    "persisted_before_it_is_written": in_text(
        LogWriter,
        "_tick",
        "tick = self._next()",
        """
        tick = self._next()
        for entry in tick.pending:
            if entry.persist_ids and entry.truncate_to is None:
                entry.owner.persisted(entry.persist_ids[-1], synced=tick.sync)
                entry.persist_ids = []
        """,
    ),
    "synced_though_nobody_asked_the_disk": in_text(
        LogWriter,
        "_finish",
        "entry.owner.persisted(entry.persist_ids[-1], synced=tick.sync)",
        "entry.owner.persisted(entry.persist_ids[-1], synced=True)",
    ),
    "a_refused_write_is_taken_for_done": in_text(
        LogWriter,
        "_refuse",
        "owner.persist_failed(persist_id, error)",
        "owner.persisted(persist_id, synced=False)",
    ),
    "what_piled_up_on_a_refused_write_stays": in_text(
        LogWriter, "_refuse", "self._drop_pending(slot)", "pass"
    ),
    "nobody_wakes_the_writer": in_text(
        LogWriter,
        "_for",
        "self._plan()",
        "if len(self._pending) > 1:\n    self._plan()",
    ),
    "a_sync_for_what_stays_behind_is_forgotten": in_text(
        LogWriter,
        "_next",
        "self._sync = self._sync and bool(self._pending)",
        """
        self._sync = False
        for entry in self._pending.values():
            entry.sync = False
        """,
    ),
    # ---------------------------------------------------------------- the replica's shell
    "other_batches_join_those_in_memory": all_of(
        in_text(RecentBatches, "extend", "self.clear()", "pass"),
        in_text(ReplicaSet, "_truncate", "replica.recent.clear()", "pass"),
        in_text(Replica, "persist_failed", "self.recent.clear()", "pass"),
    ),
    "a_feed_is_not_obeyed": in_text(
        ReplicaSet, "_feed", "follower.feed(replica, feed)", "follower.notify(replica, urgent=True)"
    ),
    "followers_hear_nothing_of_a_sync": in_text(
        ReplicaSet, "_ask_for_sync", "replica.notify_feeders(urgent=True)", "pass"
    ),
    "an_isr_change_is_not_proposed": in_text(
        ReplicaSet,
        "_ask_others",
        "self.isr.propose(replica, ready.isr_change)",
        "len(ready.isr_change.isr) < 3 and self.isr.propose(replica, ready.isr_change)",
    ),
    # ---------------------------------------------------------------- feeding followers
    "bytes_in_flight_are_kept_at_a_restart": in_text(
        Feeding, "end", "lane.freed(size)", "lane.held_back = False"
    ),
    "held_back_is_kept_at_a_restart": in_text(
        Feeding, "end", "lane.freed(size)", "lane.in_flight_bytes -= size"
    ),
    "a_full_window_leaves_the_partition_clean": in_text(
        FollowerStream,
        "_append",
        """
        if feeding.has_more and (batches or not lane.has_room):
        """,
        "if False:",
    ),
    "a_batch_that_is_held_back_is_forgotten": in_text(
        FollowerStream,
        "_append",
        """
        lane.held_back = True
        batches = []
        """,
        """
        lane.held_back = True
        return feeding.append(marks, with_batches=False), []
        """,
    ),
    "no_room_is_told_of": in_text(
        FollowerStream,
        "acked",
        """
        if self._ahead or (not had_room and self._live.has_room):
            self._wake.set()
        """,
        "del had_room",
    ),
    "news_wake_nobody": in_text(
        FollowerStream,
        "notify",
        """
        self._mark(replica.key)
        self._wake.set()
        """,
        "self._mark(replica.key)",
    ),
    "bulk_news_wake_nobody": in_text(FollowerStream, "_mark", "self._bulk_wake.set()", "pass"),
    "two_streams_of_a_follower_are_fed": in_text(Leading, "_replace", "self._end(old)", "pass"),
    "a_new_stream_is_not_told": in_text(
        LeaderLink, "_stream", "self._replicas.peer_connected(self.leader)", "pass"
    ),
    "a_link_that_broke_is_not_built_again": in_text(
        LeaderLink,
        "run",
        """
        failures = 0 if self._was_up else failures + 1
        """,
        """
        failures = 0 if self._was_up else failures + 1
        if self._was_up and failures == 0:
            return
        """,
    ),
}

BUSY_SHELL_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "what_a_message_cannot_hold_is_forgotten": in_text(
        FollowerStream,
        "_collect",
        """
        if budget <= 0:
            break
        """,
        """
        if budget <= 0:
            del dirty[key]
            continue
        """,
    ),
}
"""For histories with more partitions and more traffic."""
