"""`penstock local up` without a file, `penstock status`, and what a first minute needs."""

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import wait_until

if TYPE_CHECKING:
    from .conftest import Program

UP = ("local", "up", "--detach", "--port", 0)


def healthy(program: "Program", *words: object) -> Any:
    """What `status` says, once it says that all is well."""

    def seen() -> Any:
        done = program.run("status", *words, "-o", "json")
        said = json.loads(done.stdout or "{}")
        assert (done.returncode == 0) == bool(said.get("healthy")), done.stderr
        return said if done.returncode == 0 else None

    return wait_until(seen, what="the cluster is healthy")


def test_a_cluster_without_a_manifest_has_three_brokers_and_status_finds_it(
    program: "Program",
) -> None:
    said = program.ok(*UP)
    assert said.startswith("cluster local is running on 127.0.0.1:")
    assert program.ok(*UP).endswith("; nothing to change\n")
    seen = healthy(program)
    assert (seen["cluster"], len(seen["processes"])) == ("local", 4)

    program.ok("topic", "create", "t")
    topic = json.loads(program.ok("topic", "describe", "t", "-o", "json"))
    assert [len(one["replicas"]) for one in topic["partition_list"]] == [3, 3, 3]
    program.ok("produce", "t", stdin="one\n")
    assert program.ok("consume", "t", "-e") == "one\n"

    bootstrap = seen["bootstrap"]
    by_address = healthy(program, "--bootstrap", bootstrap)
    assert by_address["bootstrap"] == bootstrap
    assert [one["alive"] for one in by_address["brokers"]] == [True, True, True]
    assert (by_address["topics"], by_address["partitions"]) == (1, 3)
    why = json.loads(program.ok("why", "-o", "json"))
    assert (why["bootstrap"], why["served"], why["findings"]) == (bootstrap, True, [])
    assert program.ok("why", "--bootstrap", bootstrap) == f"✔ {why['sentence']}\n"

    program.ok("local", "down")
    assert program.ok(*UP).startswith("cluster local is running"), "as it was last started"
    assert program.ok("consume", "t", "-e") == "one\n"
    program.ok("local", "down", "--purge", "--yes", "--cluster", "local")


def test_a_broker_that_is_down_is_not_healthy(program: "Program") -> None:
    program.ok(*UP, "--cluster", "mine")
    seen = json.loads(program.ok("status", "-o", "json"))
    assert seen["cluster"] == "mine"
    pids = {one["name"]: one["pid"] for one in seen["processes"]}
    os.kill(pids["broker-1"], signal.SIGSTOP)
    try:
        # Its session ends; what it has is under-replicated, so its address says so, too.
        def unhealthy() -> bool:
            done = program.run("status", "--bootstrap", seen["bootstrap"], "-o", "json")
            if not done.stdout:
                return False  # what it asked was the broker that does not answer
            return done.returncode == 1 and json.loads(done.stdout)["healthy"] is False

        wait_until(unhealthy, what="the broker counts as dead", timeout_s=60)
        wait_until(
            lambda: told(program) == (1, False, "the controller has no session with broker 1"),
            what="its process runs, and the status says that it does not answer",
            timeout_s=60,
        )

        def says_why() -> bool:
            done = program.run("why")
            return "broker 1" in done.stdout and "→ " in done.stdout

        wait_until(says_why, what="why names the broker, and says what to do", timeout_s=60)
    finally:
        os.kill(pids["broker-1"], signal.SIGCONT)
    program.ok("local", "down")


def test_a_controller_that_does_not_answer_is_not_healthy(program: "Program") -> None:
    program.ok(*UP)
    healthy(program)
    processes = json.loads(program.ok("status", "-o", "json"))["processes"]
    (controller,) = [one["pid"] for one in processes if one["name"] == "controller"]
    os.kill(controller, signal.SIGSTOP)
    try:
        wait_until(
            lambda: told(program) == (1, False, "the controller cannot be reached"),
            what="the brokers say that they have no controller",
            timeout_s=60,
        )
    finally:
        os.kill(controller, signal.SIGCONT)
    program.ok("local", "down")


def test_brokers_that_are_silent_are_named_and_hide_nothing(program: "Program") -> None:
    program.ok(*UP)
    healthy(program)
    processes = json.loads(program.ok("status", "-o", "json"))["processes"]
    pids = {one["name"]: one["pid"] for one in processes}
    frozen = [pids["controller"]]
    os.kill(frozen[0], signal.SIGSTOP)  # so that it does not call the brokers dead
    try:
        wait_until(
            lambda: "the controller cannot be reached" in told(program)[2],
            what="the brokers say that they have no controller",
            timeout_s=60,
        )
        for name in ("broker-0", "broker-1"):
            frozen.append(pids[name])
            os.kill(pids[name], signal.SIGSTOP)

        def says_all() -> bool:
            """Not of an answer that was late on a machine with much else to do."""
            done = program.run("local", "status", "-o", "json")
            said = json.loads(done.stdout)
            assert (done.returncode, said["healthy"]) == (1, False)
            return said["partitions"] == 0 and all(
                words in said["problem"]
                for words in (
                    "the controller cannot be reached; broker 0 is silent: ",
                    "; broker 1 is silent: ",
                )
            )

        wait_until(says_all, what="what the third broker knows, and who is silent", timeout_s=60)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    program.ok("local", "down")


def told(program: "Program") -> tuple[int, bool, str]:
    """Exit code of `status` of the local cluster, whether it is healthy, and the problem."""
    done = program.run("status", "-o", "json")
    said = json.loads(done.stdout)
    return done.returncode, said["healthy"], said["problem"]


FULL_DISK = """
apiVersion: penstock.dev/v1alpha1
kind: Cluster
metadata: {name: full}
spec:
  brokers: 1
  config: {disk.reserve.bytes: 1000000000000000}
"""


def test_a_full_disk_is_told_by_status_by_why_and_to_who_writes(program: "Program") -> None:
    """Every partition has a leader and all replicas, and whoever writes is refused."""
    program.run(*UP, "-f", "-", stdin=FULL_DISK)
    local = json.loads(program.run("status", "-o", "json").stdout)
    assert (local["phase"], local["healthy"], local["full_disks"]) == ("running", False, [0])
    done = program.run("status", "--bootstrap", local["bootstrap"], "-o", "json")
    seen = json.loads(done.stdout)
    assert (done.returncode, seen["healthy"], seen["full_disks"]) == (1, False, [0])
    assert "disk of broker 0" in program.run("why").stdout
    program.ok("topic", "create", "t")
    writing = program.start("produce", "t")
    assert writing.stdin is not None
    assert writing.stderr is not None
    try:
        writing.stdin.write(b"one\n")
        writing.stdin.flush()
        assert b"nothing was stored for 5 s" in writing.stderr.readline()
    finally:
        writing.kill()
        writing.communicate()
    program.ok("local", "down")


def test_where_there_is_no_cluster_one_line_says_how_to_get_one(program: "Program") -> None:
    told = program.fails("status", "--bootstrap", "127.0.0.1:1")
    assert "127.0.0.1:1" in told
    done = program.run("why", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout.startswith("✘ No broker answers\n")
    assert "no local cluster is running; start one with `penstock local up`" in program.fails(
        "local", "status"
    )


@pytest.mark.parametrize("command", ["status", "why"])
def test_a_cluster_of_kubernetes_and_an_address_are_two_things(
    program: "Program", command: str
) -> None:
    told = program.fails(command, "flights", "--bootstrap", "127.0.0.1:1", code=2)
    assert told == "give CLUSTER and options of Kubernetes, or --bootstrap, not both"


@pytest.mark.parametrize("options", [(), ("-o", "json")], ids=" ".join)
def test_the_version_is_a_command_too(program: "Program", options: tuple[str, ...]) -> None:
    said = program.ok("version", *options)
    assert program.ok("--version").split()[1] in said
