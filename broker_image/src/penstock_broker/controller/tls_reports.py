"""What brokers say that their TLS uses, of those that have a session with this controller.

heartbeat ─ heard ─▶ the newest of each broker      stream ends ─ gone ─▶ forgotten
"""

from collections.abc import Mapping

from penstock.core.types import BrokerId
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.certificates.rotation import Report


class TlsReports:
    """Of one controller; it is empty in one that stands by."""

    def __init__(self) -> None:
        self._known: dict[BrokerId, tuple[int, Report]] = {}

    def heard(self, stream_id: int, broker_id: BrokerId, beat: pb.Heartbeat) -> None:
        """A broker may be heard on two streams while one replaces the other: the newer counts."""
        newest = self._known.get(broker_id)
        if beat.HasField("tls") and (newest is None or newest[0] <= stream_id):
            said = beat.tls
            report = Report(frozenset(said.trusted_cas), said.own_ca, ends_s=said.own_ends_s)
            self._known[broker_id] = (stream_id, report)

    def gone(self, stream_id: int) -> None:
        """The stream ended; what another one says stays."""
        self._known = {one: found for one, found in self._known.items() if found[0] != stream_id}

    def newest(self) -> Mapping[BrokerId, Report]:
        """By broker."""
        return {broker_id: report for broker_id, (_, report) in self._known.items()}
