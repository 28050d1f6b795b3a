"""A transformer as a process of its own, which a test can stop within a transaction.

    python transforming_child.py BOOTSTRAP TOPIC TRANSACTION_TIMEOUT_MS SESSION_TIMEOUT_MS

It copies TOPIC to TOPIC.out, as a member of the group TOPIC, and says its transactional id. With
its first twenty records stored, the last of them in an open transaction, it says "held" and waits
for a line of standard input; then it goes on until that ends. It logs to standard error.

If a timeout passes before that, because the machine stood still, it begins to count again.
"""

import logging
import sys
import threading

from penstock.client import Delivery, Out, Record, Transformer
from penstock.errors import PenstockError

HELD_AT = 20
COMMIT_INTERVAL_MS = 1_000


def main(bootstrap: str, topic: str, transaction_timeout_ms: str, session_timeout_ms: str) -> None:
    logging.basicConfig(format="%(name)s %(message)s")
    first: list[Delivery] = []

    def copy(record: Record, out: Out) -> None:
        delivery = out.send(f"{topic}.out", record.value, record.key)
        if len(first) == HELD_AT:
            return
        first.append(delivery)
        if len(first) == HELD_AT:
            try:
                for each in first:
                    each.result(60)
            except PenstockError:
                first.clear()
                raise  # and all of it is copied again
            print("held", flush=True)
            sys.stdin.readline()
            threading.Thread(target=stop_with_input, daemon=True).start()

    def stop_with_input() -> None:
        sys.stdin.read()
        loop.stop()

    with Transformer(
        bootstrap,
        group_id=topic,
        source=topic,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        transaction_timeout_ms=int(transaction_timeout_ms),
        session_timeout_ms=int(session_timeout_ms),
    ) as loop:
        print(loop.core.transactional_id, flush=True)
        loop.run(copy)


if __name__ == "__main__":
    main(*sys.argv[1:])
