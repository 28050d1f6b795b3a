"""A topic into a table, exactly once: `python -m examples.recipes.to_sqlite --database totals.db`.

The offsets are in the database, and change in the transaction that changes the totals: they cannot
disagree. Kill it, start it again, start several: each record counts once.
"""

import argparse
import sqlite3

from penstock.client import ConsumedBatch, Consumer, TopicPartition

SCHEMA = """
CREATE TABLE IF NOT EXISTS totals (key TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (place TEXT PRIMARY KEY, next INTEGER NOT NULL);
"""


class SeekToStored:
    """Told when this member gets partitions: the database says where to go on in each."""

    def __init__(self, database: sqlite3.Connection, consumer: Consumer) -> None:
        self.database = database
        self.consumer = consumer
        self.read_from: dict[TopicPartition, int] = {}

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for where in partitions:
            with self.database as db:
                db.execute("INSERT OR IGNORE INTO offsets VALUES (?, 0)", (str(where),))
                found = db.execute("SELECT next FROM offsets WHERE place = ?", (str(where),))
                (self.read_from[where],) = found.fetchone()
            self.consumer.seek(where, self.read_from[where])

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None: ...

    def store(self, batch: ConsumedBatch) -> None:
        """One transaction: an error rolls all of it back. Raises RuntimeError if another member
        has gone on here, because this one was frozen for too long."""
        where = batch.topic_partition
        with self.database as db:
            for record in batch.records():
                db.execute(
                    "INSERT INTO totals VALUES (?, 1) "
                    "ON CONFLICT (key) DO UPDATE SET count = count + 1",
                    ((record.key or b"").decode(),),
                )
            changed = db.execute(
                "UPDATE offsets SET next = ? WHERE place = ? AND next = ?",
                (batch.next_offset, str(where), self.read_from[where]),
            )
            if changed.rowcount != 1:
                raise RuntimeError(f"another member works on {where}")
        self.read_from[where] = batch.next_offset


def main() -> None:
    """Works until Ctrl-C."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default="localhost:9092")
    options.add_argument("--topic", default="flights")
    options.add_argument("--database", default="totals.db")
    given = options.parse_args()
    database = sqlite3.connect(given.database, timeout=60, check_same_thread=False)
    database.executescript(SCHEMA)
    with Consumer(given.bootstrap, group_id="totals", enable_auto_commit=False) as consumer:
        keeper = SeekToStored(database, consumer)
        consumer.subscribe(given.topic, listener=keeper)
        while True:
            for batch in consumer.poll():
                keeper.store(batch)


if __name__ == "__main__":
    main()
