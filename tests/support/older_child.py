"""Entry point of a broker as one of an older release, else as `local.child`.

It names no features when it registers, and knows neither replication nor clients but over gRPC.
"""

import runpy
from pathlib import Path

from penstock.core.types import BrokerId
from penstock_broker.broker.replication import Replication
from penstock_broker.metadata import session
from penstock_broker.metadata.image import ClusterView, LeaderAddress
from penstock_broker.services.client_streams import ClientStreams

LAUNCHER = ["-P", str(Path(__file__))]
"""Of a `ServerProcess`."""


_leader_address = ClusterView.leader_address


def _over_grpc(view: ClusterView, leader: BrokerId, *, tls: bool) -> LeaderAddress | None:
    found = _leader_address(view, leader, tls=tls)
    return None if found is None else LeaderAddress(found.grpc, None)


async def _no_port(_listener: object, _address: str) -> int:
    return 0


if __name__ == "__main__":
    setattr(ClusterView, "leader_address", _over_grpc)  # noqa: B010 - of a release to come
    for listener in (Replication, ClientStreams):
        assert hasattr(listener, "listen")
        setattr(listener, "listen", _no_port)  # noqa: B010 - the same
    vars(session)["BROKER_FEATURES"] = ()  # a constant of this release
    runpy.run_module("penstock_broker.local.child", run_name="__main__", alter_sys=True)
