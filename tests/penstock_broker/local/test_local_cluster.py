"""`LocalCluster` with real processes: it starts, survives kills, and leaves nothing behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.local import processes_of
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.core.manifest import ManifestError
from penstock.errors import ClusterError, MisuseError
from penstock_broker.controller.metadata_store.local import LocalMetadataStore
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.remote import ProcessStatus, status
from penstock_broker.local.security import LocalSecurity
from penstock_broker.local.state import StateDirectory

WriteManifest = Callable[..., Path]


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        values: list[bytes | None] = []

        def has_read() -> bool:
            values.extend(v for b in consumer.poll(1.0) for v in b.values())
            return len(values) >= count

        wait_until(has_read, what=f"{count} records")
        return values


def test_a_cluster_of_three_serves_and_survives_the_kill_of_a_broker(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    cluster = LocalCluster.from_manifest(manifest(brokers=3), data_dir=tmp_path / "d")
    with cluster, Producer(cluster.bootstrap) as producer:
        assert cluster.broker_ids == [0, 1, 2]
        with Admin(cluster.bootstrap) as admin:
            seen = admin.describe_topics(["flights"])["flights"]
            assert [len(one.replicas) for one in seen.partitions] == [3, 3]
        first = producer.send("flights", b"before", b"k").result(120)
        killed = cluster.broker_pid(0)
        cluster.kill(0)
        assert cluster.broker_pid(0) is None
        second = producer.send("flights", b"while", b"k").result(120)
        assert second.offset == first.offset + 1
        cluster.start_broker(0)
        assert cluster.broker_pid(0) not in (None, killed)
        producer.send("flights", b"after", b"k").result(120)
        assert read_all(cluster.bootstrap, "flights", 3) == [b"before", b"while", b"after"]
        assert [process.name for process in status(tmp_path / "d").processes] == [
            "controller", "broker-0", "broker-1", "broker-2",
        ]  # fmt: skip

        def leads() -> int:
            """A process that does not answer in time leads nothing, as far as one can see."""
            return sum(process.leads or 0 for process in status(tmp_path / "d").processes)

        wait_until(lambda: leads() == 2, what="both leaders say so")
    assert processes_of(tmp_path) == {}
    assert not (tmp_path / "d" / "state.json").exists()


def test_records_topics_and_cluster_id_are_back_after_stop_and_start(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    ids = set()
    for number in range(2):
        with LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d") as cluster:
            with Admin(cluster.bootstrap) as admin:
                ids.add(admin.describe_cluster().cluster_id)
            with Producer(cluster.bootstrap) as producer:
                producer.send("flights", b"%d" % number, partition=0).result(120)
            assert len(read_all(cluster.bootstrap, "flights", number + 1)) == number + 1
    assert len(ids) == 1


@pytest.mark.parametrize("target", ["broker-0", "controller"])
def test_a_process_that_dies_is_started_again(
    manifest: WriteManifest, tmp_path: Path, target: str
) -> None:
    options = LocalOptions(restart_crashed=True)
    path = manifest()
    with LocalCluster.from_manifest(path, data_dir=tmp_path / "d", options=options) as cluster:
        before = cluster.pid(target)
        cluster.kill(target)

        def recorded(name: str = target) -> ProcessStatus:
            return {one.name: one for one in status(tmp_path / "d").processes}[name]

        wait_until(lambda: recorded().restarts == 1, what=f"{target} is back")
        assert recorded().pid == cluster.pid(target) != before
        wait_until(lambda: recorded("broker-0").leads, what="the broker serves and leads")
        with Producer(cluster.bootstrap) as producer:
            producer.send("flights", b"x").result(120)


def test_a_broker_stopped_on_purpose_stays_down(manifest: WriteManifest, tmp_path: Path) -> None:
    options = LocalOptions(restart_crashed=True)
    path = manifest(brokers=2)
    with LocalCluster.from_manifest(path, data_dir=tmp_path / "d", options=options) as cluster:
        cluster.stop_broker(1)
        before = cluster.broker_pid(0)
        cluster.kill(0)
        wait_until(lambda: cluster.broker_pid(0) not in (None, before), what="broker 0 is back")
        assert cluster.broker_pid(1) is None
        cluster.start_broker(1)
        assert cluster.broker_pid(1) is not None


@contextlib.contextmanager
def unwritable(file: Path) -> Iterator[None]:
    """This process cannot replace the file, as on a full disk."""
    blocker = file.with_name(f"{file.stem}.{os.getpid()}.tmp")
    blocker.mkdir()
    try:
        yield
    finally:
        blocker.rmdir()


def test_a_process_is_started_again_also_after_a_write_that_failed(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    told: list[str] = []

    def progress(line: str) -> None:
        told.append(line)
        if "could not be" in line:
            raise OSError("its log is on that disk, too")

    options = LocalOptions(restart_crashed=True, progress=progress)
    folder = tmp_path / "d"
    with LocalCluster.from_manifest(manifest(), data_dir=folder, options=options) as cluster:

        def recorded() -> int | None:
            return {one.name: one.pid for one in status(folder).processes}["broker-0"]

        def failed() -> list[str]:
            return [one for one in told if one.startswith("broker-0 could not be restarted")]

        with unwritable(folder / "state.json"):
            cluster.kill(0)
            wait_until(failed, what="it was tried")
        assert "state.json: cannot be written" in failed()[0]
        wait_until(lambda: recorded() == cluster.broker_pid(0) is not None, what="it is recorded")
        before = cluster.broker_pid(0)
        cluster.kill(0)
        wait_until(lambda: recorded() not in (None, before), what="it is back once more")


def test_a_write_that_fails_keeps_nothing_from_being_stopped(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    def progress(line: str) -> None:
        if line.endswith("stopped"):
            raise OSError("no space left")

    options = LocalOptions(progress=progress)
    cluster = LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d", options=options)
    cluster.start()
    with unwritable(tmp_path / "d" / "state.json"):
        cluster.stop()
    assert processes_of(tmp_path) == {}
    assert not (tmp_path / "d" / "state.json").exists()


def test_certificates_are_renewed_also_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_broker.local.security.LOOK_EVERY_S", 0.01)
    security = LocalSecurity(StateDirectory(tmp_path), "test")
    security.prepare(["controller"])
    token = security.admin_token_file
    told: list[str] = []
    blocker = token.with_name(f"{token.name}.{os.getpid()}.tmp")
    blocker.mkdir()
    token.unlink()
    try:
        security.start_renewing(told.append)
        wait_until(lambda: told, what="it was tried")
        blocker.rmdir()
        wait_until(token.exists, what="it is renewed")
    finally:
        security.stop_renewing()
    assert "certificates could not be renewed" in told[0]


STARTER = """
import sys, threading
from pathlib import Path
from penstock_broker.local.cluster import LocalCluster
cluster = LocalCluster.from_manifest(sys.argv[1], data_dir=sys.argv[2])
cluster.start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_children_end_when_their_parent_is_killed(manifest: WriteManifest, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER, manifest(), tmp_path / "d"], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == b"ready\n"
        assert len(processes_of(tmp_path)) == 3
    finally:
        parent.kill()
        parent.wait(60)
        parent.stdout.close()
    wait_until(lambda: not processes_of(tmp_path), what="children end")
    # And the next start is not in their way, nor they in its.
    with LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d"):
        pass


def test_a_port_in_use_is_one_line_and_nothing_is_started(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = LocalOptions(base_port=port + 1)
        cluster = LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d", options=options)
        with pytest.raises(MisuseError, match=f"port {port}, wanted by controller, is in use"):
            cluster.start()
    assert processes_of(tmp_path) == {}


def test_two_clusters_do_not_share_a_directory(manifest: WriteManifest, tmp_path: Path) -> None:
    with LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d") as first:
        second = LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d")
        with pytest.raises(MisuseError, match="already runs in"):
            second.start()
        assert first.broker_pid(0) is not None
        assert first.directory.read() is not None, "the second must not touch the first's state"


def test_a_process_that_does_not_start_is_told_and_the_others_are_stopped(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    with LocalCluster.from_manifest(manifest(brokers=2), data_dir=tmp_path / "d"):
        pass
    shutil.copy(tmp_path / "d/broker-0/meta.json", tmp_path / "d/broker-1/meta.json")
    cluster = LocalCluster.from_manifest(manifest(brokers=2), data_dir=tmp_path / "d")
    with pytest.raises(ClusterError) as caught:
        cluster.start()
    assert caught.value.message.startswith("broker-1 exited 2: penstock broker: data directory")
    assert "belongs to broker 0, not to broker 1" in caught.value.message
    assert processes_of(tmp_path) == {}


def test_fewer_brokers_than_there_is_data_of_are_refused(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    StateDirectory(tmp_path / "d").create()
    (tmp_path / "d" / "broker-2").mkdir()
    cluster = LocalCluster.from_manifest(manifest(brokers=1), data_dir=tmp_path / "d")
    with pytest.raises(MisuseError, match=r"spec\.brokers is 1, but .* contains data of broker 2"):
        cluster.start()


def test_topics_follow_the_manifest_and_never_shrink(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    with LocalCluster.from_manifest(manifest(partitions=2), data_dir=tmp_path / "d") as cluster:
        load = LocalCluster.from_manifest
        more = load(manifest(partitions=4), data_dir=tmp_path / "d").manifest
        assert cluster.apply(more) == ["topic flights: now 4 partitions"]
        assert cluster.apply(more) == []
        fewer = load(manifest(partitions=3), data_dir=tmp_path / "d").manifest
        with pytest.raises(ManifestError, match=r"spec\.partitions is 3, but the topic has 4"):
            cluster.apply(fewer)


def test_a_topic_gets_the_replicas_of_its_manifest(manifest: WriteManifest, tmp_path: Path) -> None:
    load = LocalCluster.from_manifest
    first = manifest(brokers=2, partitions=2, replicas=1)
    with load(first, data_dir=tmp_path / "d") as cluster:
        more = load(manifest(brokers=2, partitions=2, replicas=2), data_dir=tmp_path / "d").manifest
        assert cluster.apply(more) == ["topic flights: 2 replicas of every partition"]
        with Admin(cluster.bootstrap) as admin:

            def has(replicas: int) -> bool:
                seen = admin.describe_topics(["flights"])["flights"].partitions
                return {len(one.replicas) for one in seen} == {replicas}

            wait_until(lambda: has(2), what="two replicas")
            assert cluster.apply(more) == []
            back = manifest(brokers=2, partitions=2, replicas=1)
            fewer = load(back, data_dir=tmp_path / "d").manifest
            assert cluster.apply(fewer) == ["topic flights: 1 replica of every partition"]
            wait_until(lambda: has(1), what="one replica")
            both = manifest(brokers=2, partitions=4, replicas=2)
            assert len(cluster.apply(load(both, data_dir=tmp_path / "d").manifest)) == 2
            wait_until(lambda: has(2), what="two replicas of the new partitions, too")


def test_a_stopped_process_is_killed_when_the_cluster_stops(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    options = LocalOptions(stop_timeout_s=1.0)
    cluster = LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d", options=options)
    with cluster:
        cluster.kill(0, signal.SIGSTOP)
        pid = cluster.broker_pid(0)
        assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_controller_that_ends_at_its_start_is_told(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    cluster = LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d")
    StateDirectory(tmp_path / "d").create()
    other = LocalMetadataStore(tmp_path / "d/controller")
    try:
        with pytest.raises(ClusterError) as caught:
            cluster.start()
    finally:
        other.close()
    assert caught.value.message.startswith("controller exited 2: penstock controller: metadata")
    assert "in use by another controller" in caught.value.message
    assert processes_of(tmp_path) == {}


def test_a_controller_that_ends_while_a_broker_is_waited_for_is_told_at_once(
    manifest: WriteManifest, tmp_path: Path
) -> None:
    """No broker ever serves then: to wait for one would take all of `ready_timeout_s`."""
    seen: list[str] = []

    def progress(line: str) -> None:
        seen.append(line)
        if line.startswith("controller is ready"):
            cluster.kill("controller")

    options = LocalOptions(ready_timeout_s=100.0, progress=progress)
    cluster = LocalCluster.from_manifest(manifest(), data_dir=tmp_path / "d", options=options)
    with pytest.raises(ClusterError, match=r"^controller was ended by signal 9: ") as caught:
        cluster.start()
    assert str(tmp_path / "d/logs/controller.log") in caught.value.message
    assert seen[0].startswith("controller is ready")
    assert processes_of(tmp_path) == {}
