"""What two live brokers tell of transactions, value by value.

`test_transactions.py` looks at the counts of what is open and how it ended.
"""

import re
import uuid
from collections.abc import Iterator

import pytest
from support.cluster import PATIENT, Cluster
from support.counting_child import LAUNCHER
from support.group_wire import Groups
from support.metrics import scrape
from support.metrics_page import expressions
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until
from support.wire import now_ms

from penstock.client import Admin, BatchRun, Producer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("metrics")
    with Cluster(path, brokers=2, launcher=LAUNCHER, controller_config=PATIENT) as running:
        running.create_topic("t", partitions=2)
        yield running


def total(cluster: Cluster, name: str) -> float:
    """Of both brokers; 0 for what neither has."""
    return sum(scrape(port)[f"penstock_{name}"] for port in cluster.metrics_ports.values())


def exporters(cluster: Cluster, name: str) -> list[int]:
    """The brokers that have this sample."""
    ports = cluster.metrics_ports
    return [one for one in ports if f"penstock_{name}" in scrape(ports[one]).values]


def test_a_commit_is_timed_until_its_decision_is_stored_and_an_abort_is_not(
    cluster: Cluster,
) -> None:
    timed = "transaction_commit_seconds_count"
    producer = TransactionalProducer(cluster, "timed").init()
    before = total(cluster, timed)
    for commit in (True, False, True):
        producer.send("t", b"x")
        producer.end(commit=commit)
    producer.end(commit=True)  # empty: nothing is decided
    assert total(cluster, timed) == before + 2
    assert total(cluster, "transaction_commit_seconds_sum") > 0


def test_a_partition_shows_how_many_offsets_wait_while_there_are_any(cluster: Cluster) -> None:
    open_one = "partition_stable_offset_lag{1,t}"
    producer = TransactionalProducer(cluster, "slow").init()
    producer.send("t", b"before", partition=1)
    producer.end(commit=True)
    wait_until(lambda: exporters(cluster, open_one) == [], what="nothing waits")
    producer.send("t", b"a", b"b", b"c", partition=1)
    assert total(cluster, open_one) == 3
    assert exporters(cluster, open_one) == [cluster.leader("t", 1)], "its follower has none"
    assert total(cluster, "stable_offset_lag") == 3
    producer.end(commit=False)
    wait_until(lambda: exporters(cluster, open_one) == [], what="nothing waits any more")
    wait_until(lambda: total(cluster, "stable_offset_lag") == 0, what="nothing lags")


def test_offsets_of_a_group_that_a_transaction_holds_are_counted(cluster: Cluster) -> None:
    pending, committed = "group_pending_offsets{g}", "group_committed_offset{g,0,t}"
    producer = TransactionalProducer(cluster, "pipe").init()
    part_of = producer.part_of()
    with Groups(cluster) as groups:
        groups.commit("g", {("t", 0): 1})
        groups.commit("g", {("t", 0): 2, ("t", 1): 5}, **part_of)
    wait_until(lambda: total(cluster, pending) == 2, what="two offsets are pending")
    assert total(cluster, committed) == 1, "the others have yet to count"
    producer.end(commit=True)
    wait_until(lambda: total(cluster, committed) == 2, what="they count")
    wait_until(lambda: total(cluster, pending) == 0, what="none is pending any more")
    assert len(exporters(cluster, pending)) == 1


def test_an_applications_ledger_has_the_age_of_its_newest_commit(cluster: Cluster) -> None:
    age = "ledger_age_seconds{metered}"
    with (
        Producer(cluster.bootstrap, transactional_id="metered") as producer,
        Admin(cluster.bootstrap) as admin,
    ):
        for batch in range(2):
            run = BatchRun("metered", "query", str(uuid.uuid4()), batch)
            branches = producer.branches()
            branch = branches.begin(run, 0, 0)
            assert branch is not None
            branches.send_columns("t", [b"row"])
            branches.hand_over()
            if batch == 0:
                assert exporters(cluster, age) == [], "nothing is committed"
            branches.commit_batch(run, 1, [branch])
        (ledger,) = [one for one in admin.list_ledgers() if one.application_id == "metered"]
        assert ledger.batch == 1
        committed_ms = ledger.time_ms

    def is_counted() -> bool:
        """Brokers count now and then."""
        least_s = (now_ms() - committed_ms) / 1000
        seen_s = total(cluster, age)
        return least_s <= seen_s <= (now_ms() - committed_ms) / 1000

    wait_until(is_counted, what="the age of the second batch")
    assert len(exporters(cluster, age)) == 1, "its coordinator's"


# ---------------------------------------------------------------- the page's expressions

ONLY_WITH_TLS = "penstock_tls_"


def asked_for() -> set[tuple[str, str]]:
    """(metric, label) of every expression on the page; label "": the metric itself."""
    found = set()
    for query in expressions():
        for expression in query.splitlines():
            labels = {""}
            for listed in re.findall(r"by \(([\w, ]+)\)", expression):
                labels |= set(listed.split(", "))
            labels |= set(re.findall(r"[{,](\w+)=", expression))
            found |= {
                (m, label)
                for m in re.findall(r"penstock_\w+", expression)
                if not m.startswith(ONLY_WITH_TLS)
                for label in labels
            }
    return found


def test_the_expressions_of_the_page_find_what_live_brokers_export(cluster: Cluster) -> None:
    asked = asked_for()
    assert len({metric for metric, _ in asked}) >= 8, "the page has expressions"
    producer = TransactionalProducer(cluster, "watched").init()
    producer.send("t", b"x")
    part_of = producer.part_of()
    with Groups(cluster) as groups:
        groups.commit("watched", {("t", 1): 0})
        groups.commit("watched", {("t", 0): 1}, **part_of)
    commit_a_batch(cluster, "watched-application")

    def unknown() -> set[tuple[str, str]]:
        missing = set(asked)
        for port in cluster.metrics_ports.values():
            for metric, labels in scrape(port).labels.items():
                missing -= {(metric, label) for label in labels | {""}}
        return missing

    def all_known() -> bool:
        return not unknown()

    try:
        wait_until(all_known, what="brokers export what the page asks for")
    except AssertionError:
        raise AssertionError(f"no broker exports {sorted(unknown())}") from None
    producer.end(commit=False)


def commit_a_batch(cluster: Cluster, application: str) -> None:
    """An empty one: the ledger advances."""
    with Producer(cluster.bootstrap, transactional_id=application) as producer:
        producer.branches().commit_batch(
            BatchRun(application, "query", str(uuid.uuid4()), 0), 0, []
        )
