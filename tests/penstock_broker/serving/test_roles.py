"""Options that give roles, and the audit log's sums."""

import argparse

import pytest

from penstock.core.authorization import CLUSTER, Kind, Operation
from penstock.errors import ErrorCode, MisuseError
from penstock_broker.serving import roles
from penstock_broker.serving.audit import Denials


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    roles.add_arguments(parser)
    return parser.parse_args(words)


def test_roles_come_from_options_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ADMINS", "serviceaccount:ops/a, cert:b")
    args = parsed("--admin", "cert:ada", "--admin", "cert:b", "--viewer", "oidc-group:i/g")
    assert roles.parse_roles(args) == (
        ("cert:ada", "cert:b", "serviceaccount:ops/a"),
        ("oidc-group:i/g",),
    )
    rules = roles.rulebook(args)
    assert rules.decide("serviceaccount:ops/a", (), Operation.ALTER, CLUSTER).allowed
    assert not rules.decide("cert:x", ("oidc-group:i/g",), Operation.ALTER, CLUSTER).allowed
    assert rules.decide("cert:x", ("oidc-group:i/g",), Operation.DESCRIBE, CLUSTER).allowed


@pytest.mark.parametrize("where", ["--viewer", "$PENSTOCK_VIEWERS"])
def test_what_is_no_principal_is_refused(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    words = [where, "ada"] if where.startswith("-") else []
    if not words:
        monkeypatch.setenv("PENSTOCK_VIEWERS", "ada")
    with pytest.raises(MisuseError) as refused:
        roles.parse_roles(parsed(*words))
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message.startswith(f"{where}: principal 'ada' is not one; write")


async def test_denials_are_summed(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials()
    for _ in range(3):
        denials.note("cert:ada", Operation.READ, Kind.TOPIC)
    for number in range(2_000):
        denials.note(f"cert:{number}", Operation.READ, Kind.TOPIC)
    assert not caplog.records, "not one by one"
    denials.flush()
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields[0] == {
        "principal": "cert:ada",
        "operation": "Read",
        "kind": "topic",
        "count": 3,
    }
    assert len(fields) == 1_001
    assert fields[-1]["principal"] == "others"
    assert sum(each["count"] for each in fields) == 2_003
