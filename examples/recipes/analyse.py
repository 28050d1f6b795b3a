"""A topic as Arrow tables: `python -m examples.recipes.analyse --topic flights`.

No Python object per record: batches are columns from the broker to the sum. Needs
`penstock[arrow]`.
"""

import argparse

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client import Consumer


def read(bootstrap: str, topic: str) -> pa.Table:
    """All records of a topic, to its current end; no group remembers that they were read."""
    with Consumer(bootstrap) as consumer:
        return consumer.read_to_end(topic).to_arrow()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default="localhost:9092")
    options.add_argument("--topic", default="flights")
    given = options.parse_args()
    table = read(given.bootstrap, given.topic)
    if not table.num_rows:
        raise SystemExit(f"there are no records in {given.topic}")
    sizes = pc.binary_length(table["value"])
    table = table.append_column("bytes", sizes)
    by_key = table.group_by("key").aggregate([("bytes", "count"), ("bytes", "mean")])
    for row in by_key.sort_by([("bytes_count", "descending")]).to_pylist()[:10]:
        key = (row["key"] or b"-").decode()
        print(f"{key:<10} {row['bytes_count']:>8,} records, {row['bytes_mean']:.0f} bytes each")


if __name__ == "__main__":
    main()
