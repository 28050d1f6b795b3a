"""A consume-transform-produce loop as a program; `members.py` runs its text in pods.

    source ─▶ Transformer ─▶ target: a line for every record, in the transaction of its offset

A line says in JSON which record it was made of (`p`, `o`), who made it (`r`: the pod, and a number
for the process) and when (`t`, seconds since 1970). On SIGTERM the loop commits and leaves.
"""

import argparse
import json
import os
import signal
import time

from penstock.client import Transformer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "topic", "group", "target"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    me = f"{os.uname().nodename}.{time.time_ns()}"
    with Transformer(
        options.bootstrap, group_id=options.group, source=options.topic, client_id=me
    ) as loop:
        signal.signal(signal.SIGTERM, lambda *_: loop.stop())
        for batches, out in loop:
            for batch in batches:
                for record in batch.records():
                    made_of = {"p": record.partition, "o": record.offset}
                    line = json.dumps({**made_of, "r": me, "t": time.time_ns() / 1e9})
                    out.send(options.target, line.encode(), key=record.key)


if __name__ == "__main__":
    main()
