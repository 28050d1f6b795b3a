"""A producer of the recorded workload that writes without transactions.

    send ─▶ pending deliveries, at most PENDING_MAX ─▶ ack, fail or unknown, as each one ends

It writes batches of one key after the other, in turn, at its share of the rate. A batch that the
client refuses was not sent: it has definitely failed. See `transactional.py` for transactions.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client import ColumnsDelivery, Producer
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.verify.history import HistoryWriter
from penstock.verify.records import build_values
from penstock.verify.workload_config import WorkloadConfig

PENDING_MAX: Final = 64
PENDING_PAUSE_S: Final = 0.01
REFUSED_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch whose outcome is not recorded yet."""

    delivery: ColumnsDelivery
    stream: int
    first: int


class PlainProducer:
    """One thread's producer. `run` until `stopping` is set."""

    def __init__(
        self,
        config: WorkloadConfig,
        tag: int,
        keys: Mapping[int, bytes],
        history: HistoryWriter,
        now_ms: Callable[[], float],
    ) -> None:
        """`tag`: the run's. `keys`: of each stream of this producer."""
        self._config = config
        self._tag = tag
        self._keys = keys
        self._history = history
        self._now_ms = now_ms
        self._pending: deque[_Sent] = deque()
        self._producer: Producer | None = None

    def run(self, stopping: threading.Event, acknowledged: Callable[[int], None]) -> None:
        """Returns when every outcome is recorded; raises MisuseError for its own mistakes."""
        config = self._config
        sequences = dict.fromkeys(self._keys, 0)
        streams = list(self._keys)
        pause_s = config.batch_records * config.producers / config.rate if config.rate else 0.0
        due = time.monotonic()
        with Producer(
            config.bootstrap,
            acks=config.acks,
            sync=config.sync,
            delivery_timeout_ms=config.delivery_timeout_ms,
            **config.options,
        ) as producer:
            self._producer = producer
            turn = 0
            while not stopping.is_set():
                stream = streams[turn % len(streams)]
                turn += 1
                if not self._send(producer, stream, sequences[stream]):
                    stopping.wait(REFUSED_PAUSE_S)
                sequences[stream] += config.batch_records
                self._harvest(acknowledged)
                while len(self._pending) >= PENDING_MAX and not stopping.wait(PENDING_PAUSE_S):
                    self._harvest(acknowledged)
                due = max(due + pause_s, time.monotonic() - 1.0)
                stopping.wait(max(0.0, due - time.monotonic()))
            while self._pending:
                self._harvest(acknowledged)
                time.sleep(PENDING_PAUSE_S)

    def abandon(self) -> None:
        """From any thread: gives up what is not delivered."""
        if self._producer is not None:
            self._producer.close(0.0)

    def _send(self, producer: Producer, stream: int, first: int) -> bool:
        """Sends a batch; False if the client refused it, which is recorded."""
        config = self._config
        count, size = config.batch_records, config.record_bytes
        data = build_values(self._tag, stream, first, count, size)
        values = [data[at : at + size] for at in range(0, len(data), size)]
        self._write("send", stream, first)
        try:
            delivery = producer.send_columns(config.topic, values, [self._keys[stream]] * count)
        except MisuseError:
            raise  # the workload's own mistake: it ends here
        except PenstockError as error:
            # One batch is accepted whole or not at all: nothing of it was sent.
            if error.code is ErrorCode.CLOSED:
                raise
            self._write("fail", stream, first, why=error.code.name)
            return False
        self._pending.append(_Sent(delivery, stream, first))
        return True

    def _harvest(self, acknowledged: Callable[[int], None]) -> None:
        """Records every known outcome, in the order of sending."""
        for _ in range(len(self._pending)):
            sent = self._pending.popleft()
            if not sent.delivery.done():
                self._pending.append(sent)
            elif self._record_outcome(sent):
                acknowledged(self._config.batch_records)

    def _record_outcome(self, sent: _Sent) -> bool:
        """True: acknowledged."""
        try:
            (report,) = sent.delivery.result()
        except PenstockError as error:
            unknown = getattr(error, "unknown_outcome", True)
            kind = "unknown" if unknown else "fail"
            self._write(kind, sent.stream, sent.first, why=error.code.name)
            return False
        self._write("ack", sent.stream, sent.first, p=report.partition, o=report.base_offset)
        return True

    def _write(self, kind: str, stream: int, first: int, **more: object) -> None:
        run = {"s": stream, "q": first, "n": self._config.batch_records}
        self._history.write({"e": kind, **run, **more, "t": self._now_ms()})
