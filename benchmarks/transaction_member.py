"""A member of a pipe that stops in the middle of a transaction, in a process of its own.

It reads as a member of its group, writes into a transaction, adds its offsets, says "open", and
goes no further; its client keeps it in its group. It ends with its standard input, so with whoever
started it, and is the only one of its process group: Ctrl-C does not reach it.
"""

import argparse
import os
import sys
import threading

from penstock.client import ConsumedBatch, Consumer, Producer

TIMEOUT_MS = 300_000
"""Of the transaction: whatever ends it sooner is not its timeout."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("group")
    parser.add_argument("source")
    parser.add_argument("target")
    args = parser.parse_args()
    orphaned = threading.Thread(target=_end_with_input, daemon=True)
    orphaned.start()
    with (
        Consumer(
            args.bootstrap,
            group_id=args.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            transactional_id=args.group,
        ) as consumer,
        Producer(
            args.bootstrap, transactional_id=args.group, transaction_timeout_ms=TIMEOUT_MS
        ) as producer,
    ):
        consumer.subscribe(args.source)
        batches: list[ConsumedBatch] = []
        while not batches:
            batches = consumer.poll(5.0)
        tx = producer.transaction()
        tx.begin()
        for batch in batches:
            for record in batch.records():
                tx.send(args.target, record.value, record.key)
        producer.flush()
        tx.commit_offsets(consumer)
        print("open", flush=True)
        orphaned.join()


def _end_with_input() -> None:
    """Whoever started this is gone, whatever this waits for: the cluster ends what is open."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
