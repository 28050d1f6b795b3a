"""Rules in manifests of a secured local cluster: who is named gets in, who is removed is out.

Attack 17, of groups: whoever the manifest does not name neither joins a group nor resets it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.local import MANIFEST
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer
from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.core.manifest import ManifestError
from penstock.core.quotas import Limit, QuotaRule
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.manifest_file import parse_text
from penstock_broker.local.security import LocalSecurity, write_token

ADA = "serviceaccount:local/ada"
FLIGHTS = Resource(Kind.TOPIC, "flights")
BARE = MANIFEST % {"brokers": 1, "partitions": 2, "more": ""}


def with_access(access: str) -> str:
    """The manifest, with this `access` of its topic."""
    return BARE.replace("config:", f"access: {access}, config:")


LET_IN = with_access(f'[{{principals: ["{ADA}"], operations: [Read, Write]}}]')


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secure")
    file = folder / "cluster.yaml"
    file.write_text(BARE)
    options = LocalOptions(secure=True)
    with LocalCluster.from_manifest(file, data_dir=folder / "d", options=options) as cluster:
        yield cluster


@pytest.fixture
def ada(secure: LocalCluster, tmp_path: Path) -> dict[str, Any]:
    """What a client of hers shows."""
    token = LocalSecurity(secure.directory, secure.cluster.name).token("ada", 600)
    write_token(tmp_path / "ada.token", token)
    return {**secure.directory.client_files, "token_file": str(tmp_path / "ada.token")}


def as_admin(secure: LocalCluster) -> dict[str, Any]:
    """What a client of the administrator's shows."""
    return {**secure.directory.client_files}


def apply(secure: LocalCluster, text: str) -> list[str]:
    return secure.apply(parse_text(text, "cluster.yaml"))


def refusal(secure: LocalCluster, shown: dict[str, Any]) -> ErrorCode | None:
    """Why she cannot write; None: she can."""
    try:
        with Producer(secure.bootstrap, unknown_topic_timeout_ms=1_000, **shown) as producer:
            producer.send("flights", b"hers").result(150)
    except PenstockError as error:
        return error.code
    return None


def stored(secure: LocalCluster) -> tuple[Rule, ...]:
    with Admin(secure.bootstrap, **as_admin(secure)) as admin:
        return admin.describe_access([FLIGHTS])[FLIGHTS]


def test_a_rule_lets_her_in_and_without_it_she_is_out(
    secure: LocalCluster, ada: dict[str, Any]
) -> None:
    assert refusal(secure, ada) is not None
    assert apply(secure, LET_IN) == [
        f"topic flights: access: allows {ADA} Read, allows {ADA} Write"
    ]
    wait_until(lambda: refusal(secure, ada) is None, what="the rule has reached the broker")
    assert apply(secure, LET_IN) == [], "nothing differs"
    assert apply(secure, BARE) == [], "rules that are not managed stay"
    assert refusal(secure, ada) is None
    assert apply(secure, with_access("[]")) == [
        f"topic flights: access: no longer allows {ADA} Read, no longer allows {ADA} Write"
    ]
    wait_until(lambda: refusal(secure, ada) is not None, what="she is out")


def test_rules_set_by_hand_are_reset_only_where_the_manifest_has_rules(
    secure: LocalCluster,
) -> None:
    everybody = Rule(principals=("*",), operations=(Operation.DELETE,))
    with Admin(secure.bootstrap, **as_admin(secure)) as admin:
        admin.alter_access(FLIGHTS, [everybody])
    assert apply(secure, BARE) == []
    assert stored(secure) == (everybody,)
    apply(secure, LET_IN)
    assert [rule.principals for rule in stored(secure)] == [(ADA,)]


def test_a_manifest_that_is_impossible_changes_no_rule(secure: LocalCluster) -> None:
    apply(secure, LET_IN)
    before = stored(secure)
    fewer = BARE.replace("partitions: 2", "access: [], partitions: 1")
    with pytest.raises(ManifestError):
        apply(secure, fewer)
    assert stored(secure) == before


def test_rules_of_the_cluster_let_her_in_as_well(secure: LocalCluster, ada: dict[str, Any]) -> None:
    rule = f'[{{principals: ["{ADA}"], topicPrefix: "fl", operations: [Write]}}]'
    apply(secure, with_access("[]"))
    wait_until(lambda: refusal(secure, ada) is not None, what="she is out")
    given = BARE.replace("brokers: 1", f"brokers: 1\n  access: {rule}", 1)
    assert apply(secure, given) == [f"the cluster: access: allows {ADA} Write on topics fl*"]
    wait_until(lambda: refusal(secure, ada) is None, what="the rule has reached the broker")
    assert apply(secure, BARE) == [], "rules that are not managed stay"
    taken = BARE.replace("brokers: 1", "brokers: 1\n  access: []", 1)
    assert apply(secure, taken) == [
        f"the cluster: access: no longer allows {ADA} Write on topics fl*"
    ]
    wait_until(lambda: refusal(secure, ada) is not None, what="she is out again")


def test_quotas_of_the_manifest_replace_those_set_by_hand(secure: LocalCluster) -> None:
    def with_quotas(quotas: str) -> str:
        return BARE.replace("brokers: 1", f"brokers: 1\n  quotas: {quotas}", 1)

    def stored_quotas() -> tuple[QuotaRule, ...]:
        with Admin(secure.bootstrap, **as_admin(secure)) as admin:
            return admin.describe_quotas()

    given = with_quotas(f'[{{principals: ["{ADA}"], produceBytesPerSecond: 10Mi}}]')
    hers = QuotaRule((ADA,), {Limit.PRODUCE: 10 * 1024**2})
    by_hand = QuotaRule(("*",), {Limit.STREAMS: 7})
    assert apply(secure, given) == [
        f"the cluster: quotas: {ADA} has produceBytesPerSecond=10485760"
    ]
    assert apply(secure, given) == [], "nothing differs"
    with Admin(secure.bootstrap, **as_admin(secure)) as admin:
        admin.alter_quotas([by_hand])
    assert apply(secure, BARE) == []
    assert stored_quotas() == (by_hand,), "quotas that are not managed stay"
    apply(secure, given)
    assert stored_quotas() == (hers,)
    impossible = given.replace("partitions: 2", "partitions: 1").replace("10Mi", "20Mi")
    with pytest.raises(ManifestError):
        apply(secure, impossible)
    assert stored_quotas() == (hers,), "nothing is half done"
    assert apply(secure, with_quotas("[]")) == [f"the cluster: quotas: {ADA} has none any longer"]
    assert stored_quotas() == ()


# ── Groups ────────────────────────────────────────────────────────────────────────────────

TILLS = Resource(Kind.GROUP, "tills")
FIRST = TopicPartition("flights", 0)
READS = f'[{{principals: ["{ADA}"], operations: [Read]}}]'
GROUP = """
---
apiVersion: penstock.dev/v1alpha1
kind: ConsumerGroup
metadata: {name: till-readers}
spec: {cluster: test, groupId: tills%s}
"""


def with_group(access: str = "") -> str:
    """She may read the topic; `access` is that of the group, empty = not managed."""
    return LET_IN + GROUP % (f", access: {access}" if access else "")


def join_refusal(secure: LocalCluster, shown: dict[str, Any]) -> ErrorCode | None:
    """Why she cannot be a member who commits; None: she can."""
    options: dict[str, Any] = {"group_id": "tills", "auto_offset_reset": "earliest", **shown}
    try:
        with Consumer(secure.bootstrap, **options) as consumer:
            consumer.subscribe(["flights"])
            wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), what="she is a member")
            consumer.commit()
    except PenstockError as error:
        return error.code
    return None


def reset_refusal(secure: LocalCluster, shown: dict[str, Any]) -> ErrorCode | None:
    """Why she cannot move the group's offsets; None: she can."""
    with Admin(secure.bootstrap, **shown) as admin:
        try:
            admin.reset_offsets("tills", {FIRST: 0})
        except PenstockError as error:
            return error.code
    return None


def test_17_who_is_not_named_neither_joins_a_group_nor_resets_it(
    secure: LocalCluster, ada: dict[str, Any]
) -> None:
    apply(secure, with_group("[]"))
    wait_until(lambda: refusal(secure, ada) is None, what="she may write the topic")
    assert join_refusal(secure, ada) is ErrorCode.PERMISSION_DENIED
    assert reset_refusal(secure, ada) is ErrorCode.PERMISSION_DENIED
    assert apply(secure, with_group(READS)) == [f"group tills: access: allows {ADA} Read"]
    wait_until(lambda: join_refusal(secure, ada) is None, what="the rule has reached the broker")
    assert reset_refusal(secure, ada) is ErrorCode.PERMISSION_DENIED, "a reader resets nothing"
    assert apply(secure, with_group()) == [], "rules that are not managed stay"
    assert join_refusal(secure, ada) is None
    both = READS.replace("[Read]", "[Read, Reset]")
    assert apply(secure, with_group(both)) == [f"group tills: access: allows {ADA} Reset"]
    wait_until(lambda: reset_refusal(secure, ada) is None, what="she may reset")
    assert apply(secure, with_group("[]")) == [
        f"group tills: access: no longer allows {ADA} Read, no longer allows {ADA} Reset"
    ]
    wait_until(lambda: join_refusal(secure, ada) is not None, what="she is out")
    assert reset_refusal(secure, ada) is ErrorCode.PERMISSION_DENIED


def test_a_groups_rules_are_applied_without_any_topic(secure: LocalCluster) -> None:
    cluster = BARE.split("---")[0]
    assert apply(secure, cluster + GROUP % f", access: {READS}") == [
        f"group tills: access: allows {ADA} Read"
    ]
    with Admin(secure.bootstrap, **as_admin(secure)) as admin:
        assert [rule.principals for rule in admin.describe_access([TILLS])[TILLS]] == [(ADA,)]
    apply(secure, with_group("[]"))
