"""Bugs put into the shells of coordinators, as `planted_shells` puts them into those of replicas.

The host of a machine that lives on a log, the hosts of a broker, the streams of group members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_broker.groups.coordinator import Coordinator as Groups
from penstock_broker.groups.streams import MemberStream
from penstock_broker.logged.host import MachineHost
from penstock_broker.logged.hosts import Hosts
from penstock_broker.logged.log import ReplicaLog
from penstock_sim.planted_shells import all_of, in_text

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
        if ready.records:
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
    "a_host_that_ended_is_not_replaced": in_text(
        Hosts, "_tick", "self._try_again(led, now_s)", "pass"
    ),
    "a_former_machine_serves_on": all_of(
        in_text(Hosts, "_close", "led.host.close(self._elsewhere(replica.key.partition))", "pass"),
        in_text(Hosts, "wake", "or not (present and marks.is_leader)", "or False"),
        in_text(Hosts, "wake", "or led.host.leader_epoch != marks.leader_epoch", "or False"),
    ),
    "a_host_outlives_its_epoch": all_of(
        in_text(Hosts, "wake", "or led.host.leader_epoch != marks.leader_epoch", "or False"),
        in_text(ReplicaLog, "append", "expected_epoch=epoch", "expected_epoch=0"),
    ),
    "members_of_a_machine_that_ended_hear_nothing": in_text(
        Groups, "ended", "stream.fail(error)", "pass"
    ),
    "news_for_a_member_wake_nobody": in_text(MemberStream, "put", "self._news.set()", "pass"),
    "a_broken_stream_is_not_told": in_text(
        Groups,
        "drop_stream",
        "self.handle(StreamBroken(stream.stream_id))",
        "pass",
    ),
    "a_tick_is_not_taken": in_text(MachineHost, "tick", "self.handle(self._tick)", "pass"),
    "topics_are_told_to_nobody": in_text(
        Groups, "topics_changed", "self.handle(TopicsChanged(catalog))", "pass"
    ),
    "a_lull_is_taken_for_silence": in_text(Hosts, "_tick", "if stalled:", "if False:"),
}
"""In histories with groups."""
