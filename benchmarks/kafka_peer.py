"""A real Apache Kafka to measure beside, started from its Maven artifacts (JDK 17, Maven).

`with kafka(brokers) as peer:` starts KRaft brokers on free loopback ports with Kafka's own
defaults (replication as asked, min.insync.replicas 2 of 3), and ends them by their process ids.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import progress
from penstock_broker.local.ports import ReservedPort

POM = Path(__file__).parent / "kafka" / "pom.xml"
START_SECONDS = 90.0
LOG4J = """<Configuration>
<Appenders><Console name="c"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """Running brokers; `processes[i]` has node id i + 1 and was started by `commands[i]`."""

    bootstrap: str
    processes: list[subprocess.Popen[bytes]]
    commands: list["Command"]

    def kill(self, index: int = 0) -> None:
        """With -9; it has ended when this returns."""
        self.processes[index].kill()
        self.processes[index].wait(timeout=30)

    def start(self, index: int = 0) -> None:
        """One that was killed, again, on its data; it listens when this returns."""
        self.processes[index] = self.commands[index].run()


@dataclass(frozen=True, slots=True)
class Command:
    """How a broker is started."""

    words: list[str]
    log: Path
    port: int

    def run(self) -> subprocess.Popen[bytes]:
        process = self.begin()
        _await_port(self.port, process)
        return process

    def begin(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self.words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def available() -> str | None:
    """None if Kafka can be run here, else what is missing."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found" if missing else None


@contextlib.contextmanager
def kafka(brokers: int, folder: Path | None = None) -> Iterator[Peer]:
    """Runs `brokers` Kafka brokers (each also a controller) until the block ends.

    `folder`: keeps their data, for another block; None: they are gone afterwards."""
    libraries = _libraries()
    with contextlib.ExitStack() as held:
        scratch = tempfile.TemporaryDirectory(prefix="penstock-kafka-")
        home = Path(held.enter_context(scratch)) if folder is None else folder
        home.mkdir(parents=True, exist_ok=True)
        ports = [held.enter_context(ReservedPort()).port for _ in range(2 * brokers)]
        (home / "log4j2.xml").write_text(LOG4J)
        commands = [
            _formatted(libraries, home, _configure(home, node, ports), ports[node - 1])
            for node in range(1, brokers + 1)
        ]
        processes = []
        try:
            for command in commands:
                processes.append(command.begin())  # noqa: PERF401 - ended below
            for command, process in zip(commands, processes, strict=True):
                _await_port(command.port, process)
            bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[:brokers])
            yield Peer(bootstrap, processes, commands)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait(timeout=30)


def _libraries() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock-peers"
    target = cache / "kafka-libs"
    if not target.is_dir():
        progress("fetching Kafka's libraries with Maven (once)")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], check=True)
    return f"{target}/*"


def _configure(home: Path, node: int, ports: list[int]) -> Path:
    count = len(ports) // 2
    quorum = ",".join(f"{each + 1}@127.0.0.1:{ports[count + each]}" for each in range(count))
    in_sync = 2 if count >= 3 else 1
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": quorum,
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[node - 1]},"
        f"CONTROLLER://127.0.0.1:{ports[count + node - 1]}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": home / f"data-{node}",
        "default.replication.factor": count,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": count,
        "transaction.state.log.replication.factor": count,
        "transaction.state.log.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
    }
    config = home / f"{node}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return config


def _formatted(libraries: str, home: Path, config: Path, port: int) -> Command:
    """Formats a broker's data; returns how it is started."""
    tool = ["java", "-Xmx256m", "-cp", libraries, "org.apache.kafka.tools.StorageTool"]
    fallback = [*tool[:-1], "kafka.tools.StorageTool"]
    arguments = ["format", "--ignore-formatted", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(config)]
    for words in (tool, fallback):
        if subprocess.run([*words, *arguments], capture_output=True, check=False).returncode == 0:
            break
    options = ["-Xmx1g", "-Xms512m", f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}"]
    words = ["java", *options, "-cp", libraries, "kafka.Kafka", str(config)]
    return Command(words, home / f"{config.stem}.log", port)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            raise SystemExit(f"Kafka ended, exit {process.returncode}, without opening port {port}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > limit:
            raise SystemExit(f"Kafka did not open port {port} within {START_SECONDS:.0f} s")
        time.sleep(0.3)
