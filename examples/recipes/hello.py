"""Write a record, and read what the group has not read yet: `python -m examples.recipes.hello`."""

import argparse

from penstock.client import Consumer, Producer


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", default="localhost:9092")
    options.add_argument("--topic", default="flights")
    given = options.parse_args()

    with Producer(given.bootstrap) as producer:
        stored = producer.send(given.topic, b"on time", key=b"UA").result()
        print(f"stored in partition {stored.partition} at offset {stored.offset}")

    # The group remembers how far it has read: run this again, and only new records come.
    with Consumer(given.bootstrap, group_id="hello", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(given.topic)
        while batches := consumer.poll(timeout_s=2):
            for batch in batches:
                for record in batch.records():
                    print(record.partition, record.offset, record.key, record.value)
            consumer.commit()


if __name__ == "__main__":
    main()
