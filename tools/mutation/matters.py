"""Which tests matter for which files: the table from module to tests, cheapest first.

A mutant is tried against the steps in turn until one fails: the package's own unit tests, property
tests and contract tests; then, where the simulator runs the file, some of its seeds. The longest
prefix in the table wins.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SIMULATOR_SEEDS: Final = 30
"""About five seconds on one core; enough for most planted bugs in the core."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something to run on a mutant: tests, or seeds of the simulator."""

    name: str
    tests: tuple[str, ...] = ()
    """Files or folders of tests, globs allowed; none: the simulator."""

    def command(self, python: str, root: Path) -> list[str]:
        """What to run in `root`, a copy of the tree.

        Raises:
            FileNotFoundError: a pattern of the table matches nothing.
        """
        if not self.tests:
            play = ["tests/simulation/run.py", "--workers", "1", "--seeds", str(SIMULATOR_SEEDS)]
            return [python, *play]
        files: list[str] = []
        for pattern in self.tests:
            found = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            if not found:
                raise FileNotFoundError(
                    f"no tests match {pattern!r}: mend tools/mutation/matters.py"
                )
            files += found
        quiet = ["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
        return [python, "-m", "pytest", *quiet, "-p", "tools.mutation.quick", *files]


SIMULATOR: Final = Step("simulator")


def _unit(folder: str, *tests: str) -> Step:
    """Tests in one process that start no others: seconds."""
    return Step("unit", tuple(f"tests/{folder}/{test}".replace("//", "/") for test in tests))


def _live(folder: str, *tests: str) -> Step:
    """Tests against real servers, in processes of their own as a rule: tens of seconds."""
    return Step("live", tuple(f"tests/{folder}/{test}".replace("//", "/") for test in tests))


_CORE: Final = "src/penstock/core/"
_CORE_ROWS: Final[dict[str, tuple[Step, ...]]] = {
    _CORE: (_unit("penstock/core", "test_*.py"), SIMULATOR),
    f"{_CORE}json_records.py": (
        _unit("penstock/core", "groups/test_records.py", "transactions/test_records.py"),
    ),
    **{
        f"{_CORE}{package}/": (_unit("penstock/core", package), SIMULATOR)
        for package in ("replication", "transactions", "groups", "control")
    },
    f"{_CORE}balance/": (_unit("penstock/core", "balance"),),
    f"{_CORE}compaction/": (
        _unit("penstock/core", "compaction", "test_compaction_format.py"),
        SIMULATOR,
    ),
    f"{_CORE}manifest/": (
        _unit("", "penstock/core/test_manifest.py", "crds/test_crds.py"),
        _unit("penstock_operator", "test_status.py", "test_groups_report.py"),
    ),
}

_CLIENT: Final = "src/penstock/client/"
_CLIENT_ROWS: Final[dict[str, tuple[Step, ...]]] = {
    _CLIENT: (
        _unit("penstock/client", "test_*.py"),
        _live("penstock/client", "sync", "consumer/test_consuming.py", "transformer/test_*ing.py"),
    ),
    f"{_CLIENT}admin/": (
        _live("penstock", "client/admin", "client/transaction/test_transactions.py"),
        _live("penstock/cli", "test_txn.py", "test_group.py"),
    ),
    f"{_CLIENT}cluster/": (
        _unit("penstock/client/cluster", "test_view.py", "test_connections.py"),
        _live("penstock/client", "cluster/test_first_contact.py", "producer/test_failing_over.py"),
    ),
    f"{_CLIENT}consumer/": (
        _unit("penstock/client/consumer", "test_assignment.py", "test_fetch*.py"),
        _unit("penstock/client/consumer", "test_isolation.py", "test_transaction_offsets.py"),
        _live(
            "penstock/client/consumer",
            "test_consuming.py",
            "test_range_reader.py",
            "test_read_to_end.py",
        ),
        _live("penstock/client/group", "test_committing.py", "test_consuming.py"),
    ),
    f"{_CLIENT}group/": (
        _unit("penstock/client/group", "test_membership.py", "test_commit_*.py"),
        SIMULATOR,
        _live(
            "penstock/client/group", "test_committing.py", "test_consuming.py", "test_heartbeats.py"
        ),
        _live("penstock/client/group", "test_delivery.py", "test_failing_over.py"),
    ),
    f"{_CLIENT}producer/": (
        _unit("penstock/client/producer", "test_accumulator.py", "test_delivery.py"),
        _unit("penstock/client/producer", "test_link.py", "test_shards.py", "test_lane.py"),
        _live("penstock/client/producer", "test_scripted_answers.py", "test_producing.py"),
        _live("penstock/client/producer", "test_failing_over.py"),
    ),
    f"{_CLIENT}sync/": (_live("penstock/client", "sync"),),
    f"{_CLIENT}transaction/": (
        _unit("penstock/client/transaction", "test_machine.py", "test_model_cluster.py"),
        _live("penstock/client/transaction", "test_[bopt][!e]*.py"),
    ),
    f"{_CLIENT}transformer/": (
        _unit("penstock/client/transformer", "test_machine.py"),
        _live("penstock/client/transformer", "test_[grt]*.py"),
    ),
    f"{_CLIENT}workers/": (_live("penstock/client", "workers"),),
}

_BROKER: Final = "broker_image/src/penstock_broker/"
_BROKER_ROWS: Final[dict[str, tuple[Step, ...]]] = {
    _BROKER: (
        _unit("penstock_broker", "test_datadir.py", "test_metrics_page.py"),
        _live("penstock_broker/broker", "test_starting.py", "test_metrics_values.py"),
        _live("penstock_broker", "test_[acdp]*.py", "test_metrics_port.py", "test_upgrade.py"),
    ),
    f"{_BROKER}certificates/": (
        _live("penstock_broker", "certificates"),
        _live("security", "test_enrolment.py", "test_own_certificate.py", "test_between*.py"),
    ),
    f"{_BROKER}broker/": (
        _live("penstock_broker/broker", "test_serving.py", "test_starting.py"),
        _live("penstock_broker", "broker/test_replicating.py", "test_transactions.py"),
        _live("penstock_broker", "broker", "test_upgrade.py"),
        _live("scenarios", "test_logs_differ.py", "test_damage.py", "test_orphans.py"),
    ),
    f"{_BROKER}controller/": (
        _unit("", "penstock_broker/controller/test_[jos]*.py", "contracts/test_metadata_store.py"),
        _live("penstock_broker/controller", "test_controller_server.py", "test_[dk]*.py"),
        _live("penstock_broker/controller", "test_[bpt]*.py", "test_controller_process.py"),
        _live("penstock_broker/controller", "test_[cm]*.py", "test_large_sessions.py"),
        _live("security", "test_access.py", "test_access_secured.py"),
    ),
    **{
        f"{_BROKER}controller/{part}": (
            _live("penstock_broker", "certificates", "controller/test_ca_rotation.py"),
            _live("security", "test_enrolment.py", "test_oidc.py", "test_ca_*.py"),
        )
        for part in ("enrolment", "ca_", "oidc", "tls_reports")
    },
    f"{_BROKER}groups/": (
        _live("penstock_broker", "test_groups.py", "test_groups_coordinator.py"),
        _live("penstock_broker", "test_groups_lag.py", "test_groups_failover.py"),
    ),
    f"{_BROKER}local/": (_live("penstock_broker", "local"),),
    f"{_BROKER}logged/": (
        _live("penstock_broker", "logged"),
        _live("penstock_broker", "test_groups_coordinator.py"),
    ),
    f"{_BROKER}maintenance/": (_live("penstock_broker", "maintenance"),),
    f"{_BROKER}metadata/": (
        _live("penstock_broker", "metadata"),
        _live("penstock_broker/broker", "test_serving.py", "test_replicating.py"),
    ),
    f"{_BROKER}replication/": (
        _live("penstock_broker", "replication"),
        SIMULATOR,
        _live("penstock_broker/broker", "test_replicating.py"),
    ),
    f"{_BROKER}services/": (
        _live("penstock_broker", "services"),
        SIMULATOR,
        _live("penstock_broker", "broker/test_serving.py", "broker/test_bad_requests.py"),
        _live("penstock_broker", "test_groups.py", "test_transactions.py"),
        _live("penstock_broker", "broker"),
        _live("security", "test_access.py", "test_others_*.py", "test_quotas.py"),
    ),
    f"{_BROKER}serving/": (
        _live("penstock_broker", "serving"),
        _live("penstock_broker/broker", "test_serving.py", "test_bad_requests.py"),
        _live("security", "test_access.py", "test_[nq]*.py", "test_every_call.py"),
        _live("security", "test_[pt]*.py", "test_user_certificates.py", "test_grace.py"),
    ),
    f"{_BROKER}store/": (_unit("", "penstock_broker/store", "contracts/test_[acl]*.py"),),
    f"{_BROKER}transactions/": (
        _live("penstock_broker", "transactions"),
        SIMULATOR,
        _live("penstock_broker", "test_transactions.py", "test_transactions_[mo]*.py"),
    ),
}

_OPERATOR: Final = "operator/src/penstock_operator/"
_OPERATOR_ROWS: Final[dict[str, tuple[Step, ...]]] = {
    _OPERATOR: (
        _unit("penstock_operator", "test_[co]*e.py", "test_[rs]*[ds].py", "test_plan.py"),
        _live("penstock_operator", "test_children.py", "test_operator.py", "test_lease.py"),
    ),
    f"{_OPERATOR}topics.py": (_live("penstock_operator", "test_topics_operator.py"),),
    f"{_OPERATOR}brokers.py": (
        _unit("penstock_operator", "test_groups_report.py"),
        _live("penstock_operator", "test_topics_operator.py", "test_groups_operator.py"),
    ),
    f"{_OPERATOR}groups/": (
        _unit("penstock_operator", "test_groups_[prs]*.py"),
        _live("penstock_operator", "test_groups_operator.py"),
    ),
}

TABLE: Final = {**_CORE_ROWS, **_CLIENT_ROWS, **_BROKER_ROWS, **_OPERATOR_ROWS}


def steps_for(path: str) -> tuple[Step, ...]:
    """The steps for a file of the product, by its path from the root.

    Raises:
        KeyError: no row of the table is about it.
    """
    rows = [prefix for prefix in TABLE if path.startswith(prefix)]
    if not rows:
        raise KeyError(f"no tests are known for {path}: add a row to tools/mutation/matters.py")
    return TABLE[max(rows, key=len)]
