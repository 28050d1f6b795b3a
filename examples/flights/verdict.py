"""PASS or FAIL: what is in the three topics against the source file and the producer's history.

    flights ─────▶ `penstock verify`'s checker: nothing lost, doubled or out of order
    enriched ────▶ each flight once, in order per carrier, with the right names
    delays ──────▶ each window's last value right, no update of a window twice
    both outputs ▶ what only read_uncommitted readers find was aborted, and done again

Plain arithmetic over frames that others have read: `Evidence` in, `Outcome` out.
"""

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from examples.flights.flights import Flights, HourlyKey, HourlyValue, hourly, with_names
from penstock.verify.check import Checker
from penstock.verify.verdict import Verdict

_FLIGHT = [("row", pa.int64()), ("n", pa.int64()), ("carrier", pa.string())]
FLIGHT_FIELDS = pa.schema(_FLIGHT)
ENRICHED_FIELDS = pa.schema(
    [
        *_FLIGHT,
        *((name, pa.int64()) for name in ("flight", "distance", "dep_delay", "arr_delay")),
        *((name, pa.string()) for name in ("tailnum", "origin", "dest")),
        *((name, pa.string()) for name in ("airline", "dest_name")),
        ("seats", pa.int64()),
    ]
)
DELAY_FIELDS = pa.schema(
    [
        ("carrier", pa.string()),
        *((name, pa.int64()) for name in ("hour", "flights", "departed", "delay", "batch")),
    ]
)
"""`hour`: its start, ms since 1970. `batch`: Spark's number; a replay has the same."""
WINDOW = ["carrier", "hour"]
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Frames have columns partition, offset and those of the schemas above, in log order.

    Attributes:
        acks: The producer's `ack` and `unknown` events in verify's form.
        late: Flights that Spark dropped behind its watermark.
        log: Topic flights, read_committed.
        enriched, delays: As read_committed readers see them.
        enriched_stored, delays_stored: As read_uncommitted readers do.
        left_open: Where the first records were of transactions whose owner was killed.
        not_killed: Who was to be killed and was not.
    """

    flights: Flights
    acks: list[dict[str, object]]
    late: int
    log: pd.DataFrame
    enriched: pd.DataFrame
    enriched_stored: pd.DataFrame
    delays: pd.DataFrame
    delays_stored: pd.DataFrame
    left_open: dict[str, list[Place]]
    not_killed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the demo ends with; `reasons` is empty when it passed.

    `aborted`: per output topic, records in the log that no reader sees.
    """

    reasons: list[str]
    history: Verdict
    streamed: dict[HourlyKey, HourlyValue]
    flights: int
    updates: int
    aborted: dict[str, int]


def decide(seen: Evidence) -> Outcome:
    """Compares."""
    history = judged(seen.flights, seen.acks, seen.log)
    reasons = [
        f"{breach.records:,} flights {rule}: {breach.examples[0]}"
        for rule, breach in history.breaches.items()
    ]
    reasons += [f"{who} was never killed" for who in seen.not_killed]
    reasons += each_once("flights", seen.log, seen.flights)
    reasons += each_once("enriched", seen.enriched, seen.flights)
    reasons += in_order(seen.enriched)
    reasons += right_names(seen.enriched, seen.flights)
    streamed = last_values(seen.delays)
    reasons += right_windows(streamed, hourly(seen.flights.table))
    reasons += no_update_twice(seen.delays)
    reasons += only_aborted_hidden("enriched", seen.enriched, seen.enriched_stored, ["row"])
    reasons += only_aborted_hidden("delays", seen.delays, seen.delays_stored, [*WINDOW, "batch"])
    for topic, visible in (("enriched", seen.enriched), ("delays", seen.delays)):
        reasons += nothing_left_open_visible(topic, visible, seen.left_open.get(topic, []))
    if seen.late:
        reasons.append(f"Spark dropped {seen.late:,} flights as late")
    return Outcome(
        reasons=reasons,
        history=history,
        streamed=streamed,
        flights=len(seen.enriched),
        updates=len(seen.delays),
        aborted={
            "enriched": len(seen.enriched_stored) - len(seen.enriched),
            "delays": len(seen.delays_stored) - len(seen.delays),
        },
    )


def each_once(topic: str, log: pd.DataFrame, flights: Flights) -> list[str]:
    unique = log["row"].nunique()
    if len(log) == len(flights) and unique == len(flights):
        return []
    held = f"{len(log):,} records of {unique:,} flights"
    return [f"topic {topic} holds {held}, the source {len(flights):,}"]


def in_order(enriched: pd.DataFrame) -> list[str]:
    """Per carrier, in one partition, numbers rise."""
    back = enriched.groupby("carrier")["n"].diff() < 0
    spread = enriched.groupby("carrier")["partition"].nunique() > 1
    reasons = []
    if back.any():
        first = enriched[back].iloc[0]
        reasons.append(
            f"{int(back.sum()):,} flights enriched stand behind a later one of their carrier, the "
            f"first {first['carrier']} {first['n']}"
        )
    if spread.any():
        reasons.append(f"carrier {spread.idxmax()} is in several partitions of topic enriched")
    return reasons


def right_names(enriched: pd.DataFrame, flights: Flights) -> list[str]:
    """Every field equals the source's."""
    fields = [name for name in ENRICHED_FIELDS.names if name != "row"]
    expected = with_names(flights.table).set_index("row")[fields]
    found = enriched.drop_duplicates("row").set_index("row")
    known = found.index.intersection(expected.index)
    wanted, found = expected.loc[known], found.loc[known]
    differ = pd.Series(data=False, index=known)
    for name in fields:
        if pa.types.is_string(ENRICHED_FIELDS.field(name).type):
            differ |= wanted[name].fillna("") != found[name].fillna("")
        else:
            missing = -(2.0**53)
            differ |= wanted[name].astype("Float64").fillna(missing) != found[name].astype(
                "Float64"
            ).fillna(missing)
    if not differ.any():
        return []
    row = int(differ.idxmax())
    first = f"the first in its row {row}: {found.loc[row, fields].to_dict()}"
    return [f"{int(differ.sum()):,} flights enriched are not what the source says, {first}"]


def last_values(delays: pd.DataFrame) -> dict[HourlyKey, HourlyValue]:
    """What a reader of the topic keeps who takes every update."""
    last = delays.drop_duplicates(WINDOW, keep="last")
    keys = zip(last["hour"].tolist(), last["carrier"].tolist(), strict=True)
    values = (last[name].tolist() for name in ("flights", "departed", "delay"))
    return dict(zip(keys, zip(*values, strict=True), strict=True))


def right_windows(
    streamed: dict[HourlyKey, HourlyValue], expected: dict[HourlyKey, HourlyValue]
) -> list[str]:
    wrong = [key for key in expected.keys() | streamed if expected.get(key) != streamed.get(key)]
    if not wrong:
        return []
    hour, carrier = first = min(wrong)
    values = f"streamed {streamed.get(first)}, source {expected.get(first)}"
    where = f"the first for {carrier} at {pd.Timestamp(hour, unit='ms')}: {values}"
    return [f"{len(wrong):,} of {len(expected):,} hourly aggregates differ, {where}"]


def no_update_twice(delays: pd.DataFrame) -> list[str]:
    """A batch updates a window at most once, and each update has counted more flights."""
    reasons = []
    twice = delays.duplicated([*WINDOW, "batch"])
    if twice.any():
        first = delays[twice].iloc[0]
        where = f"{first['carrier']} at {pd.Timestamp(first['hour'], unit='ms')}"
        reasons.append(
            f"{int(twice.sum()):,} rows of the sink are there twice, the first for {where} of "
            f"batch {first['batch']}"
        )
    stuck = delays.groupby(WINDOW)["flights"].diff() <= 0
    if stuck.any():
        reasons.append(f"{int(stuck.sum()):,} updates of windows count no more than those before")
    return reasons


def only_aborted_hidden(
    topic: str, visible: pd.DataFrame, stored: pd.DataFrame, identity: list[str]
) -> list[str]:
    """Whatever is stored and not visible was done again, and nothing visible is not stored."""
    place = ["partition", "offset"]
    seen = pd.MultiIndex.from_frame(visible[place])
    there = pd.MultiIndex.from_frame(stored[place])
    reasons = []
    strange = int((~seen.isin(there)).sum())
    if strange:
        reasons.append(f"{strange:,} records of topic {topic} are seen, but not stored")
    hidden = pd.MultiIndex.from_frame(stored[~there.isin(seen)][identity])
    lost = int((~hidden.isin(pd.MultiIndex.from_frame(visible[identity]))).sum())
    if lost:
        reasons.append(f"{lost:,} records of topic {topic} are hidden and were never done again")
    return reasons


def nothing_left_open_visible(
    topic: str, visible: pd.DataFrame, left_open: list[Place]
) -> list[str]:
    """What a killed owner had open must not count."""
    places = set(zip(visible["partition"].tolist(), visible["offset"].tolist(), strict=True))
    found = sorted(place for place in left_open if place in places)
    if not found:
        return []
    partition, offset = found[0]
    where = f"the first in partition {partition} at offset {offset:,}"
    return [f"topic {topic}: {len(found)} transactions that a kill left open are seen, {where}"]


def judged(flights: Flights, acks: list[dict[str, object]], log: pd.DataFrame) -> Verdict:
    """Runs verify's checker: a carrier is a stream, its running number the sequence."""
    names = sorted(set(flights.carriers))
    streams = {carrier: stream for stream, carrier in enumerate(names)}
    checker = Checker()
    checker.first_pass({"e": "start", "run": 1, "acks": "ALL"})
    for carrier, count in flights.table.groupby("carrier").size().items():
        checker.first_pass(
            {"e": "send", "s": streams[str(carrier)], "q": 0, "n": int(count), "t": 0}
        )
    for event in acks:
        checker.first_pass({**event, "s": streams[str(event["s"])]})
    for partition, part in log.groupby("partition"):
        offsets = part["offset"]
        ends = {"lo": int(offsets.iloc[0]), "hi": int(offsets.iloc[-1]) + 1}
        checker.first_pass({"e": "ends", "p": int(str(partition)), **ends})
        columns = zip(part["offset"], part["carrier"], part["n"], strict=True)
        for offset, carrier, number in columns:
            where = {"p": int(str(partition)), "o": int(offset)}
            counted = {"s": streams[carrier], "q": int(number), "n": 1}
            checker.first_pass({"e": "final", "r": "log", **where, **counted})
    return checker.finish()
