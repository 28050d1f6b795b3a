"""Writes flights of 2013 into a topic: `python -m examples.groups.load --count 50000`."""

import argparse

from examples.flights.flights import load
from penstock.client import Producer


def main() -> None:
    """Sends the first flights of the year, in their order, by carrier."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default="localhost:9092")
    options.add_argument("--topic", default="flights")
    options.add_argument("--count", type=int, default=50_000, help="at most 336,776")
    given = options.parse_args()
    flights = load()
    count = min(given.count, len(flights))
    with Producer(given.bootstrap) as producer:
        for number in range(count):
            producer.send(
                given.topic,
                flights.values[number],
                flights.keys[number],
                timestamp_ms=flights.timestamps_ms[number],
            )
    print(f"{count:,} flights are in {given.topic}")


if __name__ == "__main__":
    main()
