"""Read orders, write bills, exactly once: `python -m examples.recipes.bill`, as often as you like.

Each bill and the offset of its order are committed in one transaction, so a bill exists once,
whatever crashes. An order without an amount goes to the dead letters, in the transaction of its
offset. Address and login may come from the environment, as in examples/kubernetes.
"""

import argparse
import json
import os
import signal

from penstock.client import Out, Record, Transformer


def bill(order: Record, out: Out) -> None:
    """Called again if its transaction was aborted; nobody has read then what it had sent."""
    amount = json.loads(order.value or b"{}")["amount"]
    taxed = {"amount": amount, "tax": round(amount * 0.2, 2)}
    out.send("bills", json.dumps(taxed).encode(), key=order.key)


def main() -> None:
    """Works until Ctrl-C or SIGTERM, and ends after a commit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default=os.environ.get("BOOTSTRAP", "localhost:9092"))
    given = options.parse_args()
    with Transformer(
        given.bootstrap,
        group_id="billing",
        source="orders",
        retries=1,
        dead_letter_topic="orders.dead",
    ) as loop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.stop())
        loop.run(bill)


if __name__ == "__main__":
    main()
