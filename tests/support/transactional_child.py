"""A transactional producer as a process of its own, which a test can stop and let go on.

    python transactional_child.py BOOTSTRAP ID TIMEOUT_MS TOPIC

It takes a line of standard input for each step and answers with a line of JSON: "begin" begins and
stores a record that says so in partition 0, "commit" commits, "abort" aborts. The answer holds
"code" and "message" of the error, if there was one. It ends with its standard input.
"""

import json
import sys

from penstock.client import Producer, Transaction
from penstock.errors import PenstockError


def main(bootstrap: str, transactional_id: str, timeout_ms: str, topic: str) -> None:
    with Producer(
        bootstrap,
        transactional_id=transactional_id,
        transaction_timeout_ms=int(timeout_ms),
        client_id="child",
    ) as producer:
        transaction: Transaction = producer.transaction()

        def begin() -> None:
            nonlocal transaction
            transaction = producer.transaction()
            transaction.begin()
            transaction.send(topic, b"of the child", partition=0).result(30)

        def commit() -> None:
            transaction.commit()

        def abort() -> None:
            transaction.abort()

        steps = {"begin": begin, "commit": commit, "abort": abort}
        for line in sys.stdin:
            answer = {"code": "", "message": ""}
            try:
                steps[line.strip()]()
            except PenstockError as error:
                answer = {"code": error.code.name, "message": error.message}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
