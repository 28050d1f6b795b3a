"""Shows and stops a local cluster that another process runs: `status`, `down`, `logs`.

Everything goes through `state.json`: the started processes with their start times, so that a pid
that was reused counts as ended and is never signalled.
"""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.client import AsyncAdmin
from penstock.client.admin.disks import Disks, describe_disks
from penstock.client.model import ClusterDescription, TopicDescription
from penstock.errors import ClusterError, MisuseError, PenstockError
from penstock_broker.local.apply import options_of
from penstock_broker.local.processes import is_alive, send_signal
from penstock_broker.local.registry import known_clusters
from penstock_broker.local.state import LocalState, RecordedProcess, StateDirectory
from penstock_broker.local.sweep import end_leftovers, wait_until_gone

STOP_TIMEOUT_S = 60.0
"""How long `down` waits for the supervisor to stop everything cleanly, before SIGKILL."""
KILLED_SUPERVISOR_TIMEOUT_S = 15.0
ANSWER_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """`leads` and `replicas` count partitions; None: not a broker, or no answer."""

    name: str
    is_up: bool
    pid: int | None
    address: str
    metrics_address: str
    restarts: int
    leads: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """A local cluster at this moment. `problem` says why facts from the cluster are missing, or
    which process does not answer though it runs.

    `full_disks`: brokers that refuse writes because theirs are.
    """

    cluster: str
    phase: str
    bootstrap: str
    directory: str
    processes: tuple[ProcessStatus, ...]
    topics: int | None = None
    partitions: int | None = None
    under_replicated: int | None = None
    offline: int | None = None
    full_disks: tuple[int, ...] = ()
    problem: str = ""

    @property
    def is_healthy(self) -> bool:
        return (
            self.phase == "running"
            and all(process.is_up for process in self.processes)
            and self.under_replicated == 0
            and self.offline == 0
            and not self.full_disks
            and not self.problem
        )


def listed() -> list[dict[str, object]]:
    """Every cluster that `status` and `down` find; `phase` down: it was killed."""
    return [
        {
            "cluster": one.state.cluster,
            "phase": one.phase,
            "bootstrap": one.state.bootstrap,
            "directory": str(one.root),
        }
        for one in known_clusters()
    ]


def status(root: Path) -> LocalStatus:
    """Raises MisuseError if no cluster was started in `root`."""
    state = _require_state(root)
    phase = state.phase if state.is_supervised else "down"
    bare = LocalStatus(
        cluster=state.cluster,
        phase=phase,
        bootstrap=state.bootstrap,
        directory=str(root),
        processes=tuple(_process_status(process) for process in state.processes),
    )
    if phase != "running":
        return bare
    try:
        return _with_roles(bare, StateDirectory(root).client_files)
    except PenstockError as error:
        return replace(bare, problem=error.message)


def down(root: Path, *, dry_run: bool = False) -> str:
    """Stops the cluster; none of its processes runs when this returns. Returns its name.

    `dry_run`: looks only.

    Raises MisuseError if no cluster was started in `root`, ClusterError if a process cannot be
    ended.
    """
    state = _require_state(root)
    if dry_run:
        return state.cluster
    directory = StateDirectory(root)
    if send_signal(state.supervisor, signal.SIGTERM) and not wait_until_gone(
        [state.supervisor], STOP_TIMEOUT_S
    ):
        send_signal(state.supervisor, signal.SIGKILL)
    end_leftovers(directory.read() or state, KILLED_SUPERVISOR_TIMEOUT_S)
    for process in state.processes:
        if process.identity is not None and is_alive(process.identity):
            raise ClusterError(f"{process.name} (pid {process.identity.pid}) cannot be stopped")
    directory.forget()
    return state.cluster


def log_files(root: Path, process: str | None) -> list[Path]:
    """The log of one process, or all logs. Raises MisuseError if there is none."""
    directory = StateDirectory(root)
    present = sorted(directory.log_file("x").parent.glob("*.log"))
    if process is None and present:
        return present
    chosen = [file for file in present if file.stem == process]
    if not chosen:
        known = ", ".join(file.stem for file in present) or "none yet"
        raise MisuseError(
            f"there is no log of {process or 'any process'}; there are logs of: {known}"
        )
    return chosen


def _require_state(root: Path) -> LocalState:
    state = StateDirectory(root).read()
    if state is None:
        raise MisuseError(f"no local cluster runs in {root}; start one with `penstock local up`")
    return state


def _process_status(process: RecordedProcess) -> ProcessStatus:
    alive = process.identity is not None and is_alive(process.identity)
    return ProcessStatus(
        name=process.name,
        is_up=alive,
        pid=process.identity.pid if process.identity is not None and alive else None,
        address=process.address,
        metrics_address=process.metrics_address,
        restarts=process.restarts,
    )


def _with_roles(bare: LocalStatus, files: Mapping[str, str]) -> LocalStatus:
    seen, topics, disks = asyncio.run(_ask(bare.bootstrap, files))
    partitions = [partition for topic in topics for partition in topic.partitions]
    return replace(
        bare,
        processes=tuple(
            replace(
                process,
                leads=sum(one.leader == broker_id for one in partitions),
                replicas=sum(broker_id in one.replicas for one in partitions),
            )
            if (broker_id := _broker_id(process.name)) is not None
            else process
            for process in bare.processes
        ),
        topics=seen.topics,
        partitions=seen.partitions,
        under_replicated=seen.under_replicated_partitions,
        offline=seen.offline_partitions,
        full_disks=disks.full,
        problem=_problem_of(seen, disks),
    )


async def _ask(
    bootstrap: str, files: Mapping[str, str]
) -> tuple[ClusterDescription, list[TopicDescription], Disks]:
    """Raises PenstockError if no broker answers; one that does not, of several, is in `Disks`."""
    async with AsyncAdmin(
        bootstrap,
        connect_timeout_ms=ANSWER_TIMEOUT_MS,
        request_timeout_ms=ANSWER_TIMEOUT_MS,
        **options_of(files),
    ) as admin:
        await admin.cluster_id()  # finds one that answers at once: the first may be frozen
        seen = await admin.describe_cluster()
        topics = await admin.describe_topics()
        return seen, list(topics.values()), await describe_disks(admin, seen.brokers)


def _problem_of(seen: ClusterDescription, disks: Disks) -> str:
    problems = []
    away = ", ".join(str(one.broker_id) for one in seen.brokers if not one.alive)
    if not seen.controller_reachable:
        problems.append("the controller cannot be reached")
    elif away:
        problems.append(f"the controller has no session with broker {away}")
    elif seen.hibernating:
        problems.append("it hibernates: it takes no new records, producers or group members")
    problems += [f"broker {one} is silent: {why}" for one, why in disks.silent.items()]
    return "; ".join(problems)


def _broker_id(name: str) -> int | None:
    text = name.removeprefix("broker-")
    return int(text) if text.isdecimal() else None
