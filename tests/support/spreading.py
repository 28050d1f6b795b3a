"""How tests are spread over processes: whole files, those that take long first.

A file's tests share a cluster, so one process runs all of them; the files with a JVM share that,
too. Many tests wait for clusters: one process more than cores keeps these busy. More would end
little sooner, and whatever a test starts would wait for the others.

Long files come first, because one that begins last would leave the other cores idle; those on Spark
are the longest. All others give way to them: Spark waits ten seconds for a process of Python to
start (`PythonWorkerFactory`, not a setting), and then the query fails.
"""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK = "tests/penstock/spark/test_spark_"
LONG_FIRST = (
    SPARK,
    "tests/simulation/",
    "tests/scenarios/",
    "tests/documents/",
    "tests/examples/",
    "tests/benchmarks/",
    "tests/penstock_broker/",
    "tests/penstock/cli/",
    "tests/ui/",
    "tests/penstock/verify/",
    "tests/go/",
    "tests/security/",
    "tests/crds/",
    "tests/tools/",
    "tests/penstock_operator/",
    "tests/penstock/client/",
)
"""How node ids begin. All others take parts of a second and fill the gaps at the end."""


def processes() -> int:
    """For `-n auto`: one more than cores."""
    return 1 + (os.cpu_count() or 1)


def rank(nodeid: str) -> int:
    """The lowest is first."""
    ranks = (at for at, begin in enumerate(LONG_FIRST) if nodeid.startswith(begin))
    return next(ranks, len(LONG_FIRST))


def scope_of(nodeid: str) -> str:
    """What one process runs as a whole."""
    return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]


NICENESS = 5
"""A third of the processor time that a process beside it gets."""


def gives_way(nodeid: str) -> int:
    """By how much this process becomes nicer when it runs the test; what it starts inherits that.
    Nothing on Spark runs in a process after anything else does."""
    spread = "PYTEST_XDIST_WORKER" in os.environ
    alone_or_first = not spread or nodeid.startswith(SPARK)
    return 0 if alone_or_first else max(0, NICENESS - os.nice(0))


class LongFirst(LoadFileScheduling):  # type: ignore[misc]  # xdist is published without types
    """Hands out scopes in the order in which their tests were collected."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
