"""Options of the port for users' certificates."""

import argparse
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, MisuseError
from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.broker.certified_users import CertifiedUsers, add_arguments, certified_users
from penstock_broker.serving.listener import Listener, address_for_caller, came_to, for_caller


def parsed(*words: str, broker_id: int = 2) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--external-advertise", default="")
    add_arguments(parser)
    args = parser.parse_args(words)
    args.broker_id = broker_id
    return args


PORT = ("--certificate-listen", "0.0.0.0:9100", "--users-ca", "ca.crt")
OUTSIDE = ("--external-advertise", "h:31093", "--external-certificate-port", "31201")


def test_without_options_there_is_no_such_port() -> None:
    assert certified_users(parsed(), secured=False) == CertifiedUsers()


def test_brokers_have_consecutive_ports_outside() -> None:
    found = certified_users(parsed(*PORT, *OUTSIDE), secured=True)
    assert found == CertifiedUsers("0.0.0.0:9100", Path("ca.crt"), 31_203)


def test_variables_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CERTIFICATE_LISTEN", PORT[1])
    monkeypatch.setenv("PENSTOCK_USERS_CA", PORT[3])
    monkeypatch.setenv("PENSTOCK_EXTERNAL_CERTIFICATE_PORT", OUTSIDE[3])
    found = certified_users(parsed(*OUTSIDE[:2]), secured=True)
    assert found == CertifiedUsers("0.0.0.0:9100", Path("ca.crt"), 31_203)


@pytest.mark.parametrize(
    ("words", "secured", "said"),
    [
        (PORT[:2], True, "--certificate-listen and --users-ca go together"),
        (PORT[2:], True, "--certificate-listen and --users-ca go together"),
        (PORT, False, "needs TLS"),
        (("--certificate-listen", "here", *PORT[2:]), True, "must be host:port"),
        (OUTSIDE, True, "needs --certificate-listen"),
        ((*PORT, *OUTSIDE[2:]), True, "needs --external-advertise"),
        ((*PORT, *OUTSIDE[:3], "65534"), True, "must be 1 to 65533"),
        ((*PORT, *OUTSIDE[:3], "many"), True, "is 'many'"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    words: tuple[str, ...], secured: bool, said: str
) -> None:
    with pytest.raises(MisuseError) as raised:
        certified_users(parsed(*words), secured=secured)
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    assert said in raised.value.message


INFO = pb.BrokerInfo(
    host="inside", port=9092, stream_port=9097, external_host="outside", external_port=31_093
)


@pytest.mark.parametrize(
    ("ports", "address"),
    [
        ({"certificate_port": 9100}, ("inside", 9100)),
        ({"certificate_port": 9100, "external_certificate_port": 31_201}, ("outside", 31_201)),
        ({}, ("", 0)),
    ],
    ids=["inside", "outside", "a broker without"],
)
async def test_who_shows_certificates_is_told_where_brokers_take_them(
    ports: dict[str, int], address: tuple[str, int]
) -> None:
    info = pb.BrokerInfo()
    info.CopyFrom(INFO)
    info.MergeFrom(pb.BrokerInfo(**ports))  # type: ignore[arg-type]
    came_to(Listener.CERTIFICATE)  # a test is a task, with a context of its own
    assert address_for_caller(info) == address
    seen = for_caller(info)
    assert (seen.host, seen.port, seen.stream_port) == (*address, 0)
    assert (seen.certificate_port, seen.external_certificate_port) == (0, 0)
