"""Ports of local clusters: chosen, and kept from everybody else as long as the cluster runs."""

import errno
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.local import processes_of

from penstock.errors import MisuseError, PenstockError
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.ports import HOST, ReservedPort, fixed_ports, reserved_ports

WriteManifest = Callable[..., Path]
NAMES = ["controller", "broker-0"]


def listen(port: int) -> socket.socket:
    """A listener with SO_REUSEADDR, as servers are."""
    return socket.create_server((HOST, port))


def free_base() -> int:
    """A base whose four ports for one broker are free, where no outgoing connection takes one."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        base = random.SystemRandom().randrange(low // 2, low - 200)
        try:
            with reserved_ports(NAMES, base):
                return base
        except MisuseError:
            continue
    raise AssertionError("no free base")


class TestFixedPorts:
    def test_they_count_up_from_the_base(self) -> None:
        ports = fixed_ports(9092, 3)
        assert {name: port.serve for name, port in ports.items()} == {
            "controller": 9091,
            "broker-0": 9092,
            "broker-1": 9093,
            "broker-2": 9094,
        }
        assert ports["broker-2"].metrics == 9194

    @pytest.mark.parametrize(("base", "brokers"), [(1024, 3), (65_500, 50), (9092, 100)])
    def test_those_that_do_not_fit_are_refused(self, base: int, brokers: int) -> None:
        with pytest.raises(MisuseError, match="choose a base"):
            fixed_ports(base, brokers)

    def test_one_in_use_is_named_with_what_to_do(self) -> None:
        base = free_base()
        with (
            listen(base),
            pytest.raises(MisuseError) as caught,
            reserved_ports(NAMES, base),
        ):
            pass
        assert caught.value.message.startswith(f"port {base}, wanted by broker-0, is in use; stop")
        assert "--port" in caught.value.message
        with reserved_ports(NAMES, base):
            pass  # what was reserved before the refusal was given back


class TestReservedPorts:
    def test_a_server_that_comes_and_goes_gets_its_port_each_time(self) -> None:
        with ReservedPort() as reserved:
            for _ in range(3):
                with listen(reserved.port) as server:
                    client = socket.create_connection((HOST, reserved.port), 5)
                    served, _ = server.accept()
                    served.close()  # this side first: its end stays in TIME_WAIT
                    client.close()
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((HOST, reserved.port), 5)

    def test_nobody_who_looks_for_a_free_port_gets_it(self) -> None:
        with ReservedPort() as reserved:
            with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
                other.bind((HOST, reserved.port))
            assert caught.value.errno == errno.EADDRINUSE
            with pytest.raises(OSError, match="in use"):
                ReservedPort(reserved.port)

    def test_it_is_free_again_once_given_back_and_when_its_owner_was_killed(self) -> None:
        with ReservedPort() as reserved:
            port = reserved.port
        ReservedPort(port).close()
        program = (
            "from penstock_broker.local.ports import ReservedPort\n"
            f"port = ReservedPort({port})\n"
            "print('reserved', flush=True)\n"
            "import threading; threading.Event().wait()\n"
        )
        owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"reserved\n"
            with pytest.raises(OSError, match="in use"):
                ReservedPort(port)
        finally:
            owner.kill()
            owner.wait(30)
            owner.stdout.close()
        ReservedPort(port).close()

    def test_connections_that_wind_down_are_no_hindrance_to_a_fixed_one(self) -> None:
        with listen(0) as server:
            port = server.getsockname()[1]
            client = socket.create_connection((HOST, port), 5)
            served, _ = server.accept()
            served.close()
            client.close()
        ReservedPort(port).close()

    def test_any_ports_are_distinct(self) -> None:
        names = ["controller", *(f"broker-{i}" for i in range(20))]
        with reserved_ports(names, 0) as one, reserved_ports(names, 0) as other:
            both = [*one.values(), *other.values()]
            assert len({number for each in both for number in (each.serve, each.metrics)}) == 84


class TestClusters:
    def test_of_two_that_want_the_same_ports_at_once_one_starts_and_one_is_refused_whole(
        self, manifest: WriteManifest, tmp_path: Path
    ) -> None:
        options, path = LocalOptions(base_port=free_base()), manifest()
        barrier = threading.Barrier(2)

        def start(name: str) -> LocalCluster | PenstockError:
            folder = tmp_path / name
            cluster = LocalCluster.from_manifest(path, data_dir=folder, options=options)
            barrier.wait(120)
            try:
                cluster.start()
            except PenstockError as error:
                return error
            return cluster

        with ThreadPoolExecutor(2) as threads:
            ends = list(threads.map(start, ("one", "two")))
        started = [end for end in ends if isinstance(end, LocalCluster)]
        try:
            (refusal,) = (end for end in ends if isinstance(end, PenstockError))
            assert len(started) == 1
            assert isinstance(refusal, MisuseError), refusal
            assert "wanted by controller, is in use" in refusal.message
            (running,) = {Path(command.split("--metadata-dir=")[1].split()[0]).parent.name
                          for command in processes_of(tmp_path).values()
                          if "--metadata-dir=" in command}  # fmt: skip
            assert started[0].directory.root.name == running
        finally:
            for cluster in started:
                cluster.stop()

    def test_the_ports_of_a_killed_broker_stay_its_own(
        self, manifest: WriteManifest, tmp_path: Path
    ) -> None:
        with LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d") as cluster:
            cluster.kill(0)
            for address in (cluster.address(0), cluster.metrics_address(0)):
                with pytest.raises(OSError, match="in use"):
                    ReservedPort(int(address.rpartition(":")[2]))
            cluster.start_broker(0)
