"""The transformer, a process of its own: each flight in, the flight with names out, exactly once.

    flights ─▶ transform: enrich(record, out) ─▶ enriched
               one transaction holds what was sent and how far was read

Killed at any moment and started again, it goes on behind the last transaction that counted; what
the killed one had open is aborted, and nobody reads it.
"""

import argparse
import csv
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from examples.flights.source import data_folder
from penstock.client import Out, Record, transform
from penstock.errors import PenstockError

GROUP = "enrich"
COMMIT_INTERVAL_MS = 200


@dataclass(frozen=True, slots=True)
class Names:
    """By carrier, airport and tail number."""

    airlines: dict[str, str]
    airports: dict[str, str]
    seats: dict[str, int]

    @classmethod
    def load(cls) -> "Names":
        seats = _column("planes.csv", "tailnum", "seats")
        return cls(
            airlines=_column("airlines.csv", "carrier", "name"),
            airports=_column("airports.csv", "faa", "name"),
            seats={tailnum: int(count) for tailnum, count in seats.items()},
        )

    def enriched(self, value: bytes) -> bytes:
        """A flight's JSON, with `airline`, `dest_name` and `seats`; null where it is not known."""
        flight = json.loads(value)
        flight["airline"] = self.airlines.get(flight["carrier"])
        flight["dest_name"] = self.airports.get(flight["dest"])
        flight["seats"] = self.seats.get(flight["tailnum"])
        return json.dumps(flight, separators=(",", ":")).encode()


def enricher(names: Names, target: str) -> Callable[[Record, Out], None]:
    """The handler: one record in, one out, with its key and its time."""

    def enrich(record: Record, out: Out) -> None:
        value = names.enriched(record.value or b"")
        out.send(target, value, record.key, timestamp_ms=record.timestamp_ms)

    return enrich


def _column(file: str, key: str, value: str) -> dict[str, str]:
    with (data_folder() / file).open(encoding="utf-8", newline="") as rows:
        return {row[key]: row[value] for row in csv.DictReader(rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        transform(
            args.bootstrap,
            group_id=GROUP,
            source=args.source,
            handle=enricher(Names.load(), args.target),
            commit_interval_ms=COMMIT_INTERVAL_MS,
        )
    except KeyboardInterrupt:
        return 0
    except PenstockError as error:
        print(f"PenstockError: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
