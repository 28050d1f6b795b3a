"""PASS or FAIL: what Spark saw against the source file, and the log against the producer.

Two independent judges: `penstock verify`'s over the history of acknowledgements (nothing lost,
duplicated or out of order), and plain arithmetic over the aggregates.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from examples.flights.flights import Flights, HourlyKey, HourlyValue, hourly
from penstock.verify.check import Judge, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo ends with; `reasons` is empty when it passed."""

    reasons: list[str]
    history: Verdict
    streamed: dict[HourlyKey, HourlyValue]
    flights: int


def decide(flights: Flights, acks: list[dict[str, object]], late: int, results: Path) -> Outcome:
    """Compares; `acks` are the producer's `ack` and `unknown` events in verify's form."""
    log = pd.read_parquet(results / "log.parquet").sort_values(["partition", "offset"])
    rows = json.loads((results / "hourly.json").read_text())
    streamed = {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}
    history = _judge(flights, acks, log)
    reasons = [
        f"{breach.records:,} flights {rule}: {breach.examples[0]}"
        for rule, breach in history.breaches.items()
    ]
    if len(log) != len(flights) or log["row"].nunique() != len(flights):
        reasons.append(
            f"the log holds {len(log):,} records of {log['row'].nunique():,} flights, "
            f"the source {len(flights):,}"
        )
    expected = hourly(flights.table)
    wrong = [key for key in expected.keys() | streamed if expected.get(key) != streamed.get(key)]
    if wrong:
        hour, carrier = min(wrong)
        reasons.append(
            f"{len(wrong):,} of {len(expected):,} hourly aggregates differ, the first for "
            f"{carrier} at {pd.Timestamp(hour, unit='ms')}: streamed {streamed.get(min(wrong))}, "
            f"source {expected.get(min(wrong))}"
        )
    if late:
        reasons.append(f"Spark dropped {late:,} flights as late")
    return Outcome(reasons, history, streamed, len(log))


def _judge(flights: Flights, acks: list[dict[str, object]], log: pd.DataFrame) -> Verdict:
    """Runs verify's judge: a carrier is a stream, its running number the sequence."""
    names = sorted(set(flights.carriers))
    streams = {carrier: stream for stream, carrier in enumerate(names)}
    judge = Judge()
    judge.first_pass({"e": "start", "run": 1, "acks": "ALL"})
    for carrier, count in flights.table.groupby("carrier").size().items():
        judge.first_pass({"e": "send", "s": streams[str(carrier)], "q": 0, "n": int(count), "t": 0})
    for event in acks:
        judge.first_pass({**event, "s": streams[str(event["s"])]})
    for partition, part in log.groupby("partition"):
        offsets = part["offset"]
        ends = {"lo": int(offsets.iloc[0]), "hi": int(offsets.iloc[-1]) + 1}
        judge.first_pass({"e": "ends", "p": int(str(partition)), **ends})
        columns = zip(part["offset"], part["carrier"], part["n"], strict=True)
        for offset, carrier, number in columns:
            where = {"p": int(str(partition)), "o": int(offset)}
            judge.first_pass(
                {
                    "e": "final",
                    "r": "spark",
                    **where,
                    "s": streams[carrier],
                    "q": int(number),
                    "n": 1,
                }
            )
    return judge.finish()
