"""What counts when nobody reads the output, as of `penstock verify check FILE | head -1`."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import command_line
from support.cluster import Cluster

from penstock.verify.history import HistoryWriter

NOWHERE = "127.0.0.1:1"


def unread(*words: object) -> tuple[int, str]:
    """Exit code and standard error of a command whose reader has left before it printed."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = command_line.start(
            *words, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def history(path: Path, *, in_log: int) -> Path:
    """Ten records, acknowledged; so many of them read back."""
    at = {"s": 3, "q": 0, "n": 10, "p": 0, "o": 0}
    with HistoryWriter(path) as writer:
        writer.write({"e": "start", "run": 7, "topic": "t", "acks": "ALL"})
        writer.write({"e": "send", **at, "t": 1.0})
        writer.write({"e": "ack", **at, "t": 2.0})
        writer.write({"e": "ends", "p": 0, "lo": 0, "hi": in_log})
        writer.write({"e": "final", "r": "final", **at, "n": in_log, "t": 3.0})
    return path


@pytest.mark.parametrize(("in_log", "code"), [(10, 0), (9, 1)])
@pytest.mark.parametrize("form", ["table", "json"])
def test_the_exit_code_is_the_verdicts(in_log: int, code: int, form: str, tmp_path: Path) -> None:
    file = history(tmp_path / "history.gz", in_log=in_log)
    assert unread("verify", "check", file, "-o", form) == (code, "")


@pytest.mark.parametrize(
    "words",
    [("why",), ("why", "-o", "json"), ("top", "--once"), ("top", "--once", "-o", "json")],
    ids=" ".join,
)
def test_the_exit_code_says_that_a_cluster_is_not_well(words: Sequence[str]) -> None:
    assert unread(*words, "--bootstrap", NOWHERE) == (1, "")


@pytest.mark.parametrize(
    "words",
    [("why",), ("status",), ("top", "--once"), ("broker", "list")],
    ids=" ".join,
)
def test_a_command_that_found_nothing_wrong_ends_with_0(
    words: Sequence[str], shared_cluster: Cluster
) -> None:
    assert unread(*words, "--bootstrap", shared_cluster.bootstrap) == (0, "")


def test_the_exit_code_says_that_something_is_not_allowed(shared_cluster: Cluster) -> None:
    asked = ("acl", "can-i", "read", "topic", "unread", "--as", "cert:nobody")
    assert unread(*asked, "--bootstrap", shared_cluster.bootstrap) == (1, "")
