"""Disks of a size of their own, for volumes that have an end: one on each node, of one class.

    file on the node ─▶ loop device, ext4 ─▶ mounted ─▶ a local PersistentVolume ─▶ one broker

The cluster's own class makes folders: all of them are as large as the node's disk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.nodes import Nodes

FOLDER: Final = "/var/penstock-e2e-disks"
MAKE: Final = """\
set -e
mkdir -p {at}
truncate -s {mib}M {at}.img
mkfs.ext4 -q -F -m 0 {at}.img
mount -o loop {at}.img {at}
"""
REMOVE: Final = "! mountpoint -q {at} || umount {at}; rm -rf {at} {at}.img"


@contextmanager
def own_disks(nodes: Nodes, kubectl: Kubectl, name: str, mib: int) -> Iterator[None]:
    """While the block runs, each node has one volume of `mib` MiB, of the storage class `name`.

    Whatever uses them must be gone at the end of the block. A node that is killed in it comes back
    without its volume.
    """
    places = dict.fromkeys(nodes.names(), f"{FOLDER}/{name}")
    volumes = [f"{name}-{node}" for node in places]
    try:
        for node, at in places.items():
            nodes.shell(node, REMOVE.format(at=at))  # of a run that was killed
            nodes.shell(node, MAKE.format(at=at, mib=mib))
        kubectl.apply([_class(name), *(_volume(name, node, mib) for node in places)])
        yield
    finally:
        kubectl.delete("persistentvolume", *volumes)
        kubectl.delete("storageclass", name)
        for node, at in places.items():
            nodes.shell(node, REMOVE.format(at=at))


def _class(name: str) -> Manifest:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(name: str, node: str, mib: int) -> Manifest:
    on = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{name}-{node}"},
        "spec": {
            "capacity": {"storage": f"{mib}Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "local": {"path": f"{FOLDER}/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on]}]}},
        },
    }
