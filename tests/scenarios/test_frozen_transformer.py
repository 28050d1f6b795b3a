"""A transformer's process is frozen within a transaction, for too long, and goes on: nothing twice.

    stored, not committed ─ SIGSTOP ─▶ its timeout, its session, or both pass ─ SIGCONT ─▶ …

What it had open is aborted. Where its session has passed, another member has copied everything
by then; what it sends after it wakes belongs to nothing. It hears that its transaction is over,
goes back to what its group has committed, and works on.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.transforming import PARTITIONS, Output, Running, copy_to, fill
from support.waiting import wait_exit, wait_until

from penstock.client import Admin, TransactionState
from penstock.client.transformer.machine import State

CHILD = Path(__file__).parents[1] / "support" / "transforming_child.py"
LONG_MS = 600_000
SHORT_MS = 3_000
COUNT = 300


class Frozen:
    """`support.transforming_child`, from the moment it holds until it is let go on."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log
        self.transactional_id = self._said()
        assert self._said() == "held"
        process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")
        self._process.stdin.flush()
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return self._log.read_text()

    def finish(self) -> int:
        """In good order; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return wait_exit(self._process, 60)

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


@contextmanager
def frozen_transformer(
    cluster: Cluster, topic: str, log: Path, timeouts: tuple[int, int]
) -> Iterator[Frozen]:
    words = [sys.executable, "-P", str(CHILD), cluster.bootstrap, topic, *map(str, timeouts)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            yield Frozen(process, log)
        finally:
            process.kill()


def wait_aborted(cluster: Cluster, transactional_id: str) -> str:
    """Until nothing of it is open or unfinished; why it was aborted."""
    with Admin(cluster.bootstrap) as admin:

        def reason() -> str:
            (branch,) = admin.describe_transaction(transactional_id).branches
            at_rest = branch.state is TransactionState.IDLE and not branch.finishing
            return branch.last_reason if at_rest and branch.last_outcome == "aborted" else ""

        return wait_until(reason, what="its transaction is aborted")


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    for each in (name, f"{name}.out"):
        cluster.create_topic(each, partitions=PARTITIONS)
    fill(cluster, name, range(COUNT))
    return name


def test_one_that_is_frozen_past_its_transaction_copies_it_again(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    output = Output(cluster, f"{topic}.out")
    timeouts = (SHORT_MS, LONG_MS)
    with frozen_transformer(cluster, topic, tmp_path / "log", timeouts) as frozen:
        assert wait_aborted(cluster, frozen.transactional_id) == "timeout"
        frozen.go_on()
        output.check(range(COUNT))
        fill(cluster, topic, range(COUNT, 2 * COUNT))
        output.check(range(2 * COUNT))
        assert "its timeout" in frozen.log(), "it was told"
        assert frozen.finish() == 0
    output.check(range(2 * COUNT))
    output.close()


@pytest.mark.parametrize("timeout_ms", [SHORT_MS, LONG_MS], ids=["and-transaction", "only"])
def test_one_that_is_frozen_past_its_session_has_been_replaced_and_adds_nothing(
    cluster: Cluster, topic: str, tmp_path: Path, timeout_ms: int
) -> None:
    output = Output(cluster, f"{topic}.out")
    timeouts = (timeout_ms, SHORT_MS)
    with frozen_transformer(cluster, topic, tmp_path / "log", timeouts) as frozen:
        heir = Running(cluster, topic, copy_to(topic))
        try:
            output.check(range(COUNT))
            # Readers may see a commit before who asked for it has heard. The first records may be
            # of the frozen one: what it committed before it was held.
            wait_until(
                lambda: heir.model.commits and heir.model.state is State.IDLE,
                what="the other member has taken over",
            )
            wait_aborted(cluster, frozen.transactional_id)
            frozen.go_on()
            fill(cluster, topic, range(COUNT, 2 * COUNT))
            output.check(range(2 * COUNT))
            wait_until(lambda: "trying again" in frozen.log(), what="it was told")
        finally:
            heir.stop()
        fill(cluster, topic, range(2 * COUNT, 3 * COUNT))
        output.check(range(3 * COUNT))  # which nobody else could copy
        assert frozen.finish() == 0
    output.check(range(3 * COUNT))
    output.close()
