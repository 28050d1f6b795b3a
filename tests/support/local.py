"""What tests of local clusters share: which processes run, and a small manifest."""

import os
from pathlib import Path

MANIFEST = """
apiVersion: penstock.dev/v1alpha1
kind: Cluster
metadata: {name: test}
spec:
  brokers: %(brokers)d
---
apiVersion: penstock.dev/v1alpha1
kind: Topic
metadata: {name: flights}
spec: {cluster: test, partitions: %(partitions)d%(more)s, config: {retention.ms: -1}}
"""


def processes_of(path: Path) -> dict[int, str]:
    """Every running process whose command line names this path: pid and command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if str(path) in command and int(entry.name) != os.getpid():
            found[int(entry.name)] = command
    return found


def write_manifest(
    folder: Path,
    *,
    brokers: int = 1,
    partitions: int = 2,
    replicas: int | None = None,
    patient: bool = False,
) -> Path:
    """`cluster.yaml` in the folder: Cluster/test and Topic/flights. `replicas` None: not said.

    `patient`: a broker that stands still for seconds is not dead; one that was killed is.
    """
    file = folder / "cluster.yaml"
    more = "" if replicas is None else f", replicas: {replicas}"
    text = MANIFEST % {"brokers": brokers, "partitions": partitions, "more": more}
    if patient:
        config = "  config: {broker.session.timeout.ms: 30000}\n---"
        text = text.replace("---", config, 1)
    file.write_text(text)
    return file
