"""`penstock local`: up, status, down, logs, dump-log, as a user types them."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support import command_line
from support.local import processes_of, write_manifest
from support.waiting import wait_until

from penstock.errors import MisuseError
from penstock_broker.local.foreground import progress_in
from penstock_broker.local.state import StateDirectory

if TYPE_CHECKING:
    from .conftest import Program

TIMEOUT_S = 300


class TestForeground:
    def test_ctrl_c_stops_everything_and_leaves_nothing(
        self, program: "Program", tmp_path: Path
    ) -> None:
        manifest = write_manifest(tmp_path)
        process = program.start("local", "up", "-f", manifest, "--port", 0)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"cluster test is running on 127.0.0.1:")
        assert program.ok("topic", "list").splitlines()[-1].split()[0] == "flights"
        assert len(processes_of(tmp_path)) == 3
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert b"Traceback" not in err
        assert processes_of(tmp_path) == {}
        assert "no local cluster is running" in program.fails("local", "status")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_while_it_starts_leaves_nothing(
        self, program: "Program", tmp_path: Path, number: signal.Signals
    ) -> None:
        up = ("local", "up", "-f", str(write_manifest(tmp_path)), "--port", "0")
        with subprocess.Popen(
            [sys.executable, *command_line.PYTHON, *up],
            env=program.environment,
            cwd=program.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=command_line.heed_hangups,  # noqa: PLW1509 - it takes no lock
        ) as process:
            try:
                wait_until(lambda: len(processes_of(tmp_path)) >= 2, what="it has begun")
                process.send_signal(number)
                out, err = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        # Where the signal was late, it has ended a cluster that ran: well.
        assert process.returncode == (0 if b" is running on " in out else 130)
        assert b"Traceback" not in err
        assert processes_of(tmp_path) == {}

    def test_a_closed_terminal_stops_everything(self, program: "Program", tmp_path: Path) -> None:
        process = program.start("local", "up", "-f", write_manifest(tmp_path), "--port", 0)
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        wait_until(lambda: not processes_of(tmp_path), what="children end with their parent")


class TestDetached:
    def test_the_life_of_a_cluster(self, program: "Program", tmp_path: Path) -> None:
        manifest = write_manifest(tmp_path, patient=True, brokers=2, partitions=2)
        up = ("local", "up", "-f", manifest, "--detach", "--port", 0)
        assert program.ok(*up).startswith("cluster test is running on 127.0.0.1:")

        again = program.ok(*up)
        assert again.endswith("; nothing to change\n"), "up again changes nothing"
        port = int(again.partition("127.0.0.1:")[2].partition(",")[0])
        assert program.ok(*up[:-1], port) == again, "these are its ports"
        refused = program.fails(*up[:-1], port - 1)
        assert refused == (
            f"--port is {port - 1}, but Cluster/test is running, with broker 0 on "
            f"127.0.0.1:{port}; leave --port out, or run `penstock local down` first"
        )
        write_manifest(tmp_path, patient=True, brokers=2, partitions=4)
        done = program.run(*up)
        assert "topic flights: now 4 partitions" in done.stderr
        write_manifest(tmp_path, patient=True, brokers=2, partitions=3)
        assert "spec.partitions is 3, but the topic has 4" in program.fails(*up)
        write_manifest(tmp_path, patient=True, brokers=3, partitions=4)
        assert "with different settings: spec.brokers (2 → 3)" in program.fails(*up)

        program.ok("produce", "flights", "-p", 0, stdin="kept\n")

        def healthy() -> Any:
            now = json.loads(program.run("local", "status", "-o", "json").stdout)
            return now if now["healthy"] else None

        seen = wait_until(healthy, what="the cluster is healthy")
        assert [one["name"] for one in seen["processes"]] == ["controller", "broker-0", "broker-1"]
        assert sum(one["leads"] or 0 for one in seen["processes"]) == 4

        broker = seen["processes"][1]["pid"]
        os.kill(broker, signal.SIGKILL)

        def restarted() -> bool:
            now = healthy()
            process = now["processes"][1] if now else {}
            return bool(process) and process["pid"] != broker and process["restarts"] == 1

        wait_until(restarted, what="broker 0 is back")

        logs = program.ok("local", "logs")
        assert "controller: {" in logs
        assert "broker-1: {" in logs
        assert "there is no log of broker-7" in program.fails("local", "logs", "broker-7")

        data = tmp_path / "state" / "penstock" / "local" / "test" / "broker-0"
        assert "a broker runs on" in program.fails("dump-log", "--data-dir", data)
        assert program.ok("local", "down") == "cluster test stopped\n"
        assert processes_of(tmp_path) == {}
        batches = program.ok("dump-log", "--data-dir", data, "-o", "json").splitlines()
        assert [json.loads(line)["records"] for line in batches] == [1]
        as_yaml = program.ok("dump-log", "--data-dir", data, "-o", "yaml")
        assert list(yaml.safe_load_all(as_yaml)) == [json.loads(line) for line in batches]
        assert "high watermark 1, log end 1" in program.ok("dump-log", "--data-dir", data)

        write_manifest(tmp_path, patient=True, brokers=3, partitions=4)
        program.ok(*up)
        assert program.ok("consume", "flights", "-e") == "kept\n"
        assert program.answer("n\n", "local", "down", "--purge").returncode == 1
        assert "is running on" in program.ok(*up), "it still runs after a no"
        program.ok("local", "down", "--purge", "--yes")
        assert not data.parent.exists()

    def test_the_records_of_a_protected_cluster_are_not_removed(
        self, program: "Program", tmp_path: Path
    ) -> None:
        data = tmp_path / "elsewhere"
        directory = StateDirectory(data)
        directory.create()
        text = "apiVersion: penstock.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dear}\n"
        spec = 'spec: {brokers: 1, config: {deletion.protection: "%s"}}\n'
        directory.write_manifest(text + spec % "true")
        purge = ("local", "down", "--data-dir", data, "--purge", "--yes")
        told = program.fails(*purge)
        assert told.startswith("Cluster dear is protected from deletion")
        assert f"in {directory.manifest_file} and" in told
        assert directory.marker_file.exists()
        directory.write_manifest(text + spec % "false")
        program.ok(*purge)
        assert not data.exists()

    def test_what_no_release_can_read_protects_nothing(
        self, program: "Program", tmp_path: Path
    ) -> None:
        data = tmp_path / "elsewhere"
        directory = StateDirectory(data)
        directory.create()
        directory.write_manifest("kind: [")
        program.ok("local", "down", "--data-dir", data, "--purge", "--yes")
        assert not data.exists()

    def test_a_data_directory_elsewhere_is_found_again(
        self, program: "Program", tmp_path: Path
    ) -> None:
        data = tmp_path / "elsewhere"
        manifest = write_manifest(tmp_path)
        program.ok("local", "up", "-f", manifest, "-d", "--port", 0, "--data-dir", data)
        assert (data / "state.json").exists()
        assert "flights" in program.ok("topic", "list")
        program.ok("local", "down")
        assert "no local cluster is running" in program.fails("local", "down")
        # What `down` keeps can be removed later.
        program.ok("local", "down", "--data-dir", data, "--purge", "--yes")
        assert not data.exists()

    def test_each_of_several_clusters_is_stopped_by_the_command_that_was_printed(
        self, program: "Program", tmp_path: Path
    ) -> None:
        up = ("local", "up", "-f", write_manifest(tmp_path), "-d", "--port", 0)
        program.ok(*up)
        program.ok("local", "down")
        places = [("--data-dir", tmp_path / "a b"), ()]
        said = [program.ok(*up, *place) for place in places]
        commands = [words.split("`")[1] for words in said]
        assert all(command.startswith("penstock local down --data-dir") for command in commands)
        listed = json.loads(program.ok("local", "list", "-o", "json"))
        assert {one["bootstrap"] for one in listed} == {words.split()[5][:-1] for words in said}
        for words in (["status"], ["down"], ["logs"]):
            message = program.fails("local", *words)
            assert message.startswith("there are 2 local clusters; choose one: --data-dir ")
        for number, command in enumerate(commands):
            assert program.ok(*shlex.split(command)[1:]) == "cluster test stopped\n"
            left = json.loads(program.ok("local", "list", "-o", "json"))
            assert len(left) == len(commands) - number - 1
        assert processes_of(tmp_path) == {}
        assert "no local cluster is running" in program.fails("local", "down")
        message = program.fails("local", "down", "--purge", "--yes")
        assert f" or --data-dir '{tmp_path / 'a b'}'" in message
        assert (tmp_path / "a b" / "broker-0").exists()

    def test_a_registry_that_cannot_be_written_is_no_hindrance(
        self, program: "Program", tmp_path: Path
    ) -> None:
        (tmp_path / "state").write_text("not a directory")
        up = ("local", "up", "-f", write_manifest(tmp_path), "-d", "--port", 0)
        done = program.run(*up, "--data-dir", tmp_path / "a")
        assert done.returncode == 0, done.stderr
        assert "find this cluster only with --data-dir" in done.stderr
        program.ok(*shlex.split(done.stdout.split("`")[1])[1:])

    def test_children_of_a_killed_supervisor_end_and_up_works_again(
        self, program: "Program", tmp_path: Path
    ) -> None:
        up = ("local", "up", "-f", write_manifest(tmp_path), "--detach", "--port", 0)
        program.ok(*up)
        state = json.loads((tmp_path / "state/penstock/local/test/state.json").read_text())
        os.kill(state["supervisor"]["pid"], signal.SIGKILL)
        wait_until(lambda: not processes_of(tmp_path), what="children end")
        done = program.run("local", "status", "-o", "json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["phase"] == "down"
        program.ok(*up)
        program.ok("local", "down")


class TestRefused:
    def test_a_bad_manifest_tells_every_problem(self, program: "Program", tmp_path: Path) -> None:
        bad = tmp_path / "bad.yaml"
        bad.write_text(
            "apiVersion: penstock.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c}\n"
            "spec: {brokers: 2, colour: red}\n---\n"
            "apiVersion: penstock.dev/v1alpha1\nkind: Topic\nmetadata: {name: t}\n"
            "spec: {cluster: c, replicas: 5}\n"
        )
        done = program.run("local", "up", "-f", "bad.yaml")
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            (
                "penstock: bad.yaml: Cluster/c: spec.colour is not a known field; known here: "
                "access, allowFrom, balance, brokers, config, controllers, deletionPolicy, "
                "external, hibernate, image, imagePullPolicy, pod, quotas, rack, resources, "
                "security, storage, upgrade"
            ),
            (
                "penstock: bad.yaml: Topic/t: spec.replicas is 5, but Cluster/c has 2 brokers; "
                "lower spec.replicas or raise spec.brokers"
            ),
        ]

    @pytest.mark.parametrize("how", [[], ["--detach"], ["--dry-run"]], ids=str)
    def test_a_port_in_use(self, program: "Program", tmp_path: Path, how: list[str]) -> None:
        manifest = write_manifest(tmp_path)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            done = program.run("local", "up", "-f", manifest, "--port", port + 1, *how)
        assert done.returncode == 1
        assert (
            f"port {port}, wanted by controller, is in use; stop the process that listens there"
            in done.stderr
        )
        assert len(done.stderr.splitlines()) == 1, "the supervisor's line is not shown again"
        assert processes_of(tmp_path) == {}

    @pytest.mark.parametrize("how", [["--detach"], ["--dry-run"]], ids=str)
    def test_a_directory_that_is_somebody_elses(
        self, program: "Program", tmp_path: Path, how: list[str]
    ) -> None:
        (tmp_path / "theirs" / "logs").mkdir(parents=True)
        (tmp_path / "file").touch()
        for place, why in (
            ("theirs", "has a folder 'logs' that no local cluster made"),
            ("file/below", "cannot be used as data directory: "),
        ):
            words = ("--data-dir", tmp_path / place, "--port", 0, *how)
            done = program.run("local", "up", *words)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
            assert done.stderr.startswith(f"penstock: {tmp_path / place}")
            assert why in done.stderr
            assert "choose another" in done.stderr

    @pytest.mark.parametrize("how", [["--detach"], ["--dry-run"]], ids=str)
    def test_data_of_more_brokers_than_are_to_run(
        self, program: "Program", tmp_path: Path, how: list[str]
    ) -> None:
        place = tmp_path / "large"
        StateDirectory(place).create()
        (place / "broker-3").mkdir()
        done = program.run("local", "up", "--data-dir", place, "--port", 0, *how)
        assert done.returncode == 1
        assert f"spec.brokers is 3, but {place} contains data of broker 3" in done.stderr
        assert f"`penstock local down --purge --data-dir {place}`" in done.stderr

    def test_why_a_detached_start_fails_is_no_progress(self) -> None:
        lines = ["controller is ready on 127.0.0.1:9091", "penstock: port 9092 is in use"]
        assert progress_in(lines) == lines[:1]

    @pytest.mark.parametrize("option", ["--cluster", "--file"])
    def test_an_option_whose_variable_is_not_set(self, program: "Program", option: str) -> None:
        done = program.run("local", "up", option, "")
        assert (done.returncode, done.stderr) == (
            2, f"penstock: {option} is empty (an unset variable?)\n",
        )  # fmt: skip

    def test_a_file_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        directory = StateDirectory(tmp_path)
        directory.manifest_file.mkdir()
        with pytest.raises(MisuseError, match=r"manifest\.yaml: cannot be written: Is a directory"):
            directory.write_manifest("text")
        assert list(tmp_path.iterdir()) == [directory.manifest_file], "nothing half written is left"

    def test_no_cluster_to_look_at(self, program: "Program") -> None:
        for words in (["status"], ["down"], ["logs"]):
            assert "no local cluster is running" in program.fails("local", *words)

    def test_a_manifest_that_is_not_there(self, program: "Program") -> None:
        assert program.fails("local", "up", "-f", "none.yaml") == (
            "none.yaml: cannot be read: No such file or directory"
        )

    def test_a_data_directory_that_is_none(self, program: "Program", tmp_path: Path) -> None:
        assert "is not the data directory of a broker" in program.fails(
            "dump-log", "--data-dir", tmp_path
        )
