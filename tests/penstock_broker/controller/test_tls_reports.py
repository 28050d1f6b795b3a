"""What brokers say that their TLS uses: the newest of each, while it has a session."""

from penstock.core.types import BrokerId
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.certificates.rotation import Report
from penstock_broker.controller.tls_reports import TlsReports

ONE = BrokerId(1)


def beat(*trusted: str) -> pb.Heartbeat:
    return pb.Heartbeat(tls=pb.TlsReport(trusted_cas=trusted, own_ca="x", own_ends_s=7))


def test_of_two_streams_of_a_broker_the_newer_counts() -> None:
    reports = TlsReports()
    reports.heard(1, ONE, beat("old"))
    reports.heard(2, ONE, beat("old", "new"))
    reports.heard(1, ONE, beat("old"))
    assert reports.newest() == {ONE: Report(frozenset({"old", "new"}), "x", ends_s=7)}
    reports.gone(1)
    assert set(reports.newest()) == {ONE}


def test_who_has_no_session_or_says_nothing_has_no_report() -> None:
    reports = TlsReports()
    reports.heard(1, ONE, beat("old"))
    reports.gone(1)
    reports.heard(2, ONE, pb.Heartbeat())  # of an older image, or without TLS
    assert reports.newest() == {}
