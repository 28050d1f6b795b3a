"""A queue of flights: each is worked on by one worker of the group, late ones are counted.

`python -m examples.groups.delays` in as many terminals as you like: they share the work. A flight
that never left has no delay; its handler fails, and after a retry it goes to the dead letters.
Ctrl-C ends one; the others take over its partitions.
"""

import argparse
import json
import logging
import signal
import threading
import time
from collections import Counter

from penstock.client import Record, WorkerConfig, WorkerPool


class Delays:
    """What this process has worked on."""

    def __init__(self) -> None:
        self.late: Counter[str] = Counter()
        self.lock = threading.Lock()

    def handle(self, record: Record) -> None:
        """One flight; raises for one that never left."""
        flight = json.loads(record.value or b"{}")
        if flight["dep_delay"] is None:
            raise ValueError("this flight never left")
        if flight["dep_delay"] > 15:
            with self.lock:
                self.late[flight["carrier"]] += 1


def main() -> None:
    """Works until Ctrl-C, or with --exit until nothing has come for a while."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default="localhost:9092")
    options.add_argument("--topic", default="flights")
    options.add_argument("--group", default="delays")
    options.add_argument("--dead-letters", default="flights.dead")
    options.add_argument("--exit", action="store_true", help="end when there is nothing to do")
    given = options.parse_args()
    logging.getLogger("penstock.client").setLevel(logging.ERROR)
    delays = Delays()
    pool = WorkerPool(
        given.bootstrap,
        given.topic,
        given.group,
        delays.handle,
        WorkerConfig(workers=8, retries=1, backoff_ms=1, dead_letter_topic=given.dead_letters),
    )
    signal.signal(signal.SIGINT, lambda *_: pool.stop())
    running = threading.Thread(target=pool.run, name="pool")
    running.start()
    report(pool, running, ends=given.exit)
    running.join()
    late = ", ".join(f"{carrier} {count}" for carrier, count in delays.late.most_common(5))
    print(f"worked on {pool.core.handled:,}, dead letters {pool.core.dead_lettered:,}")
    print(f"more than a quarter of an hour late: {late or 'none'}")


def report(pool: WorkerPool, running: threading.Thread, *, ends: bool) -> None:
    """A line per second while there is work; with `ends`, stops the pool after five idle ones."""
    before, idle_s = 0, 0
    while running.is_alive():
        time.sleep(1)
        done = pool.core.handled + pool.core.dead_lettered
        idle_s = 0 if done > before else idle_s + 1
        if done > before:
            print(f"{done - before:,} flights/s", flush=True)
        before = done
        if ends and done and idle_s >= 5:
            pool.stop()
            return


if __name__ == "__main__":
    main()
