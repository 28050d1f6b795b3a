"""Bugs put into the shells of coordinators, as `planted_shells` puts them into those of replicas.

The host of a machine that lives on a log, the hosts of a broker, the streams of group members, the
links of transactions between brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_broker.groups.streams import MemberStream
from penstock_broker.logged.host import MachineHost
from penstock_broker.logged.hosts import Hosts
from penstock_broker.services.groups import _Member
from penstock_broker.transactions.here import Here
from penstock_broker.transactions.lane import Lane
from penstock_broker.transactions.links import TransactionLinks
from penstock_broker.transactions.orphans import OrphanSweep
from penstock_broker.transactions.partitions import Markers, PartitionJoins
from penstock_sim.planted_shells import in_text

coordinate_before_the_log_is_committed = in_text(
    MachineHost,
    "load",
    "end = self.log.marks.log_end_offset",
    "end = self.log.marks.high_watermark",
)
"""A new leader loads what is committed so far and serves, before it has all it will have."""

answer_before_it_is_committed = in_text(
    MachineHost,
    "_release",
    "while self._waiting and self._waiting[0][0] <= self._durable:",
    "while self._waiting and self._waiting[0][0] <= self._handed:",
)
"""The shell tells what the machine says at once."""

HOST_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "the_first_of_two_appends_answers_for_both": in_text(
        MachineHost,
        "_flush_soon",
        "under_way = self._sent > self._durable",
        "under_way = False",
    ),
    "an_answer_counts_the_records_before_its_own": in_text(
        MachineHost,
        "_obey",
        """
        if ready.records and not self._is_last_unsent(ready.records):
            self._handed += 1
            self._unsent.append(ready.records)
        if ready.outputs:
            self._waiting.append((self._handed, ready))
        """,
        """
        if ready.outputs:
            self._waiting.append((self._handed, ready))
        if ready.records:
            self._handed += 1
            self._unsent.append(ready.records)
        """,
    ),
    "what_was_sent_answers_before_it_is_committed": in_text(
        MachineHost,
        "_flush",
        "self.log.append(batch, self.leader_epoch, self._appended)",
        """
        self._durable = self._sent
        self._release()
        self.log.append(batch, self.leader_epoch, self._appended)
        """,
    ),
    "a_host_that_loads_does_not_hear_of_marks": in_text(Hosts, "wake", "led.host.moved()", "pass"),
    "half_of_the_log_is_loaded": in_text(
        MachineHost,
        "_read",
        "offset = batches[-1].next_offset",
        "break",
    ),
    "a_failed_append_is_taken_for_done": in_text(
        MachineHost, "_appended", "if error is not None:", "if False:"
    ),
    "a_machine_outlives_its_failed_append": in_text(
        MachineHost,
        "_appended",
        """
        self.close(self.loading(f"an append failed ({error})"))
        return
        """,
        """
        for asked in self._requests.values():
            asked.answer(error)
        self._waiting.clear()
        """,
    ),
    "a_former_machine_serves_on": in_text(
        Hosts,
        "wake",
        """
        if led is not None and (
            led.replica is not replica
            or not (present and marks.is_leader)
            or led.host.leader_epoch != marks.leader_epoch
        ):
        """,
        "if led is not None and led.replica is not replica:",
    ),
    "news_for_a_member_wake_nobody": in_text(MemberStream, "put", "self._news.set()", "pass"),
    "what_a_heartbeat_says_is_dropped": in_text(
        _Member, "_heard", "if not heartbeat.ByteSize():", "if True:"
    ),
    "a_tick_is_not_taken": in_text(MachineHost, "tick", "self.handle(self._tick)", "pass"),
}
"""In histories with groups."""

LINK_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "a_refused_end_is_taken_for_stored": in_text(
        TransactionLinks,
        "send",
        """
        if error is None:
            stored()
        """,
        """
        if error is None or error.retriable:
            stored()
        """,
    ),
    "an_end_is_answered_before_its_marker": in_text(
        Markers,
        "end",
        "reply = await answered",
        "reply = ProduceReply(request_id=request_id, base_offset=-1)",
    ),
    "a_refused_join_is_taken_for_done": in_text(
        PartitionJoins,
        "join",
        "self._replicas.handle(replica, Joined(request.number, error))",
        "self._replicas.handle(replica, Joined(request.number, None))",
    ),
    "a_join_that_never_came_is_taken_for_done": in_text(
        Lane, "_run", "results = [error] * len(entries)", "results = [None] * len(entries)"
    ),
    "a_join_waits_for_nobody": in_text(
        Here,
        "_join",
        "await coordinator.ask(lambda number: replace(entry, request_id=number))",
        "coordinator.handle(replace(entry, request_id=0))",
    ),
    "nobody_is_asked_about_orphans": in_text(
        OrphanSweep,
        "_ask",
        """
        answers[broker_id] = await self._coordinators.find(
            transactions, BrokerId(broker_id)
        )
        """,
        """
        answers[broker_id] = Answer(frozenset(leaders), frozenset())
        """,
    ),
}
"""In histories with transactions."""
