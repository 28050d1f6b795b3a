"""The demo's verdict: PASS for what it should find, and a reason of its own for every fault."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pandas as pd
import pytest

from examples.flights.flights import Flights, hourly, load, with_names
from examples.flights.verdict import (
    DELAY_FIELDS,
    ENRICHED_FIELDS,
    FLIGHT_FIELDS,
    Evidence,
    decide,
)

COUNT = 3_000
PARTITIONS = 3
Frame: TypeAlias = pd.DataFrame


@pytest.fixture(scope="module")
def flights() -> Flights:
    """The first of the year."""
    every = load()
    return Flights(
        keys=every.keys[:COUNT],
        values=every.values[:COUNT],
        timestamps_ms=every.timestamps_ms[:COUNT],
        carriers=every.carriers[:COUNT],
        numbers=every.numbers[:COUNT],
        table=every.table.iloc[:COUNT].reset_index(drop=True),
    )


def placed(frame: Frame, step: int = 2) -> Frame:
    """With a partition per carrier, and every `step`th offset in the frame's order."""
    frame = frame.assign(partition=pd.factorize(frame["carrier"])[0] % PARTITIONS)
    frame["offset"] = frame.groupby("partition").cumcount() * step
    return frame.sort_values(["partition", "offset"], ignore_index=True)


def updates(flights: Flights) -> Frame:
    """Two updates of each window: one when half of it had come, if that is any, and the last."""
    rows = []
    for (hour, carrier), (flown, departed, delay) in hourly(flights.table).items():
        half = flown // 2
        if half:
            rows.append((carrier, hour, half, min(half, departed), 0, 1))
        rows.append((carrier, hour, flown, departed, delay, 2))
    return pd.DataFrame(rows, columns=DELAY_FIELDS.names)


def stored(frame: Frame, again: int) -> Frame:
    """The log: the last records of partition 0 had been there before, in an aborted transaction."""
    first = frame[frame["partition"] == 0]
    aborted = first.tail(again).assign(offset=first["offset"].tail(again) - 2 * again - 1)
    both = pd.concat([frame, aborted], ignore_index=True)
    return both.sort_values(["partition", "offset"], ignore_index=True)


@pytest.fixture(scope="module")
def good(flights: Flights) -> Evidence:
    """What a demo finds that has worked."""
    log = placed(flights.table[FLIGHT_FIELDS.names], step=1)
    acks = [
        {"e": "ack", "s": carrier, "q": number, "n": 1, "p": partition, "o": offset, "t": 0}
        for carrier, number, partition, offset in zip(
            log["carrier"], log["n"], log["partition"], log["offset"], strict=True
        )
    ]
    enriched = placed(with_names(flights.table)[ENRICHED_FIELDS.names])
    delays = placed(updates(flights))
    hidden = stored(enriched, 5)
    left = hidden[~hidden["offset"].mod(2).eq(0)].iloc[0]
    return Evidence(
        flights=flights,
        acks=acks,
        late=0,
        log=log,
        enriched=enriched,
        enriched_stored=hidden,
        delays=delays,
        delays_stored=stored(delays, 7),
        left_open={"enriched": [(int(left["partition"]), int(left["offset"]))]},
        not_killed=[],
    )


def test_what_has_worked_passes(good: Evidence) -> None:
    outcome = decide(good)
    assert outcome.reasons == []
    assert outcome.flights == COUNT
    assert outcome.aborted == {"enriched": 5, "delays": 7}
    assert outcome.updates == len(good.delays)
    assert outcome.streamed == hourly(good.flights.table)


def lost(frame: Frame) -> Frame:
    return frame.drop(index=frame.index[10]).reset_index(drop=True)


def doubled(frame: Frame) -> Frame:
    """The eleventh record once more, at the end of its partition."""
    again = frame.iloc[[10]].assign(offset=frame["offset"].max() + 2)
    both = pd.concat([frame, again], ignore_index=True)
    return both.sort_values(["partition", "offset"], ignore_index=True)


def changed(frame: Frame, column: str, value: object) -> Frame:
    frame = frame.copy()
    frame.loc[10, column] = value
    return frame


def without_first_hidden(found: Evidence) -> Evidence:
    """A record that only the log has, and its flight nowhere else."""
    row = found.enriched_stored.loc[found.enriched_stored["offset"] % 2 == 1, "row"].iloc[0]
    seen = found.enriched[found.enriched["row"] != row].reset_index(drop=True)
    return replace(found, enriched=seen)


def swapped(frame: Frame) -> Frame:
    """Two flights of a carrier the wrong way round."""
    same = frame.index[(frame["carrier"] == "UA")][:2]
    frame = frame.copy()
    frame.loc[same, "offset"] = frame.loc[same[::-1], "offset"].to_numpy()
    return frame.sort_values(["partition", "offset"], ignore_index=True)


def aborted_seen(found: Evidence) -> Evidence:
    """The aborted records are seen like all others."""
    return replace(found, enriched=found.enriched_stored)


FAULTS: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "a flight lost from the log": (
        lambda found: replace(found, log=lost(found.log)),
        r"1 flights lost: ",
    ),
    "a flight twice in the log": (
        lambda found: replace(found, log=doubled(found.log)),
        r"1 flights duplicated: ",
    ),
    "a flight not enriched": (
        lambda found: replace(found, enriched=lost(found.enriched)),
        r"topic enriched holds 2,999 records of 2,999 flights, the source 3,000",
    ),
    "a flight enriched twice": (
        lambda found: replace(
            found, enriched=doubled(found.enriched), enriched_stored=doubled(found.enriched)
        ),
        r"topic enriched holds 3,001 records of 3,000 flights, the source 3,000",
    ),
    "flights enriched out of order": (
        lambda found: replace(found, enriched=swapped(found.enriched)),
        r"1 flights enriched stand behind a later one of their carrier, the first UA 0",
    ),
    "a carrier in two partitions": (
        lambda found: replace(found, enriched=changed(found.enriched, "partition", 2)),
        r"carrier \w+ is in several partitions of topic enriched",
    ),
    "a wrong name": (
        lambda found: replace(found, enriched=changed(found.enriched, "airline", "Nobody")),
        r"1 flights enriched are not what the source says, the first in its row \d+: .*Nobody",
    ),
    "a wrong number": (
        lambda found: replace(found, enriched=changed(found.enriched, "dep_delay", None)),
        r"1 flights enriched are not what the source says",
    ),
    "a window without its last value": (
        lambda found: replace(
            found, delays=found.delays[found.delays["flights"] != found.delays["flights"].max()]
        ),
        r"\d+ of \d+ hourly aggregates differ, the first for ",
    ),
    "a row of the sink twice": (
        lambda found: replace(
            found, delays=doubled(found.delays), delays_stored=doubled(found.delays_stored)
        ),
        r"1 rows of the sink are there twice, the first for \w\w at 2013-01-01 .* of batch ",
    ),
    "an update that counts nothing": (
        lambda found: replace(
            found,
            delays=doubled(found.delays).assign(batch=range(len(found.delays) + 1)),
            delays_stored=doubled(found.delays).assign(batch=range(len(found.delays) + 1)),
        ),
        r"1 updates of windows count no more than those before",
    ),
    "an aborted transaction that is seen": (
        aborted_seen,
        r"topic enriched: 1 transactions that a kill left open are seen, the first in partition 0",
    ),
    "hidden and never done again": (
        without_first_hidden,
        r"2 records of topic enriched are hidden and were never done again",
    ),
    "an update hidden and never done again": (
        lambda found: replace(
            found, delays_stored=found.delays_stored.assign(batch=found.delays_stored["batch"] + 9)
        ),
        r"7 records of topic delays are hidden and were never done again",
    ),
    "seen and not stored": (
        lambda found: replace(found, enriched_stored=lost(found.enriched)),
        r"1 records of topic enriched are seen, but not stored",
    ),
    "late flights": (
        lambda found: replace(found, late=3),
        r"Spark dropped 3 flights as late",
    ),
    "nobody killed": (
        lambda found: replace(found, not_killed=["the Spark driver"]),
        r"the Spark driver was never killed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_a_reason(good: Evidence, fault: str) -> None:
    plant, reason = FAULTS[fault]
    reasons = decide(plant(good)).reasons
    assert any(re.match(reason, found) for found in reasons), reasons
