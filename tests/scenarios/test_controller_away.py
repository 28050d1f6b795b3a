"""The controller is away, or frozen, under load: data flows, and nobody is dead when it is back.

A recorded workload runs and `penstock verify` judges it, as in test_kills.
"""

from concurrent.futures import ThreadPoolExecutor

from support.cluster import Cluster
from support.load import Load, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin
from penstock.errors import ErrorCode, PenstockError

CONTROLLER_CONFIG = {"broker.session.timeout.ms": "10000", "broker.session.grace.ms": "10000"}
"""A controller is frozen for longer. Brokers that are starved for less are not to be dead."""


def test_without_a_controller_data_flows_and_changes_wait(cluster: Cluster, load: Load) -> None:
    cluster.wait_in_sync(load.config.topic)
    cluster.controller.kill()
    logged = len(cluster.controller.log_text())
    cluster.wait_controller(reachable=False)
    load.wait_writing()
    read_before = load.records_read
    wait_until(lambda: load.records_read > read_before, what="records are read")
    with Admin(cluster.bootstrap, request_timeout_ms=1_500) as admin:

        def refused() -> PenstockError | None:
            """Who has no answer at all in so little time is told that instead."""
            try:
                admin.create_topic("impatient", 1, 3)
            except PenstockError as error:
                return error if error.code is ErrorCode.CONTROLLER_UNAVAILABLE else None
            raise AssertionError("it was made, by nobody")

        error = wait_until(refused, what="it hears that there is no controller")
        assert "reads and writes go on" in error.message
    with (
        Admin(cluster.bootstrap, request_timeout_ms=120_000) as admin,
        ThreadPoolExecutor(1) as thread,
    ):
        assert "impatient" not in admin.list_topics()
        created = thread.submit(admin.create_topic, "patient", 1, 3)
        cluster.controller.start()
        assert created.result(timeout=120).topic == "patient"
    load.wait_writing()
    assert "broker dead" not in cluster.controller.log_text()[logged:], "all were there all along"
    assert_nothing_noticed(load.judge())


def test_a_frozen_controller_wakes_and_nobody_is_declared_dead(
    cluster: Cluster, load: Load
) -> None:
    cluster.wait_in_sync(load.config.topic)
    logged = len(cluster.controller.log_text())
    cluster.controller.pause()
    cluster.wait_controller(reachable=False)
    load.wait_writing()
    cluster.controller.resume()
    cluster.wait_controller()
    load.wait_writing()
    cluster.wait_in_sync(load.config.topic)
    assert "broker dead" not in cluster.controller.log_text()[logged:]
    assert_nothing_noticed(load.judge())
