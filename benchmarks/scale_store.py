"""Part of `scale.py`: what its changes take when each document is a ConfigMap of a real API server.

Needs etcd and kube-apiserver (see tests/support/apiserver.py). The machine decides, the store of
the controllers writes and reads, and this process waits for it, as a controller's clients do.
"""

import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from benchmarks.common import figure, progress
from benchmarks.scale import ELECTION_S, MIB, Cluster, Size, named
from penstock.core.control import contract as c
from penstock.core.control.documents import CLUSTER_KEY, decode_cluster, decode_topic
from penstock.core.control.storage import Put
from penstock_broker.controller.loading import to_change
from penstock_broker.controller.metadata_store.kubernetes import KubernetesMetadataStore
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.apiserver import ApiServer, missing
from support.kubernetes_store import open_store

TAKE_OVER_S = 6.0
"""As long as a Lease lasts, which a new controller waits for before."""


class StoredCluster(Cluster):
    """As `Cluster`, with its documents in the API server."""

    def __init__(self, size: Size, store: KubernetesMetadataStore) -> None:
        super().__init__(size)
        self._store = store
        self.waited_s = 0.0
        self.put(self.texts)

    def put(self, texts: Mapping[str, str]) -> None:
        """As new documents."""
        self._store.write([[Put(key, text, None) for key, text in texts.items()]])

    def load(self) -> None:
        """Reads everything and takes over."""
        found = dict(self._store.read_all())
        cluster = found.pop(CLUSTER_KEY)
        topics = tuple((decode_topic(one.text, key), one.version) for key, one in found.items())
        known = decode_cluster(cluster.text, CLUSTER_KEY)
        self.step(c.Loaded((known, cluster.version), topics, known.cluster_id))

    def step(self, event: c.Event) -> c.Ready:
        """One event, and its writes until nothing is left to do."""
        ready = self.machine.handle(event, self.now_ms)
        assert ready.stopped is None, ready.stopped
        if ready.writes:
            self.writes += len(list(chain(*ready.writes)))
            began = time.perf_counter()
            versions = self._store.write([[to_change(one) for one in at] for at in ready.writes])
            self.waited_s += time.perf_counter() - began
            self.step(c.WriteDone(ready.write_id, dict(versions)))
        return ready


def measure(size: Size) -> None:
    """A take-over, and a broker's death. Raises SystemExit without an API server."""
    if reason := missing():
        raise SystemExit(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        server = ApiServer(folder)
        stack.callback(server.stop)
        store = open_store(server.kubeconfig, ClusterObjects("scale", server.namespace()))
        stack.callback(store.close)
        progress(f"writing {size.title}")
        cluster = StoredCluster(size, store)
        began = time.perf_counter()
        cluster.load()
        took_s = time.perf_counter() - began
        title = "take-over: read from the API server, decoded, adopted"
        figure(named(title, size), took_s, "s", "a Lease", TAKE_OVER_S, goal="ratio at most 1")
        cluster.register()
        before, waited_s = cluster.writes, cluster.waited_s
        used, began = time.process_time(), time.perf_counter()
        cluster.kill()
        took_s, waited_s = time.perf_counter() - began, cluster.waited_s - waited_s
        used, writes = time.process_time() - used, cluster.writes - before
        title = "a broker dies: decided and stored in the API server"
        figure(named(title, size), took_s, "s", "limit", ELECTION_S, goal="ratio at most 1")
        figure(named("… of which the API server", size), waited_s, "s")
        figure(named("… processor time of the controller", size), used, "s")
        figure(named("… per object", size), 1_000 * waited_s / writes, "ms")
        entries = sum(len(text) for text in cluster.texts.values()) / MIB
        progress(f"{len(cluster.texts):,} documents, {entries:.1f} MiB")
