"""Two loops that feed each other, in the recorded workload: without a ring, reads cannot form a
cycle.

    TOPIC ─▶ "there" ─▶ TOPIC-there ─▶ "back" ─▶ TOPIC-back ─▶ "there" …     each a group
                                      a record ends when HOPS_MAX transactions have passed it on
    watcher thread: both groups have committed all that is in the three topics ──▶ all stop
    at the end: TOPIC-there and TOPIC-back, read_committed ──▶ ringed, ringed, …

Each record tells which transaction wrote it, and how many have passed it on. So committed
transactions of each loop read what those of the other one wrote, but never in a cycle (I13). For
members, see `ring_member.py`. Nothing is checked here; `check_ring.py` does that.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from penstock.client import TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.verify.history import HistoryWriter
from penstock.verify.probe import PAUSE_S, ClusterProbe
from penstock.verify.recording import lines_of
from penstock.verify.records import HEAD_WORDS, WORD_BYTES
from penstock.verify.ring_member import RING_BODY, Loop, RingConfig, RingMember
from penstock.verify.transactional import high_watermarks

RING_READER: Final = "ring"
RING_RECORD_BYTES_MIN: Final = (HEAD_WORDS + len(RING_BODY) + 1) * WORD_BYTES

Work = dict[str, Callable[[], None]]
"""The work of threads, by name."""


def check_ring(record_bytes: int, beside: str) -> None:
    """Raises MisuseError if a record is too small, or if something else runs with the ring."""
    if beside:
        raise MisuseError(f"a ring and a {beside} cannot run together: run one after the other")
    if record_bytes < RING_RECORD_BYTES_MIN:
        raise MisuseError(
            f"record bytes {record_bytes}: a record of the ring needs {RING_RECORD_BYTES_MIN}"
        )


def ring_topics(topic: str) -> tuple[str, str]:
    """The topics to which the loops write: "there", "back"."""
    return f"{topic}-there", f"{topic}-back"


class Ring:
    """Both loops with all their members. `work` is for threads."""

    def __init__(
        self, config: RingConfig, history: HistoryWriter, now_ms: Callable[[], float]
    ) -> None:
        self._config = config
        self._history = history
        self._now_ms = now_ms
        self._cluster = ClusterProbe(config.bootstrap, config.options, config.settle_s)
        there, back = ring_topics(config.topic)
        self._loops = (
            Loop("there", f"verify-there-{config.tag:x}", (config.topic, back), there),
            Loop("back", f"verify-back-{config.tag:x}", (there,), back),
        )
        self._numbers = itertools.count(1)
        self._begins: dict[TopicPartition, int] = {}
        self._sources: list[TopicPartition] = []
        self._ending = False
        self._finished = threading.Event()

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Groups start at these offsets of the topic, and at the current ends of the topics they
        write."""
        self._begins = self._cluster.ends(*ring_topics(self._config.topic))
        everywhere = {**starts, **self._begins}
        self._sources = list(everywhere)
        for loop in self._loops:
            mine = {at: offset for at, offset in everywhere.items() if at.topic in loop.sources}
            self._cluster.reset(loop.group, mine)

    def work(self) -> Work:
        """The members' and the watcher's."""
        seats = itertools.product(self._loops, range(self._config.members))
        members: Work = {
            f"{loop.name}-{seat}": partial(self._run_member, loop, f"{loop.name}-{seat}")
            for loop, seat in seats
        }
        return {**members, "ring watcher": self._watch}

    def end_at(self, _ends: Mapping[TopicPartition, int]) -> None:
        """No more records are written to the topic: members stop when nothing goes round."""
        self._ending = True

    def abandon(self) -> None:
        """Ends everything now, finished or not."""
        self._finished.set()

    def read_back(self) -> None:
        """Records everything that readers see of the ring.

        Raises PenstockError if a transaction on it stays open.
        """
        config = self._config
        for batch in self._cluster.read_committed(self._begins):
            at = {"r": RING_READER, "p": batch.partition, "t": self._now_ms()}
            for line in lines_of(
                batch, config.tag, config.record_bytes, kind="ringed", body=RING_BODY
            ):
                self._history.write({**line, **at})

    # ------------------------------------------------------------ inside

    def _run_member(self, loop: Loop, seat: str) -> None:
        """A member, and its successors while there is churn."""
        churn_s, chance = self._config.churn_s, random.SystemRandom()
        for life in itertools.count():
            dies_at = time.monotonic() + churn_s * (0.5 + chance.random())

            def stays(dies_at: float = dies_at) -> bool:
                leaves = churn_s and not self._ending and time.monotonic() > dies_at
                return not leaves and not self._finished.is_set()

            if self._finished.is_set():
                return
            member = RingMember(self._config, loop, f"{seat}.{life}", self._tell)
            try:
                member.live(stays, self._numbers)
            except MisuseError:
                raise
            except PenstockError:  # the next one takes over its id, which aborts what it left open
                self._finished.wait(PAUSE_S)

    def _tell(self, event: dict[str, object]) -> None:
        self._history.write({**event, "t": self._now_ms()})

    def _watch(self) -> None:
        """Ends everything when nothing goes round; raises if there are no more commits."""
        known: list[dict[TopicPartition, int]] = []
        progressed = time.monotonic()
        try:
            while not self._finished.wait(PAUSE_S):
                found = [self._cluster.committed(loop.group) for loop in self._loops]
                if found != known or not self._ending:
                    progressed = time.monotonic()
                known = found
                if self._ending and self._is_at_rest(known):
                    return
                if time.monotonic() - progressed > self._config.settle_s:
                    raise PenstockError(
                        f"the ring committed nothing for {self._config.settle_s:.0f} s while "
                        f"records went round: {known}",
                        ErrorCode.REQUEST_TIMED_OUT,
                    )
        finally:
            self.abandon()

    def _is_at_rest(self, committed: list[dict[TopicPartition, int]]) -> bool:
        """The logs are checked after the groups: what a transaction with these offsets wrote was in
        the logs before it was committed."""
        config = self._config
        try:
            ends = high_watermarks(config.bootstrap, self._sources, config.options)
        except PenstockError:
            return False
        done = {**committed[0], **committed[1]}
        return all(done.get(at, -1) >= end for at, end in ends.items())
