"""What is forked from a process that imported it before is a process as any other."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import command_line, forked
from support.cluster import Cluster
from support.descendants import descendants_of
from support.processes import stop
from support.waiting import wait_until

from penstock.client import Producer

LOOK = """
import atexit, json, os, resource, signal, sys, threading
import penstock_broker.__main__

def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()

atexit.register(print, "at exit")
print(json.dumps({
    "name": __name__,
    "words": sys.argv,
    "path": sys.path,
    "command": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "directory": os.getcwd(),
    "environment": {name: text for name, text in os.environ.items() if name != "_"},
    "parent": os.getppid(),
    "group, session": [os.getpgid(0), os.getsid(0)],
    "files": sorted(os.listdir("/proc/self/fd"))[:3],
    "how many files": len(os.listdir("/proc/self/fd")),
    "standard files": [os.path.realpath(f"/proc/self/fd/{number}")[:5] for number in range(3)],
    "threads": threading.active_count(),
    "tasks": len(os.listdir("/proc/self/task")),
    "signals": {one.name: str(signal.getsignal(one)) for one in signal.valid_signals()
                if isinstance(one, signal.Signals)},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": [resource.getrlimit(one) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "flags": list(sys.flags),
    "warnings": sys.warnoptions,
    "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
    "modules": sorted(name for name in sys.modules if name.partition(".")[0] in {
        "penstock", "penstock_broker", "grpc", "kubernetes", "cryptography", "msgspec"}),
}))
print(sys.stdin.read(), file=sys.stderr)
if sys.argv[1] == "fail":
    raise RuntimeError("on purpose")
if sys.argv[1] == "kill":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""
Start = Callable[..., "subprocess.Popen[Any]"]


def plainly(words: list[str], **options: Any) -> "subprocess.Popen[Any]":
    return subprocess.Popen([sys.executable, *words], **options)


def by_fork(words: list[str], **options: Any) -> "subprocess.Popen[Any]":
    return forked.Popen(forked.BROKER, words, **options)


@pytest.fixture(params=["plainly", "forked"])
def start(request: pytest.FixtureRequest) -> Start:
    """Both ways to start a process: the tests here hold for either."""
    return plainly if request.param == "plainly" else by_fork


@pytest.fixture
def sleeper(start: Start, tmp_path: Path) -> Iterator["subprocess.Popen[Any]"]:
    program = tmp_path / "sleeper.py"
    program.write_text("import signal\nprint(1, flush=True)\nsignal.pause()\n")
    with start(["-P", str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("fate", ["0", "3", "fail", "kill"])
def test_a_program_finds_the_same_whichever_way_it_was_started(tmp_path: Path, fate: str) -> None:
    program = tmp_path / "look.py"
    program.write_text(LOOK)
    environment = {**os.environ, "PENSTOCK_TEST_WORD": "of this start", "TZ": "Asia/Tokyo"}
    seen = []
    for start in (plainly, by_fork):
        pipe = subprocess.PIPE
        with start(
            ["-P", str(program), fate, "--more=ü"],
            stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=tmp_path, text=True,
        ) as process:  # fmt: skip
            out, err = process.communicate("what it reads", timeout=300)
        first, *rest = out.splitlines()
        last = err.splitlines()[-1:] if fate == "fail" else err.splitlines()
        seen.append((json.loads(first), rest, last, process.returncode))
    plain, forked_ = seen
    assert plain == forked_
    assert plain[0]["words"] == [str(program), fate, "--more=ü"]
    assert plain[0]["parent"] == os.getpid()
    assert plain[0]["environment"]["PENSTOCK_TEST_WORD"] == "of this start"
    assert plain[3] == {"0": 0, "3": 3, "fail": 1, "kill": -9}[fate]
    assert plain[0]["command"] == [sys.executable, "-P", str(program), fate, "--more=ü"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["topic", "--help"], 0),
        (["nonsense"], 2),
        (["topic", "list", "--bootstrap", "127.0.0.1:1"], 1),
        (["local", "status"], 1),
        (["status", "--kubeconfig", "none"], 1),
    ],
)
def test_a_command_does_the_same_whichever_way_it_was_started(
    tmp_path: Path, words: list[str], code: int
) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    with plainly(
        [*command_line.PYTHON, *words],
        stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=tmp_path, text=True,
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=300)
    by_fork = command_line.run(*words, env=environment, cwd=tmp_path)
    assert (by_fork.returncode, by_fork.stdout, by_fork.stderr) == (process.returncode, out, err)
    assert by_fork.returncode == code


def test_a_process_is_frozen_and_killed_as_a_child(sleeper: "subprocess.Popen[Any]") -> None:
    stop(sleeper.pid)
    assert sleeper.poll() is None
    os.kill(sleeper.pid, signal.SIGCONT)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)
    sleeper.kill()
    assert sleeper.wait(300) == -signal.SIGKILL
    assert sleeper.pid not in descendants_of(os.getpid())


@pytest.mark.parametrize("forks", [False, True])
def test_a_broker_serves_dies_and_comes_back(tmp_path: Path, forks: bool) -> None:
    with Cluster(tmp_path, brokers=1, forked=forks) as cluster:
        cluster.create_topic("t")
        with Producer(cluster.bootstrap) as producer:
            producer.send("t", b"before").result(120)
            broker = cluster.brokers[0]
            broker.kill()
            assert broker.returncode == -signal.SIGKILL
            broker.start()
            assert producer.send("t", b"after").result(120).offset == 1
        assert broker.stop() == 0
        assert '"stopping"' in broker.log_text()


SUITE = """
import os, sys
from pathlib import Path
from support.cluster import Cluster
cluster = Cluster(Path(sys.argv[1]), brokers=1)
print(cluster.brokers[0].pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_fork_server_and_servers_end_with_the_tests_however_those_went(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        [sys.executable, "-c", SUITE, str(tmp_path)], stdin=pipe, stdout=pipe, env=environment
    ) as suite:
        assert suite.stdout is not None
        assert suite.stdin is not None
        broker = int(suite.stdout.readline())
        started = descendants_of(suite.pid)
        assert broker in started
        assert len(started) == 3, started
        suite.stdin.close()
        assert suite.wait(300) == -signal.SIGKILL
    wait_until(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in started),
        what="nothing is left running",
    )


def test_another_python_or_path_is_started_plainly() -> None:
    here = dict(os.environ)
    assert forked.can_fork(["-m", "penstock_broker"], here)
    assert not forked.can_fork(["-c", "pass"], here)
    assert not forked.can_fork(["-O", "-m", "penstock_broker"], here)
    assert not forked.can_fork(["-m", "penstock_broker"], {**here, "PYTHONPATH": "older"})
    assert not forked.can_fork(["-m", "penstock_broker"], {**here, "PYTHONWARNINGS": "error"})
