"""Readers of the recorded workload that are in no group: the live ones, and the final read-back.

    live   from where the run started, until the ends are known and reached ──▶ read, odd, through
    final  afterwards, the same range once more                             ──▶ final, ends, reached

What the final reader saw is the log as it is; the checker compares everything else with it. See
`group_readers.py` for the members of a group.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.client import ConsumedBatch, Consumer
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.verify.history import HistoryWriter
from penstock.verify.transactional import high_watermarks
from penstock.verify.workload_config import WorkloadConfig

FINAL_READER: Final = "final"
POLL_SECONDS: Final = 0.5

Record = Callable[[str, str, ConsumedBatch], None]
"""(reader, kind of event, batch): records the content of a batch."""
Offsets = Mapping[TopicPartition, int]


class Readers:
    """All of one run. `read_live` is the work of any number of threads."""

    def __init__(
        self,
        config: WorkloadConfig,
        history: HistoryWriter,
        record: Record,
        ends_now: Callable[[], Offsets],
    ) -> None:
        """`ends_now`: asks where the logs end."""
        self._config = config
        self._history = history
        self._record = record
        self._ends_now = ends_now
        self._starts: Offsets = {}
        self._ends: Offsets | None = None

    def begin(self, starts: Offsets) -> None:
        """All readers start at these offsets."""
        self._starts = starts

    def end_at(self, ends: Offsets) -> None:
        """Live readers stop when they have reached these."""
        self._ends = ends

    def read_live(self, reader: str) -> None:
        """Records where it ended. Raises PenstockError if there is no more progress towards the
        ends."""
        for tp, position in self._read(reader, "read").items():
            event = {"e": "through", "r": reader, "p": tp.partition, "o": position}
            self._history.write(event)

    def read_back(self) -> None:
        """Records the ends, and everything up to there. Raises as `read_live`."""
        transactions = self._config.transactions
        high = self._settled() if transactions else {}
        ends = self._ends or {}
        for tp, end in ends.items():
            event = {"e": "ends", "p": tp.partition, "lo": self._starts[tp], "hi": end}
            self._history.write(event | ({"hw": high[tp]} if high else {}))
        self._read(FINAL_READER, "final")
        if transactions:
            for tp, end in ends.items():  # it got there, or raised
                self._history.write({"e": "reached", "p": tp.partition, "o": end})

    def _settled(self) -> Offsets:
        """High watermarks; waits, with a limit, until readers of committed records can read up to
        there."""
        config = self._config
        until = time.monotonic() + config.settle_s
        while True:
            high = high_watermarks(config.bootstrap, list(self._starts), config.options)
            self._ends = self._ends_now()
            if self._ends == high or time.monotonic() > until:
                return high
            time.sleep(POLL_SECONDS)

    def _read(self, reader: str, kind: str) -> Offsets:
        """Reads from where the run started until the ends are known and reached; returns the
        positions then."""
        config = self._config
        progressed = time.monotonic()
        with Consumer(config.bootstrap, **config.options) as consumer:
            consumer.assign(self._starts)
            for tp, offset in self._starts.items():
                consumer.seek(tp, offset)
            while not self._reached(consumer):
                batches = consumer.poll(POLL_SECONDS)
                for batch in batches:
                    self._record(reader, kind, batch)
                if batches or self._ends is None:
                    progressed = time.monotonic()
                elif time.monotonic() - progressed > config.settle_s:
                    raise PenstockError(
                        f"{reader} read nothing for {config.settle_s:.0f} s short of the end "
                        f"({self._missing(consumer)})",
                        ErrorCode.REQUEST_TIMED_OUT,
                    )
            return {tp: consumer.position(tp) for tp in self._starts}

    def _reached(self, consumer: Consumer) -> bool:
        ends = self._ends
        return ends is not None and all(consumer.position(tp) >= end for tp, end in ends.items())

    def _missing(self, consumer: Consumer) -> str:
        return ", ".join(
            f"{tp} at {consumer.position(tp)} of {end}"
            for tp, end in (self._ends or {}).items()
            if consumer.position(tp) < end
        )
