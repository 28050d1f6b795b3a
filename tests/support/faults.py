"""Lets a server process die at a write, have a full or a slow disk, a wrong clock, or coordinators
that cannot read their logs: see `faulty_child`.

faults = Faults(cluster.brokers[1], tmp_path / "faults")     before it starts, or it is restarted
faults.die_at("marker", "before"); …; cluster.brokers[1].wait_end(); faults.heal()
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.cluster import PATIENT, Cluster
from support.processes import ServerProcess

from penstock.client import Producer
from penstock.core.transactions.config import TRANSACTIONS_TOPIC

POINTS = ("join", "data", "decision", "marker", "finished")
"""The writes of a transaction, in their order. The coordinator's: a participant joins, how it ends,
all participants have heard. The leader's: records, the marker."""
OFFSET_POINTS = ("pending", "ended")
"""The group coordinator's writes: offsets are kept until the transaction ends, how it ended."""
RESERVE = {"disk.reserve.bytes": str(1 << 30)}
CHILD = Path(__file__).with_name("faulty_child.py")


class Faults:
    """Of one process, from its next start on."""

    def __init__(self, process: ServerProcess, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        process.launcher = ["-P", str(CHILD)]
        process.environment = {"PENSTOCK_TEST_FAULTS": str(folder)}

    def die_at(self, point: str, when: str) -> None:
        """kill -9 "before" or "after" its next write of this step of a transaction, or of a
        "record" whose key is b"cut"."""
        self._put("kill", f"{point} {when} 0")

    def kill_at(self, point: str, when: str, *victims: ServerProcess) -> None:
        """kill -9 of these processes at such a write of this one; itself the last, if at all."""
        self._put("kill", " ".join([point, when, *(str(victim.pid) for victim in victims)]))

    def slow(self, seconds: float) -> None:
        """From now on every write takes so much longer."""
        self._put("slow", str(seconds))

    def free_bytes(self, count: int) -> None:
        """From now on its disks have so much left."""
        self._put("free", str(count))

    def set_clock(self, ahead_ms: int) -> None:
        """From now on its wall clock is so far ahead."""
        self._put("clock", str(ahead_ms))

    def hide_coordinators_logs(self) -> None:
        """From now on no coordinator that begins here can read its log."""
        self._put("coordinators", "")

    def heal(self) -> None:
        """The disk is well, the clock right, logs of coordinators can be read."""
        for name in ("kill", "free", "slow", "clock", "coordinators"):
            (self._folder / name).unlink(missing_ok=True)

    def _put(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(text)
        part.replace(self._folder / name)


@contextmanager
def faulty_cluster(folder: Path) -> Iterator[tuple[Cluster, list[Faults]]]:
    """Three brokers that die when a test says so, with coordinators of transactions, and the faults
    of each."""
    with Cluster(
        folder, brokers=3, controller_config=PATIENT, broker_config=RESERVE, start=False
    ) as cluster:
        faults = [
            Faults(broker, folder / f"faults-{broker_id}")
            for broker_id, broker in cluster.brokers.items()
        ]
        cluster.start()
        with Producer(cluster.bootstrap, transactional_id="first") as producer:
            producer.transaction().begin()  # creates the coordinators
        yield cluster, faults


def make_well(cluster: Cluster, faults: Sequence[Faults]) -> None:
    """Until all of them are well and there, whatever a test has done."""
    for broker, fault in zip(cluster.brokers.values(), faults, strict=True):
        fault.heal()
        if not broker.is_running:
            broker.start(wait=False)
    cluster.wait_alive(set(cluster.brokers))
    cluster.wait_in_sync(TRANSACTIONS_TOPIC)
