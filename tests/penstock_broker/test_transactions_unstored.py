"""A coordinator that can store nothing: its transactions stay open, and grow older in metrics."""

from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.metrics import scrape
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until

OPEN = "penstock_transactions_open"
AGE = "penstock_transactions_oldest_open_seconds"
TIMEOUT_MS = 12_000
OLD_S = 18.0
"""It should have been aborted, and is counted every five seconds."""


def test_a_transaction_that_cannot_be_aborted_stays_open_and_ages(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        cluster.create_topic("t", replication_factor=3)
        producer = TransactionalProducer(cluster, "stays", transaction_timeout_ms=TIMEOUT_MS).init()
        producer.send("t", b"x")
        port = cluster.metrics_ports[0]
        for broker_id in (1, 2):
            cluster.brokers[broker_id].kill()
        wait_until(lambda: scrape(port)[OPEN] == 1, what="the transaction is counted")
        ages = [0.0]

        def is_old() -> bool:
            page = scrape(port)
            assert page[OPEN] == 1
            ages.append(page[AGE])
            return page[AGE] > OLD_S

        wait_until(is_old, what="it is open for long", timeout_s=60)
        assert ages == sorted(ages)
        for broker_id in (1, 2):
            cluster.brokers[broker_id].start()

        def is_over() -> bool:
            pages = [scrape(each) for each in cluster.metrics_ports.values()]
            return all(page[OPEN] == page[AGE] == 0 for page in pages)

        wait_until(is_over, what="it is aborted", timeout_s=60)
