"""What the operator is told about its installation, by options and by the chart's variables."""

import pytest

from penstock_operator.main import read_settings
from penstock_operator.objects import Installation

OWN = ["--broker-image=registry:5000/penstock-broker:0.1.0"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER_IMAGE", "ALLOWED_IMAGES", "CONTROLLER_ROLE", "API_SERVER_PORTS"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)


def test_by_default_only_its_own_repository_is_allowed() -> None:
    assert read_settings(OWN).installation == Installation(
        image="registry:5000/penstock-broker:0.1.0",
        allowed_images=("registry:5000/penstock-broker",),
    )


def test_the_chart_tells_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOWED_IMAGES", "mirror/*, other/penstock-broker")
    monkeypatch.setenv("PENSTOCK_CONTROLLER_ROLE", "penstock-operator-x-controllers")
    monkeypatch.setenv("PENSTOCK_API_SERVER_PORTS", "8443,16443")
    monkeypatch.setenv("POD_NAMESPACE", "x")
    monkeypatch.setenv("PENSTOCK_BROKER_PULL_SECRETS", "registry,mirror")
    found = read_settings(OWN).installation
    assert found.pull_secrets == ("registry", "mirror")
    own = "registry:5000/penstock-broker"
    assert found.allowed_images == (own, "mirror/*", "other/penstock-broker")
    assert found.controller_role == "penstock-operator-x-controllers"
    assert found.api_server_ports == (8443, 16443)
    assert found.namespace == "x"


def test_without_policies_of_its_own_the_chart_names_no_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_API_SERVER_PORTS", "")
    assert read_settings(OWN).installation.api_server_ports == ()


@pytest.mark.parametrize("text", ["https", "0", "65536", "443;6443", "-1"])
def test_ports_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings([*OWN, f"--api-server-ports={text}"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert f"--api-server-ports is {text!r}; it must be ports from 1 to 65535" in told
