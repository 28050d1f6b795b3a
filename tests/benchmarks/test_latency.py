"""The benchmark of small appends: its arithmetic, that its parts run, that it ends."""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import grpc
import pytest
from support.benchmarks import ROOT, check_nothing_is_left, running
from support.processes import stop
from support.waiting import wait_exit

from benchmarks.bare_pattern import ANSWER, APPEND, nodes
from benchmarks.latency_figures import Run, Sample, report, spent_s
from benchmarks.latency_job import END, RECORD_BYTES, WARM, Job, Receipts, send_paced, stamped
from benchmarks.latency_stage import QUICK, Stage
from penstock.rpc.channel import open_aio_channel

COMMAND = [sys.executable, "-m", "benchmarks.latency", "--quick", "--no-kafka", "--no-nats"]


def sample(latencies_us: list[int], took_s: float, cpu_s: float) -> Sample:
    return Sample(events=len(latencies_us), took_s=took_s, cpu_s=cpu_s, latencies_us=latencies_us)


def test_processes_that_ran_together_count_together_over_the_longest_time() -> None:
    run = Run(samples=[sample([1] * 30, 2.0, 0.1), sample([1] * 10, 4.0, 0.3)], brokers_s=0.5)
    assert run.events == 40
    assert run.per_s == 10.0


def test_processor_time_per_event_is_told_apart_for_brokers_and_clients() -> None:
    run = Run(samples=[sample([1] * 150, 2.0, 0.1), sample([1] * 50, 1.0, 0.3)], brokers_s=0.5)
    assert run.brokers_ms == pytest.approx(2.5)
    assert run.clients_ms == pytest.approx(2.0)
    assert run.brokers_percent == pytest.approx(25.0)


def test_a_percentile_is_over_the_events_of_all_processes_and_not_of_their_percentiles() -> None:
    quick, slow = list(range(1_000, 100_000, 1_000)), [5_000_000]
    run = Run(samples=[sample(slow, 1.0, 0.0), sample(quick, 1.0, 0.0)], brokers_s=0.0)
    assert run.latency_ms(0.5) == 51.0
    assert run.latency_ms(0.98) == 99.0
    assert run.latency_ms(0.99) == 5_000.0


def test_what_brokers_spent_is_the_sum_of_their_differences() -> None:
    assert spent_s({7: 1.0, 8: 20.0}, {7: 1.5, 8: 20.25}) == pytest.approx(0.75)


@pytest.mark.parametrize("after", [{7: 1.5}, {7: 1.5, 9: 0.1}], ids=["ended", "restarted"])
def test_brokers_that_are_others_afterwards_have_no_known_cost(after: dict[int, float]) -> None:
    with pytest.raises(SystemExit, match=r"brokers \[7, 8\] are"):
        spent_s({7: 1.0, 8: 20.0}, after)


def test_a_figure_is_told_beside_each_peer_with_the_goal_that_is_set_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("x", "ms", [1.0, 4.0], {"a": [2.0, 4.0], "b": [1.0, 1.0]}, {"b": "ratio ≤ 2.5"})
    report("y", "ms", [3.0], {})
    beside_a, beside_b, alone = map(json.loads, capsys.readouterr().out.splitlines())
    assert (beside_a["vs"], beside_a["ratio"], "goal" in beside_a) == ("a", 0.75, False)
    assert (beside_b["vs"], beside_b["ratio"], beside_b["goal"]) == ("b", 2.5, "ratio ≤ 2.5")
    assert (alone["name"], alone["value"], alone["vs"]) == ("y", 3.0, None)


def test_receipts_measure_what_lies_between_warm_records_and_the_end() -> None:
    receipts = Receipts()
    receipts.take(0, stamped(WARM), 500)
    receipts.take(0, stamped(1_000_000), 3_500_000)
    receipts.take(2, stamped(2_000_000), 3_000_000)
    receipts.take(0, stamped(END), 9_000_000)
    assert receipts.latencies_us == [2_500, 1_000]
    assert receipts.begun == {0, 2}
    assert receipts.ended == {0}


def test_a_paced_sender_sends_all_that_its_rate_and_time_come_to() -> None:
    sent: list[bytes] = []
    assert send_paced(sent.append, 1_000, 0.05, warm=False) == len(sent) == 50
    assert {len(value) for value in sent} == {RECORD_BYTES}
    assert stamped(WARM) not in sent
    assert sorted(sent) == sent


def test_a_peer_whose_tools_are_missing_is_left_out_and_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stage = Stage(QUICK, with_kafka=True, with_nats=True)
    assert stage.kafka() is None
    assert stage.nats() is None
    kafka, nats = capsys.readouterr().err.splitlines()
    assert kafka == "· no kafka: java and mvn not found"
    assert nats in ("· no nats: go not found", "· no nats: nats-py not installed")


async def test_the_bare_pattern_answers_when_both_followers_have_acknowledged() -> None:
    with nodes(3) as pattern:
        async with open_aio_channel(pattern.bootstrap.split(",")[0]) as channel:
            append: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(APPEND)
            call = append(wait_for_ready=True)
            await call.write(b"record")
            assert await call.read() == ANSWER
            for follower in pattern.processes[1:]:
                stop(follower.pid)
                await call.write(b"record")
                async with asyncio.TaskGroup() as tasks:
                    answer = tasks.create_task(call.read())
                    done, _ = await asyncio.wait({answer}, timeout=0.3)
                    follower.send_signal(signal.SIGCONT)
                assert not done
                assert answer.result() == ANSWER
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF


def of_lone_appends(words: str) -> set[str]:
    name = f"lone append, {words}"
    return {
        f"{name}, acknowledged",
        f"{name}, p50",
        f"{name}, p99",
        f"{name}, CPU of three brokers per ack",
        f"{name}, CPU of the clients per ack",
    }


def of_end_to_end(rate: str) -> set[str]:
    name = f"end to end, {rate} records/s, linger 5 ms"
    return {f"{name}, p50", f"{name}, p99", f"{name}, CPU of three brokers"}


SHARING = "lone append, 4 clients that share producers"


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (
            ("lone",),
            {
                *of_lone_appends("1 client"),
                *of_lone_appends("4 clients"),
                f"{SHARING}, acknowledged",
                f"{SHARING}, p50",
                f"{SHARING}, CPU of three brokers per ack",
            },
        ),
        (
            ("pipelined", "end-to-end"),
            {
                "pipelined, one record per request, one client",
                "pipelined, CPU of three brokers per record",
                *of_end_to_end("200"),
                *of_end_to_end("1,000"),
            },
        ),
        (
            ("commits",),
            {
                "commits waited for, 4 members",
                "commits waited for, 4 members, per core of the coordinator's broker",
            },
        ),
    ],
    ids=["lone", "pipelined-end-to-end", "commits"],
)
def test_every_part_prints_its_figures(
    tmp_path: Path, parts: tuple[str, ...], names: set[str]
) -> None:
    command = [*COMMAND, *(f"--only={part}" for part in parts)]
    with running(command, tmp_path, {}) as process:
        assert wait_exit(process, 240) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert {line["name"] for line in lines} == names
    assert len({(line["name"], line["vs"]) for line in lines}) == len(lines)
    for line in lines:
        assert line["value"] > 0 or "CPU" in line["name"], line


def test_the_help_shows_examples(tmp_path: Path) -> None:
    with running([*COMMAND, "--help"], tmp_path, {}) as process:
        assert wait_exit(process, 60) == 0
    shown = (tmp_path / "out").read_text()
    assert "python -m benchmarks.latency --only lone --only commits" in shown
    assert "parts: lone, pipelined, end-to-end, commits" in shown


def test_a_part_that_is_unknown_is_named(tmp_path: Path) -> None:
    with running([*COMMAND, "--only=nosuch"], tmp_path, {}) as process:
        assert wait_exit(process, 60) == 2
    assert "invalid choice: 'nosuch'" in (tmp_path / "err").read_text()


def test_a_client_that_waits_to_begin_ends_with_whoever_started_it(tmp_path: Path) -> None:
    with nodes(3) as pattern:
        job = Job(
            side="bare", role="append", bootstrap=pattern.bootstrap, topic="", clients=(0, 1, 2)
        )
        command = [sys.executable, "-m", "benchmarks.latency_client", json.dumps(asdict(job))]
        client = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert client.stdout is not None
            assert json.loads(client.stdout.readline()) == {"event": "ready"}
            client.communicate(timeout=300)  # closes its standard input
            assert client.returncode == 0
        finally:
            client.kill()
            client.communicate()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_nothing_is_left_running(tmp_path: Path, how: signal.Signals) -> None:
    """Not the clients that are appending at that moment, nor the servers of any side."""
    command = [*COMMAND, "--only=lone"]
    check_nothing_is_left(
        command,
        tmp_path,
        how,
        busy="benchmarks.latency_client",
        servers=("penstock_broker", "benchmarks.bare_pattern"),
    )
