"""When the operator makes a CA, and another one: each request once, and an old one by itself."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.operator_world import desired, settled

from penstock.certificates import CA_DAYS, new_authority
from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.names import ROTATE_CA
from penstock.kubernetes.rotation import SETTLED, RotationState, rotation_of
from penstock_broker.certificates.authority import Authority, Subject
from penstock_broker.certificates.rotation import Phase
from penstock_operator.model import AuthorityState, MakeAuthority, Observed
from penstock_operator.observe import is_due, is_rotating
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.authority import plan_authority
from penstock_operator.status import cluster_status

WISH = desired(spec_security=SecurityMode.STRICT)
FIRST, SECOND = WISH.names.authorities
NOW = "2026-01-01T00:00:00Z"


def owner(name: str, request: str = "") -> dict[str, Any]:
    annotations = {ROTATE_CA: request} if request else {}
    return {"metadata": {"name": name, "uid": f"uid of {name}", "annotations": annotations}}


def seen(
    *owners: dict[str, Any],
    rotation: RotationState | None = None,
    is_due: bool = False,
    trust: str = "a certificate",
) -> Observed:
    named = {each["metadata"]["name"]: each for each in owners}
    state = AuthorityState(rotation, named, is_due)
    return replace(settled(WISH).observed(), trust=trust, authority=state)


def made(observed: Observed, request: str = "") -> list[str]:
    return [each.secret for each in plan_authority(replace(WISH, rotate_ca=request), observed)]


def test_the_first_ca_is_made_until_one_is_published() -> None:
    assert plan_authority(WISH, seen(trust="")) == (MakeAuthority(FIRST, None),)
    there = owner(FIRST)
    assert plan_authority(WISH, seen(there, trust="")) == (MakeAuthority(FIRST, there),)
    assert made(seen(there)) == []
    assert made(seen(trust=""), "x") == [FIRST], "a new Cluster's CA is for its first request"
    assert plan_authority(desired(), seen(trust="")) == ()


def test_a_trust_that_somebody_deleted_begins_no_rotation() -> None:
    """The first Secret went with the rotation before; controllers publish the trust again."""
    second = owner(SECOND, "one")
    assert made(seen(second, trust=""), "one") == []
    assert made(seen(second, trust=""), "two") == [], "once the trust is there"


def test_each_request_is_done_once_and_the_secrets_take_turns() -> None:
    first = owner(FIRST)
    assert made(seen(first), "one") == [SECOND]
    assert made(seen(first, owner(SECOND, "one")), "one") == [SECOND], "until controllers see it"
    assert made(seen(first, owner(SECOND, "one"))) == [SECOND], "also if the annotation goes"
    at = RotationState("TrustingBoth", "ca", 1.0)
    assert made(seen(first, owner(SECOND, "one"), rotation=at), "one") == []
    done = RotationState(SETTLED, "ca-2", 2.0)
    assert made(seen(owner(SECOND, "one"), rotation=done), "one") == []
    assert made(seen(owner(SECOND, "one"), rotation=done)) == [], "the annotation may be removed"
    assert made(seen(owner(SECOND, "one"), rotation=done), "two") == [FIRST]


def test_a_request_during_a_rotation_waits_until_it_is_over() -> None:
    owners = owner(FIRST), owner(SECOND, "one")
    for phase in [*Phase][1:]:
        state = RotationState(phase.value, "ca", 1.0)
        assert made(seen(*owners, rotation=state), "two") == []
    done = RotationState(Phase.SETTLED.value, "ca-2", 2.0)
    assert made(seen(owners[1], rotation=done), "two") == [FIRST]


def test_an_old_ca_of_ours_is_replaced_by_itself_and_one_of_others_is_not() -> None:
    assert made(seen(owner(FIRST), is_due=True)) == [SECOND]
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    ours = new_authority("flights", now=begins)[0].decode()
    life = timedelta(days=CA_DAYS)
    assert not is_due(ours, begins + life * 0.66)
    assert is_due(ours, begins + life * 0.67)
    assert not is_due(ours + ours, begins + life), "it is being replaced"
    assert not is_due("", begins)
    issued = Authority.new("x", now=begins).issue(Subject(common_name="flights"), now=begins)
    assert not is_due(issued.certificate.decode(), begins + life)


def test_nothing_is_made_while_the_cluster_is_paused() -> None:
    paused = replace(WISH, rotate_ca="one", paused=True)
    assert plan_cluster(paused, seen(owner(FIRST))).actions == ()


@pytest.mark.parametrize("phase", [*Phase][1:])
def test_the_cluster_says_how_far_it_is_and_for_whom_it_waits(phase: Phase) -> None:
    state = RotationState(phase.value, "ca", 1.0, ("broker 1", "broker 2"))
    observed = seen(owner(FIRST), owner(SECOND, "one"), rotation=state)
    shown = rotating(observed, "one", {})
    assert (shown["status"], shown["reason"]) == ("True", phase.value)
    assert shown["message"].endswith("; waits for broker 1, broker 2")
    assert not shown["message"].startswith("goes on"), "every phase has words of its own"


def test_the_condition_is_there_from_the_first_request_on() -> None:
    assert rotating(seen(owner(FIRST)), "", {}) == {}
    asked = rotating(seen(owner(FIRST)), "one", {})
    assert (asked["status"], asked["reason"]) == ("True", "Requested")
    done = seen(owner(SECOND, "one"), rotation=RotationState(SETTLED, "ca-2", 2.0))
    over = rotating(done, "one", {"conditions": [asked]})
    assert (over["status"], over["reason"]) == ("False", "Settled")


def rotating(observed: Observed, request: str, before: dict[str, Any]) -> dict[str, Any]:
    wish = replace(WISH, rotate_ca=request)
    status = cluster_status(wish, observed, plan_cluster(wish, observed), before, NOW)
    found = [each for each in status["conditions"] if each["type"] == "RotatingCA"]
    return dict(found[0]) if found else {}


def test_the_trust_is_read_again_only_while_something_moves() -> None:
    assert not is_rotating(AuthorityState(None, {FIRST: {}}))
    assert not is_rotating(AuthorityState(RotationState(SETTLED, "ca-2", 1.0), {SECOND: {}}))
    assert is_rotating(AuthorityState(RotationState("DroppingOld", "ca", 1.0), {SECOND: {}}))
    assert is_rotating(AuthorityState(None, {FIRST: {}, SECOND: {}}))


def test_the_state_survives_as_text_and_nonsense_is_no_state() -> None:
    state = RotationState("DroppingOld", "ca-2", 1_800_000_000.0, ("broker 1",))
    key = "penstock.dev/ca-rotation"
    assert rotation_of({"metadata": {"annotations": {key: state.text()}}}) == state
    for text in ("", "[]", "{}", '{"phase": 1}', '{"phase": "x", "secret": "y", "since": "z"}'):
        assert rotation_of({"metadata": {"annotations": {key: text}}}) is None
    assert rotation_of({"metadata": {}}) is None
