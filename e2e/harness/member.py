"""Members of a consumer group as a program; `members.py` runs its text in pods.

    poll ──▶ a line for what each batch held ──▶ the diary, a topic (acks=all) ──▶ next poll

What a member did stands in the diary before a commit covers it: so the diary, like any work, has
everything at least once, also of pods that are long gone. A line is an event in JSON: `e` (owns,
leaves, got, works, done), `r` who, `t` seconds since 1970.

On SIGTERM each member finishes what it has in hand, commits, and leaves its group; one that is
within a long pause gives up instead, and commits nothing of it.
"""

import argparse
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Final

from penstock.client import Consumer, Producer, TopicPartition

POLL_S: Final = 0.5
AUTO_COMMIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Diary:
    """One per process; any thread may write."""

    producer: Producer
    topic: str

    def write(self, **event: object) -> None:
        """Returns when the line is stored."""
        line = json.dumps({**event, "t": time.time_ns() / 1e9})
        self.producer.send(self.topic, line.encode()).result()
        print(line, flush=True)


@dataclass(frozen=True, slots=True)
class Told:
    """A listener that writes down which partitions come and go."""

    diary: Diary
    name: str

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._write("owns", partitions, "assigned")

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._write("leaves", partitions, "revoked")

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._write("leaves", partitions, "lost")

    def _write(self, kind: str, partitions: frozenset[TopicPartition], how: str) -> None:
        numbers = sorted(each.partition for each in partitions)
        self.diary.write(e=kind, r=self.name, ps=numbers, how=how)


def live(name: str, options: argparse.Namespace, diary: Diary, ending: threading.Event) -> None:
    """One member, until `ending`."""
    with Consumer(
        options.bootstrap,
        group_id=options.group,
        client_id=name,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=AUTO_COMMIT_MS,
        max_poll_interval_ms=int(options.max_poll_interval * 1_000),
    ) as consumer:
        consumer.subscribe(options.topic, listener=Told(diary, name))
        worked = 0
        while not ending.is_set():
            batches = consumer.poll(POLL_S, options.max_records)
            if not batches:
                continue
            for batch in batches:
                run = {"p": batch.partition, "lo": batch.first_offset, "hi": batch.next_offset}
                diary.write(e="got", r=name, **run)
            worked += 1
            pause_s = options.stall if worked == options.stall_at else options.pace
            if not pause_s:
                continue
            diary.write(e="works", r=name, s=pause_s)
            if ending.wait(pause_s):
                return  # without a commit of what it did not finish
            diary.write(e="done", r=name, s=pause_s)
        consumer.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "topic", "group", "diary"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--members", type=int, default=1, help="of this process")
    parser.add_argument("--max-records", type=int, help="per poll; all there are without it")
    parser.add_argument("--max-poll-interval", type=float, default=300.0, help="seconds")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of work per poll")
    parser.add_argument("--stall", type=float, default=0.0, help="seconds of the work --stall-at")
    parser.add_argument("--stall-at", type=int, default=0, help="which work, from 1; 0 = none")
    options = parser.parse_args()
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    with Producer(options.bootstrap) as producer:
        diary = Diary(producer, options.diary)
        names = [f"{os.uname().nodename}/{index}" for index in range(options.members)]
        members = [
            threading.Thread(target=live, args=(name, options, diary, ending)) for name in names
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()


if __name__ == "__main__":
    main()
