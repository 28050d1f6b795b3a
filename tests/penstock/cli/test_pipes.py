"""`produce` and `consume` as pipes, `offsets`, `perf`: on a real local cluster."""

import json
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from support import command_line, stopping_child
from support.descendants import descendants_of, still_running
from support.processes import wait_stopped
from support.terminals import typing
from support.waiting import wait_until

if TYPE_CHECKING:
    from .conftest import Program

_numbers = count()
TIMEOUT_S = 300


@pytest.fixture
def topic(penstock: "Program") -> str:
    """A new topic with two partitions."""
    name = f"topic-{next(_numbers)}"
    penstock.ok("topic", "create", name, "-p", 2)
    return name


def interrupt(
    process: "subprocess.Popen[bytes]", by: signal.Signals = signal.SIGINT
) -> tuple[int, str]:
    """Ctrl-C: exit code and standard error."""
    process.send_signal(by)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert b"Traceback" not in err, err.decode()
    return process.returncode, err.decode()


def is_sleeping(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


class TestProduceAndConsume:
    def test_lines_go_in_and_come_out_in_order(self, penstock: "Program", topic: str) -> None:
        lines = "".join(f"line {i}\n" for i in range(1000))
        penstock.ok("produce", topic, "-p", 1, stdin=lines)
        assert penstock.ok("consume", topic, "-e") == lines

    def test_a_file_named_minus_is_standard_input(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, "--file", "-", stdin="piped\n")
        assert penstock.ok("consume", topic, "-e") == "piped\n"

    def test_why_records_were_refused_is_told_once(self, penstock: "Program", topic: str) -> None:
        penstock.ok("topic", "alter", topic, "--set", "message.timestamp.before.max.ms=0")
        told = penstock.fails("produce", topic, "-p", 0, stdin="late\n" * 10_000)
        assert "message.timestamp.before.max.ms" in told

    def test_keys_are_split_off_and_choose_the_partition(
        self, penstock: "Program", topic: str
    ) -> None:
        penstock.ok("produce", topic, "-K", ":", stdin="a:1\nb:2\na:3\nno key\n")
        out = penstock.ok("consume", topic, "-e", "-f", "%k|%v|%p\\n", "-Z", "NULL")
        records = [line.split("|") for line in out.splitlines()]
        pairs = sorted((r[0], r[1]) for r in records)
        assert pairs == [("NULL", "no key"), ("a", "1"), ("a", "3"), ("b", "2")]
        assert len({r[2] for r in records if r[0] == "a"}) == 1
        out = penstock.ok("consume", topic, "-e", "-K", " => ")
        assert "b => 2" in out.splitlines()

    def test_a_place_that_does_not_exist_is_told_even_without_a_line(
        self, penstock: "Program", topic: str
    ) -> None:
        assert "'nosuch' does not exist" in penstock.fails("produce", "nosuch")
        assert "partitions 0 to 1, not 7" in penstock.fails("produce", topic, "-p", 7)
        assert penstock.ok("produce", topic) == ""

    def test_null_empty_headers_and_bytes_survive(self, penstock: "Program", topic: str) -> None:
        penstock.ok(
            "produce", topic, "-Z", "NULL", "-k", "key", "-H", "source=bts", "-H", "x=a=b", "-p", 0,
            stdin="NULL\n\nüß\n",
        )  # fmt: skip
        out = penstock.ok("consume", topic, "-e", "--output", "json")
        records = [json.loads(line) for line in out.splitlines()]
        assert [r["value"] for r in records] == [None, "", "üß"]
        assert [r["offset"] for r in records] == [0, 1, 2]
        assert all(r["key"] == "key" for r in records)
        assert records[0]["headers"] == [
            {"name": "source", "value": "bts"},
            {"name": "x", "value": "a=b"},
        ]

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_compressed_records_are_read_back(
        self, penstock: "Program", topic: str, codec: str
    ) -> None:
        penstock.ok("produce", topic, "-z", codec, "--sync", "disk", stdin="x" * 5000 + "\n")
        assert penstock.ok("consume", topic, "-e") == "x" * 5000 + "\n"

    def test_places_to_begin_and_to_end(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, "-p", 0, stdin="".join(f"{i}\n" for i in range(10)))
        stamp = penstock.ok("consume", topic, "-o", "3", "-c", 1, "-p", 0, "-f", "%T")

        def consumed(*words: object) -> str:
            return "".join(penstock.ok("consume", topic, *words).split())

        assert consumed("-e", "-o", "7", "-p", 0) == "789"
        assert consumed("-e", "-o", "-2") == "89"
        assert consumed("-e", "-o", "end") == ""
        assert consumed("-o", "2", "--to", "5", "-p", 0) == "234"
        assert consumed("--to", "-8") == "01"
        assert consumed("-c", 4) == "0123"
        assert consumed("-o", f"@{stamp}", "-c", 1) in "0123"
        assert consumed("-o", "@2100-01-01", "-e") == ""
        assert consumed("--to", "@2001-01-01") == ""

    def test_count_ends_produce(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, "-c", 2, stdin="a\nb\nc\n")
        assert sorted(penstock.ok("consume", topic, "-e").split()) == ["a", "b"]

    def test_an_empty_input_and_an_empty_topic_are_fine(
        self, penstock: "Program", topic: str
    ) -> None:
        assert penstock.ok("produce", topic) == ""
        assert penstock.ok("consume", topic, "-e") == ""

    def test_a_record_over_the_limit_names_line_size_and_limit(
        self, penstock: "Program", topic: str
    ) -> None:
        penstock.ok("topic", "alter", topic, "--set", "max.message.bytes=2000")
        message = penstock.fails("produce", topic, stdin="ok\n" + "x" * 3000 + "\n")
        assert message.startswith("line 2: ")
        assert "2000" in message.replace(",", "")

    def test_a_closed_pipe_ends_consume_quietly(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, stdin="".join(f"line {i}\n" for i in range(20_000)))
        process = penstock.start("consume", topic)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, err) == (0, b"")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["consume", "no-such-topic", "-e"], "no-such-topic"),
            (["produce", "no-such-topic"], "no-such-topic"),
            (["offsets", "no-such-topic"], "no-such-topic"),
            (["topic", "describe", "no-such-topic"], "no-such-topic"),
            (["topic", "delete", "no-such-topic", "--yes"], "no-such-topic"),
            (["consume", "flights", "-p", "9", "-e"], "topic flights has partitions 0 to 1, not 9"),
            (["consume", "flights", "-o", "7", "-e"], "--offset 7 is not in the log"),
            (["consume", "flights", "-o", "7", "--to", "9"], "--offset 7 is not in the log"),
            (["consume", "flights", "-e", "-Z", "\udcff"], "is not valid UTF-8: b'\\xff'"),
            (["produce", "flights", "-p", "99999999999"], "partitions 0 to 1, not 99999999999"),
            (
                ["local", "down", "--data-dir", ".", "--purge", "-y"],
                "there is no local cluster here",
            ),
            (["topic", "create", "x", "-r", "9"], "9"),
            (["topic", "alter", "flights", "--set", "retention.msec=1"], "did you mean"),
            (["topic", "alter", "flights", "-p", "1"], "1"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else None,
    )
    def test_what_cannot_be_done_is_one_line(
        self, penstock: "Program", words: list[str], message: str
    ) -> None:
        assert message in penstock.fails(*words, stdin="x\n")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["consume", "flights", "-e", "--to", "end"], "give --to or --exit, not both"),
            (["consume", "flights", "-o", "0", "-g", "", "-e"], "--group is empty"),
            (["consume", "flights", "-e", "--bootstrap", ""], "--bootstrap or --cluster is empty"),
            (["--cluster", "", "topic", "list"], "--bootstrap or --cluster is empty"),
            (["produce", "flights", "-K", ""], "--key-delimiter is empty"),
            (["consume", "flights", "-f", "%z"], "--format has '%z' at position 0"),
            (["produce", "flights", "-H", "x"], "--header is 'x'; it must be NAME=VALUE"),
            (["topic", "create", "a/b"], "'a/b'"),
            (["topic", "alter", "flights"], "nothing to change"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else None,
    )
    def test_what_a_command_finds_wrong_with_its_words_is_wrong_usage(
        self, penstock: "Program", words: list[str], message: str
    ) -> None:
        assert message in penstock.fails(*words, stdin="x\n", code=2)

    @pytest.mark.parametrize(
        "words",
        [
            ["topic", "create", "big", "-p", "3000000000"],
            ["topic", "create", "big", "-r", "3000000000"],
            ["topic", "alter", "flights", "-p", "3000000000"],
            ["perf", "produce", "flights", "--record-bytes", "3000000000"],
            ["group", "describe", ""],
            ["group", "delete", "", "--yes"],
            ["group", "reset", "", "--topic", "flights", "--to-latest", "--execute"],
        ],
        ids=" ".join,
    )
    def test_what_no_cluster_could_mean_is_wrong_usage(
        self, penstock: "Program", words: list[str]
    ) -> None:
        done = penstock.run(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("penstock: ")
        assert len(done.stderr.splitlines()) == 1

    def test_an_offset_that_some_partitions_have_is_read_there(
        self, penstock: "Program", topic: str
    ) -> None:
        penstock.ok("produce", topic, "-p", 1, stdin="a\nb\n")
        assert penstock.ok("consume", topic, "-o", 1, "-e") == "b\n"
        assert penstock.ok("consume", topic, "-o", 2, "-e") == ""
        said = penstock.fails("consume", topic, "-o", 2, "--to", 1, code=2)
        assert said == "--to 1 is before --offset 2, so there is nothing to read"

    @pytest.mark.parametrize(
        ("words", "closed", "message"),
        [
            ("produce flights", "<&-", b"standard input is closed"),
            ("topic delete flights", "<&-", b"standard input is no terminal, so nobody can be"),
            ("topic list", ">&-", b"standard output is closed"),
            ("consume flights -e", ">&-", b"standard output is closed"),
            ("topic list", ">/dev/full", b"No space left on device"),
        ],
    )
    def test_closed_and_full_files_are_one_line(
        self, penstock: "Program", words: str, closed: str, message: bytes
    ) -> None:
        command = f"{sys.executable} -m penstock.cli {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], env=penstock.environment, cwd=penstock.folder,
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith(b"penstock: " + message)
        assert len(done.stderr.splitlines()) == 1

    def test_perf_makes_no_more_values_than_one_call_takes(self, penstock: "Program") -> None:
        # All at once would be 100 GB; the limit lets a defect end in an error, not in swapping.
        command = f"{sys.executable} -m penstock.cli perf produce flights --record-bytes 50000000"
        done = subprocess.run(
            ["sh", "-c", f"ulimit -v 6000000; {command}"], env=penstock.environment,
            cwd=penstock.folder, capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert b"a record of 50000011 bytes (with framing) does not fit" in done.stderr


class TestOffsets:
    def test_offsets_are_listed_per_partition(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, "-p", 1, stdin="a\nb\n")
        rows = json.loads(penstock.ok("offsets", topic, "-o", "json", "--at", "2001-01-01"))
        assert rows == [
            {"partition": 0, "earliest": 0, "latest": 0, "records": 0, "at": None},
            {"partition": 1, "earliest": 0, "latest": 2, "records": 2, "at": 0},
        ]
        table = penstock.ok("offsets", topic, "-p", 1, "-p", 1).splitlines()
        assert len(table) == 2, "a partition counts once"
        assert table[0].split() == ["PARTITION", "EARLIEST", "LATEST", "RECORDS"]
        assert table[1].split() == ["1", "0", "2", "2"]


class TestTopics:
    def test_the_life_of_a_topic(self, penstock: "Program") -> None:
        out = penstock.ok(
            "topic", "create", "life", "-p", 2, "-c", "retention.ms=1000", "--dry-run"
        )
        assert out == "topic life could be created\n"
        assert "life" not in penstock.ok("topic", "list")
        penstock.ok("topic", "create", "life", "-p", 2, "-c", "retention.ms=1000")
        assert "already" in penstock.fails("topic", "create", "life")
        listed = {
            row["topic"]: row for row in json.loads(penstock.ok("topic", "list", "-o", "json"))
        }
        assert (listed["life"]["partitions"], listed["life"]["replicas"]) == (2, 2)
        penstock.ok("topic", "alter", "life", "--partitions", 3, "--set", "retention.ms=2000")
        seen = json.loads(penstock.ok("topic", "describe", "life", "-o", "json"))
        assert [one["partition"] for one in seen["partition_list"]] == [0, 1, 2]
        retention = {"name": "retention.ms", "value": "2000", "default": False}
        assert retention in seen["configs"]
        penstock.ok("topic", "alter", "life", "--unset", "retention.ms")
        assert "604800000" in penstock.ok("topic", "describe", "life", "-o", "yaml")
        assert "min.insync.replicas" in penstock.ok("topic", "describe", "life")
        told = penstock.fails("topic", "delete", "life", stdin="y\n")
        assert told.startswith("standard input is no terminal, so nobody can be asked: give --yes")
        assert penstock.answer("n\n", "topic", "delete", "life").returncode == 1
        assert "life" in penstock.ok("topic", "list")
        done = penstock.answer("y\n", "topic", "delete", "life")
        assert (done.returncode, done.stdout) == (0, "topic life deleted\n"), done
        assert done.stderr == "Permanently delete life with 3 partitions? [y/N]: "
        wait_until(lambda: "life" not in penstock.ok("topic", "list"), what="life is gone")

    def test_a_protected_topic_is_kept_whatever_is_typed(self, penstock: "Program") -> None:
        penstock.ok("topic", "create", "dear", "-c", "deletion.protection=true")
        seen = json.loads(penstock.ok("topic", "describe", "dear", "-o", "json"))
        assert {"name": "deletion.protection", "value": "true", "default": False} in seen["configs"]
        for options in ([], ["--yes"]):  # without: it does not even ask
            told = penstock.fails("topic", "delete", "dear", *options)
            assert told.startswith("topic 'dear' is protected from deletion")
        assert "dear" in penstock.ok("topic", "list")
        lift = "penstock topic alter dear --set deletion.protection=false"
        assert f"to lift that: {lift}, or" in told
        penstock.ok(*lift.split()[1:])
        assert penstock.answer("y\n", "topic", "delete", "dear").returncode == 0
        wait_until(lambda: "dear" not in penstock.ok("topic", "list"), what="dear is gone")

    def test_the_cluster_is_described(self, penstock: "Program") -> None:
        seen = json.loads(penstock.ok("cluster", "describe", "-o", "json"))
        assert seen["controller_reachable"] is True
        assert [one["alive"] for one in seen["brokers"]] == [True, True]
        assert "Brokers:\nBROKER   ADDRESS" in penstock.ok("cluster", "describe")


class TestPerf:
    @pytest.mark.parametrize("mode", [[], ["--per-record"]], ids=str)
    def test_produce_and_consume_are_measured(
        self, penstock: "Program", topic: str, mode: list[str]
    ) -> None:
        out = penstock.ok("perf", "produce", topic, "--records", 3000, *mode, "-o", "json")
        assert json.loads(out)["records"] == 3000
        assert json.loads(out)["latency_p99_ms"] > 0
        out = penstock.ok("perf", "consume", topic, "-o", "json")
        assert json.loads(out)["records"] == 3000
        assert "Records per second:" in penstock.ok("perf", "consume", topic, "--arrow")


def read_line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()


INTERRUPTS_ITSELF = """
import os, sys
from penstock.cli.main import main
from penstock.client.loop_thread import LoopThread

number, topic = int(sys.argv[1]), sys.argv[2]
run, position = LoopThread.run, 0

def interrupted(self, work):
    global position
    if work.__name__ != "position":
        return run(self, work)
    if position:  # what there was is printed
        os.kill(os.getpid(), number)
    position = run(self, work)
    return position

LoopThread.run = interrupted
main(["consume", topic, "--to", "1000", "-p", "0"])
"""


class TestCtrlC:
    """Every command ends at once, with 130, without a traceback; what was read is written."""

    def test_consume(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, stdin="first\n")
        process = penstock.start("consume", topic)
        assert read_line(process.stdout) == b"first\n"
        assert interrupt(process) == (130, "")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=str)
    def test_a_stop_or_a_closed_terminal_lets_a_consumer_leave_its_group(
        self, penstock: "Program", topic: str, number: signal.Signals
    ) -> None:
        penstock.ok("produce", topic, stdin="first\n")
        process = subprocess.Popen(
            [
                sys.executable,
                *command_line.PYTHON,
                "consume",
                topic,
                "-g",
                topic,
                "-o",
                "beginning",
            ],
            env=penstock.environment,
            cwd=penstock.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=command_line.heed_hangups,  # noqa: PLW1509 - it takes no lock
        )
        assert read_line(process.stdout) == b"first\n"
        assert interrupt(process, number) == (130, "")
        described = json.loads(penstock.ok("group", "describe", topic, "-o", "json"))
        assert described["state"].lower() == "empty", described

    def test_nohup_keeps_a_command_when_the_terminal_is_closed(
        self, penstock: "Program", topic: str
    ) -> None:
        penstock.ok("produce", topic, stdin="first\n")
        process = subprocess.Popen(
            ["nohup", sys.executable, *command_line.PYTHON, "consume", topic],
            env=penstock.environment, cwd=penstock.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert read_line(process.stdout) == b"first\n"
        process.send_signal(signal.SIGHUP)
        penstock.ok("produce", topic, stdin="second\n")
        assert read_line(process.stdout) == b"second\n"
        assert interrupt(process) == (130, "")

    def test_produce_writes_what_it_has_read(self, penstock: "Program", topic: str) -> None:
        process = penstock.start("produce", topic, "-p", 0)
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        wait_until(lambda: "first" in penstock.ok("consume", topic, "-e"), what="first is there")
        lines = [f"line {i}" for i in range(500)]
        process.stdin.write("\n".join(lines).encode())
        process.stdin.flush()
        assert interrupt(process)[0] == 130
        # Which lines it had read by then is chance; those are all there, in order.
        read = penstock.ok("consume", topic, "-e").splitlines()
        assert read == ["first", *lines][: len(read)]

    @pytest.mark.parametrize("mode", [[], ["--per-record"]], ids=str)
    def test_perf_produce(self, penstock: "Program", topic: str, mode: list[str]) -> None:
        process = penstock.start("perf", "produce", topic, "--records", 10**9, *mode)
        assert b"written" in read_line(process.stderr)
        assert interrupt(process)[0] == 130

    @pytest.mark.parametrize("mode", [[], ["--arrow"]], ids=str)
    def test_perf_consume(self, penstock: "Program", topic: str, mode: list[str]) -> None:
        penstock.ok("perf", "produce", topic, "--records", 100, "--record-bytes", 200_000)
        words = ("perf", "consume", topic, *mode)
        process = penstock.start(*words, python=stopping_child.WORDS)
        try:
            wait_stopped(process)  # while it reads
            started = descendants_of(process.pid)
            process.send_signal(signal.SIGINT)
            code, err = interrupt(process, signal.SIGCONT)
            assert code == 130
            assert all(line.endswith("/s") for line in err.splitlines()), err  # after a second
            assert still_running(started) == {}
        finally:
            process.kill()

    def test_consume_that_waits_for_an_end(self, penstock: "Program", topic: str) -> None:
        penstock.ok("produce", topic, "-p", 0, stdin="x\n")
        process = penstock.start("consume", topic, "--to", "1000", "-p", 0)
        assert read_line(process.stdout) == b"x\n"
        assert interrupt(process) == (130, "")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
    def test_between_a_call_and_its_begin(
        self, penstock: "Program", topic: str, number: int
    ) -> None:
        """The worst moment: the coroutine is made and nobody runs it."""
        penstock.ok("produce", topic, "-p", 0, stdin="x\n")
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTS_ITSELF, str(int(number)), topic],
            env=penstock.environment, cwd=penstock.folder, capture_output=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (130, b"x\n", b"")

    def test_logs(self, penstock: "Program") -> None:
        process = penstock.start("local", "logs", "broker-0", "-f")
        assert json.loads(read_line(process.stdout))["event"]
        assert interrupt(process) == (130, "")

    def test_a_question(self, penstock: "Program", topic: str) -> None:
        with typing("") as terminal:
            process = penstock.start("topic", "delete", topic, stdin=terminal)
            assert process.stderr is not None
            asked = b""
            while not asked.endswith(b"[y/N]: "):
                asked += process.stderr.read(1)
            # Python loses a signal that comes just before it begins to read.
            wait_until(lambda: is_sleeping(process.pid), what="it waits for the answer")
            assert interrupt(process)[0] in (1, 130)
        assert topic in penstock.ok("topic", "list")
