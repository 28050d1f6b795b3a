"""Disks of a broker that are full or slow, and what comes of it when they stay so for long."""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from support.cluster import Cluster
from support.faults import Faults
from support.waiting import wait_until

from penstock.core.replication.scrub import ScrubProgress
from penstock_broker.durable_files import DurableFile
from penstock_broker.maintenance import scrub_record

MIB: Final = 1024 * 1024
DAY_MS: Final = 24 * 60 * 60 * 1000
NOT_QUICK_S: Final = 0.001


def small_disk(cluster: Cluster, stack: ExitStack) -> None:
    """Broker 1 has a file system of 1 GiB to itself; only root may make one."""
    folder = cluster.data_dir(1)
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "penstock", str(folder)]
    subprocess.run(mount, check=True)
    stack.callback(subprocess.run, ["umount", str(folder)], check=True)


def leaves_free(free_bytes: int) -> Callable[[Cluster, ExitStack], None]:
    """Somebody else's file fills the disk of broker 1 up to here."""

    def make(cluster: Cluster, _: ExitStack) -> None:
        disk = os.statvfs(cluster.data_dir(1))
        with (cluster.data_dir(1) / "of-somebody-else").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - free_bytes)

    return make


def _disk_of(cluster: Cluster, broker_id: int) -> Faults:
    return Faults(cluster.brokers[broker_id], cluster.path / f"disk-{broker_id}")


def disk_to_slow_down(cluster: Cluster, _: ExitStack) -> None:
    _disk_of(cluster, 1).slow(NOT_QUICK_S)


def disk_slow(cluster: Cluster, _: ExitStack) -> None:
    """Each write of broker 1, which follows `flights` or leads it, takes 1.5 s more."""
    _disk_of(cluster, 1).slow(1.5)


def _scrub_file(cluster: Cluster) -> DurableFile:
    return DurableFile(cluster.data_dir(1) / "scrub.json")


def scrub_recorded(cluster: Cluster, _: ExitStack) -> None:
    """Of broker 1, whose scrub knows all of its logs."""
    file = _scrub_file(cluster)
    wait_until(lambda: len(scrub_record.load(file).logs) >= 2, what="the scrub has a record")


def scrub_held_up(cluster: Cluster, stack: ExitStack) -> None:
    """The record of broker 1's scrub is made 15 days older, and the disk is full: none is read."""
    leaves_free(32 * MIB)(cluster, stack)
    assert cluster.brokers[1].stop() == 0
    file = _scrub_file(cluster)
    known = scrub_record.load(file)
    older = {key: ScrubProgress(one.since_ms - 15 * DAY_MS) for key, one in known.logs.items()}
    scrub_record.save(file, replace(known, logs=older))
    cluster.brokers[1].start()
