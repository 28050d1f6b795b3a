"""What all tests share: seeds that are printed, clusters of real processes, their logs on failure.

Set PENSTOCK_TEST_SEED to repeat a run's random choices.
"""

import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# What is not installed is imported from the repository's root: `benchmarks`, `examples`, `tools`.
# It comes before tests/, which has folders of these names. Helpers live in tests/support and are
# imported as `support.…`, the simulator's in tests/simulation as `penstock_sim.…`. All of this
# comes last, so that nothing is shadowed.
TESTS = Path(__file__).parent
sys.path += [str(TESTS.parent), str(TESTS), str(TESTS / "simulation")]

# Children that are forked and then run Python before they exec (PySpark's launcher of the JVM)
# abort in gRPC's handlers, one in fifty while calls are under way: JAVA_GATEWAY_EXITED. Nothing
# here uses gRPC in a forked child. gRPC reads it when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A crowded machine takes its time over examples; nothing is wrong with them.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(2**31)))

# Containers often set it. Every process would compile all that it imports, which is half of what it
# costs to start a broker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A JVM of a test ends before thorough compiling pays, and has no cores for collecting in parallel.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Spark's JVM resolves the machine's own name before it reads any setting, and exits if it cannot.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# A shell's background jobs ignore SIGINT, and children inherit that: the tests of Ctrl-C could not
# end what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"PENSTOCK_TEST_SEED={SEED}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    from support import spreading  # noqa: PLC0415 - found from here on

    return spreading.processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`--dist loadfile` in our order; others as they are."""
    from support import spreading  # noqa: PLC0415 - found from here on

    return spreading.LongFirst(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from support import spreading  # noqa: PLC0415 - found from here on

    items.sort(key=lambda item: spreading.rank(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection():  # type: ignore[no-untyped-def]  # a hook wrapper is a generator
    """Python searches for cycles only once all tests are collected, and not among them."""
    from support import garbage  # noqa: PLC0415 - found from here on

    garbage.stay_out_of_collecting()
    try:
        return (yield)
    finally:
        garbage.look_at_new_objects()


def pytest_runtest_logstart(nodeid: str) -> None:
    from support import spreading  # noqa: PLC0415 - found from here on

    os.nice(spreading.gives_way(nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]  # a hook wrapper is a generator
    """Shows the seed and the logs of the test's own servers with every failure."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"PENSTOCK_TEST_SEED={SEED}"))
        processes = sys.modules.get("support.processes")
        if processes is not None:
            report.sections.extend(processes.logs_of_this_test())
        report.sections.extend(_local_cluster_logs(item))
    return report


def _local_cluster_logs(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """What clusters of `penstock local` wrote below the folders of this test's fixtures."""
    values = [getattr(each, "folder", each) for each in getattr(item, "funcargs", {}).values()]
    folders = [value for value in values if isinstance(value, Path)]
    for file in sorted({file for folder in folders for file in folder.rglob("logs/*.log")}):
        yield str(file), file.read_text(errors="replace")[-4_000:]


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """A command sets the loggers of its process, which here is everybody's."""
    client = logging.getLogger("penstock.client")
    level = client.level
    yield
    client.setLevel(level)


@pytest.fixture
def seed() -> int:
    """The seed of this run."""
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random choices that depend on the run's seed and the test's name only."""
    return random.Random(f"{SEED}/{request.node.nodeid}")


@pytest.fixture
def reserve() -> Iterator[Callable[[], object]]:
    """Makes a `support.processes.ReservedPort`: nobody listens there unless the test does."""
    from support.processes import ReservedPort  # noqa: PLC0415 - only few tests need it

    with ExitStack() as made:
        yield lambda: made.enter_context(ReservedPort())


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Starts clusters (arguments of `support.cluster.Cluster`) that end with the test."""
    from support.cluster import Cluster  # noqa: PLC0415 - only tests with clusters need gRPC

    made: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"cluster-{len(made)}", **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="session")
def api_server() -> Iterator[object]:
    """A real Kubernetes API (`support.apiserver.ApiServer`) for all tests: use a namespace of
    your own. Skips where the binaries are not installed."""
    from support.apiserver import start_api_server  # noqa: PLC0415 - only few tests need it

    server, scratch = start_api_server()
    with scratch:
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Three brokers for all tests of a module that do no harm: use topics of your own."""
    from support.cluster import PATIENT, Cluster  # noqa: PLC0415 - only some tests need gRPC

    path = tmp_path_factory.mktemp("cluster")
    with Cluster(path, brokers=3, controller_config=PATIENT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One broker for all tests of a module that do no harm: use topics of your own."""
    from support.cluster import PATIENT, Cluster  # noqa: PLC0415 - only some tests need gRPC

    path = tmp_path_factory.mktemp("broker")
    with Cluster(path, brokers=1, controller_config=PATIENT) as cluster:
        yield cluster
