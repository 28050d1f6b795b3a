"""The status: what it says, that it is stable, and that the CRD keeps every field of it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.operator_world import World, advance, copying, desired, settled

from penstock.certificates import new_authority
from penstock.client import Cordon
from penstock.core.manifest.client_certificates import ClientCertificates
from penstock.core.manifest.objects import SecurityMode
from penstock.core.manifest.upkeep import BalanceMode
from penstock.core.types import TopicPartition
from penstock.kubernetes.certificate_ends import CertificateEnd
from penstock_operator.conditions import conditions
from penstock_operator.model import PartitionState, Plan, Severity, Wait
from penstock_operator.move_model import MoveFacts
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.security import users_ca_problem
from penstock_operator.plan import plan_cluster
from penstock_operator.status import cluster_status

ROOT = Path(__file__).parents[2]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
WISH = desired()
CLUSTERS_CA, _ = new_authority("flights")


def schema() -> dict[str, Any]:
    crd = yaml.safe_load((ROOT / "crds/clusters.yaml").read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return dict(found["properties"]["status"])


def unknown(value: Any, shape: dict[str, Any], where: str = "status") -> list[str]:
    """Paths of `value` that the API server would drop; each would be written again and again."""
    if isinstance(value, dict):
        known = shape.get("properties", {})
        paths = [f"{where}.{key}" for key in value if key not in known]
        for key in value.keys() & known.keys():
            paths += unknown(value[key], known[key], f"{where}.{key}")
        return paths
    if isinstance(value, list):
        return [path for each in value for path in unknown(each, shape["items"], f"{where}[]")]
    return []


def ready_status(before: dict[str, Any] | None = None, now: str = NOW) -> dict[str, Any]:
    observed = settled(WISH).observed()
    return cluster_status(WISH, observed, plan_cluster(WISH, observed), before or {}, now)


def test_the_crd_keeps_every_field_of_the_status() -> None:
    assert unknown(ready_status(), schema()) == []


def test_a_cluster_says_that_it_is_protected_once_it_was() -> None:
    assert "protected" not in ready_status(), "a new operator must not write every status"
    spec = replace(WISH.spec, config={"deletion.protection": "true"})
    wish, observed = replace(WISH, spec=spec), settled(WISH).observed()
    shown = cluster_status(wish, observed, Plan(), {}, NOW)
    assert shown["protected"] is True
    assert unknown(shown, schema()) == []
    assert ready_status(shown)["protected"] is False


def test_a_broker_that_is_cordoned_says_from_what_and_by_whom() -> None:
    world = settled(WISH)

    def rows(before: dict[str, Any], **blind: Any) -> tuple[dict[str, Any], list[Any]]:
        seen = replace(world.observed(), **blind)
        status = cluster_status(WISH, seen, Plan(), before, NOW)
        return status, [each.get("cordoned") for each in status["brokerStatuses"]]

    never, cordoned = rows({})
    assert cordoned == [None, None, None]
    assert not any("cordoned" in each for each in never["brokerStatuses"]), "no status is rewritten"
    world.cordons = {1: Cordon(placement=False, leadership=True, why="a bad disk", by="somebody")}
    status, cordoned = rows(never)
    told = {"placement": False, "leadership": True, "by": "somebody", "why": "a bad disk"}
    assert cordoned == [None, told, None]
    assert unknown(status, schema()) == []
    assert rows(status, moves=None) == (status, cordoned), "nobody says that it was lifted"
    world.cordons = {}
    assert rows(status)[1] == [None, None, None]


def rows_of(world: World, before: dict[str, Any], **blind: Any) -> list[dict[str, Any]]:
    """What is said of each broker."""
    seen = replace(world.observed(), **blind)
    status = cluster_status(WISH, seen, plan_cluster(WISH, seen), before, NOW)
    assert unknown(status, schema()) == []
    found: list[dict[str, Any]] = status["brokerStatuses"]
    return found


def test_a_broker_says_which_directory_and_which_release_it_is_registered_with() -> None:
    world = settled(WISH)
    world.versions = {1: "2", 2: ""}
    rows = rows_of(world, {})
    assert [row["directoryId"] for row in rows] == ["directory-0", "directory-1", "directory-2"]
    assert [row.get("version") for row in rows] == ["1", "2", None]
    assert rows_of(world, {"brokerStatuses": rows}, moves=None) == rows
    world.versions, world.registered = {1: ""}, {0, 1}
    rows = rows_of(world, {"brokerStatuses": rows})
    assert [row.get("version") for row in rows] == ["1", "2", None], "it has not registered since"
    assert "directoryId" not in rows[2]


def test_a_broker_says_how_many_of_its_replicas_are_damaged_if_any_are() -> None:
    world = settled(WISH)
    assert not any("damaged" in row for row in rows_of(world, {}))
    world.damaged = {TopicPartition("t", 0): {1, 2}, TopicPartition("t", 3): {1}}
    rows = rows_of(world, {})
    assert [row.get("damaged") for row in rows] == [None, 2, 1]
    assert rows_of(world, {"brokerStatuses": rows}, moves=None) == rows, "nobody says"
    world.damaged = {}
    assert not any("damaged" in row for row in rows_of(world, {"brokerStatuses": rows}))


def test_what_replicas_take_is_told_while_partitions_move_and_never_at_rest() -> None:
    world = settled(WISH, partitions=2)

    def sized(mebibytes: int) -> MoveFacts:
        moves = world.moves()
        assert moves.seen is not None
        parts = tuple(
            replace(one, size_bytes=(mebibytes << 20) * (1 + at))
            for at, one in enumerate(moves.seen.facts.partitions)
        )
        facts = replace(moves.seen.facts, partitions=parts)
        return replace(moves, seen=replace(moves.seen, facts=facts))

    rest = rows_of(world, {}, moves=sized(7))
    assert not any("bytes" in row for row in rest)
    assert rows_of(world, {"brokerStatuses": rest}, moves=sized(8)) == rest, "nothing is written"
    world.partitions[1] = replace(world.partitions[1], replicas=(1, 2), isr=(1, 2))
    world.targets = {TopicPartition("t", 1): (0, 2)}
    rows = rows_of(world, {}, moves=sized(7))
    assert [row["bytes"] >> 20 for row in rows] == [7, 21, 21]
    assert rows_of(world, {"brokerStatuses": rows}, moves=None) == rows
    unasked = replace(sized(7), seen=None)
    assert not any("bytes" in row for row in rows_of(world, {}, moves=unasked))


def test_a_broker_that_is_emptied_says_what_is_left_on_it() -> None:
    world = settled(desired(4), partitions=4)
    seen = world.observed()
    plan = plan_cluster(WISH, seen)
    assert plan.drains
    rows = cluster_status(WISH, seen, plan, {}, NOW)["brokerStatuses"]
    assert [row["bytes"] for row in rows] == [0, 0, 0, 0], "before anything moves, too"


def test_a_ready_cluster_says_so_to_kstatus() -> None:
    status = ready_status()
    shown = {each["type"]: each["status"] for each in status["conditions"]}
    assert shown == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Secured": "False",
    }
    assert status["phase"] == "Ready"
    assert status["message"] == ""
    assert status["brokers"]["ready"] == status["brokers"]["registered"] == 3


def test_a_cluster_that_asks_nobody_says_so_and_a_strict_one_does_not() -> None:
    (open_,) = [each for each in ready_status()["conditions"] if each["type"] == "Secured"]
    assert open_["reason"] == "SecurityDisabled"
    strict = desired(spec_security=SecurityMode.STRICT)
    status = cluster_status(strict, settled(strict).observed(), Plan(), {}, NOW)
    (secured,) = [each for each in status["conditions"] if each["type"] == "Secured"]
    assert (secured["status"], secured["reason"]) == ("True", "Strict")


@pytest.mark.parametrize(
    ("config_map", "said"),
    [
        (None, "ConfigMap people is missing: nobody gets in by certificate; make it: kubectl"),
        ({"data": {"ca.pem": "x"}}, "has no key ca.crt"),
        ({"data": {"ca.crt": "x"}}, "holds no PEM certificate"),
        ({"data": {"ca.crt": CLUSTERS_CA.decode()}}, "is the CA of the cluster's servers"),
    ],
)
def test_a_users_ca_that_brokers_cannot_use_is_shown_with_the_way_out(
    config_map: dict[str, Any] | None, said: str
) -> None:
    """It is not less secured, and nothing waits for it."""
    given = ClientCertificates("people")
    wish = desired(spec_security=SecurityMode.STRICT, spec_client_certificates=given)
    problem = users_ca_problem(wish, config_map, CLUSTERS_CA.decode())
    observed = replace(settled(wish).observed(), users_ca_problem=problem)
    status = cluster_status(wish, observed, Plan(), {}, NOW)
    (secured,) = [each for each in status["conditions"] if each["type"] == "Secured"]
    assert (secured["status"], secured["reason"]) == ("True", "UsersCaNotUsed")
    assert said in secured["message"]


def test_a_users_ca_that_brokers_can_use_is_no_problem() -> None:
    users, _ = new_authority("users")
    found = {"data": {"ca.crt": users.decode()}}
    wish = desired(
        spec_security=SecurityMode.STRICT, spec_client_certificates=ClientCertificates("people")
    )
    for trust in (CLUSTERS_CA.decode(), ""):
        assert users_ca_problem(wish, found, trust) == ""
    assert users_ca_problem(desired(spec_security=SecurityMode.STRICT), None, "") == ""


def test_the_same_state_is_the_same_status_whenever_it_is_looked_at() -> None:
    first = ready_status()
    assert ready_status(first, LATER) == first


def test_a_condition_says_since_when() -> None:
    wait = Wait("CatchingUp", "replicas are catching up: t-0")
    before = conditions(wait, [wait], 1, (), NOW)
    more = Wait("CatchingUp", "replicas are catching up: t-1")
    after = conditions(more, [more], 1, before, LATER)
    assert [each["lastTransitionTime"] for each in after] == [NOW] * 3
    done = conditions(None, [], 1, after, LATER)
    assert done[0]["status"] == "True"
    assert done[0]["lastTransitionTime"] == LATER


@pytest.mark.parametrize(
    ("waits", "phase"),
    [
        ((Wait("Rolling", "one of three"),), "Rolling"),
        ((Wait("DrainBlocked", "no", Severity.BLOCKED),), "Blocked"),
        ((Wait("CatchingUp", "t-0"),), "Settling"),
    ],
)
def test_the_phase_is_one_word_for_what_goes_on(waits: tuple[Wait, ...], phase: str) -> None:
    observed = settled(WISH).observed()
    status = cluster_status(WISH, observed, Plan(waits=waits), {}, NOW)
    assert status["phase"] == phase
    assert phase in schema()["properties"]["phase"]["description"]
    assert status["message"] == waits[0].message
    ready = status["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("True", "Usable"), "it serves all the while"
    assert "Stalled" in ready["message"]


def test_kubectl_get_shows_what_a_cluster_that_serves_waits_for() -> None:
    crd = yaml.safe_load((ROOT / "crds/clusters.yaml").read_text())
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    (path,) = (each["jsonPath"] for each in columns if each["name"] == "Message")
    blocked = Plan(waits=(Wait("DrainBlocked", "broker 0 has no room", Severity.BLOCKED),))
    status = cluster_status(WISH, settled(WISH).observed(), blocked, {}, NOW)
    assert status[path.removeprefix(".status.")] == "broker 0 has no room"
    assert ready_status()[path.removeprefix(".status.")] == "", "there is nothing to wait for"


def test_nothing_is_settled_in_the_pass_that_applies_a_new_template() -> None:
    """The roll that the template asks for is planned in the next one."""
    observed, newer = settled(WISH).observed(), desired(image="penstock-broker:2")
    plan = plan_cluster(newer, observed)
    assert plan.actions
    status = cluster_status(newer, observed, plan, {}, NOW)
    shown = {each["type"] for each in status["conditions"] if each["status"] == "True"}
    assert shown == {"Ready", "Reconciling"}


def test_while_no_broker_answers_the_last_numbers_stay() -> None:
    world = settled(WISH)
    before = ready_status()
    world.reachable = False
    observed = world.observed()
    status = cluster_status(WISH, observed, plan_cluster(WISH, observed), before, NOW)
    assert status["partitions"] == before["partitions"] == 6
    assert status["conditions"][0]["status"] == "False"


def secured_by(trust: str, now: str = NOW) -> tuple[str, dict[str, Any]]:
    """When the CA ends, and the condition."""
    strict = desired(spec_security=SecurityMode.STRICT)
    observed = replace(settled(strict).observed(), trust=trust)
    status = cluster_status(strict, observed, Plan(), {}, now)
    assert unknown(status, schema()) == []
    (secured,) = [each for each in status["conditions"] if each["type"] == "Secured"]
    return status["authorityExpires"], secured


def test_a_ca_that_ends_within_90_days_is_warned_of() -> None:
    begins = datetime(2025, 1, 1, 12, 5, tzinfo=UTC)  # backdated by five minutes
    old, _ = new_authority("old", now=begins, days=400)
    new, _ = new_authority("new", now=begins)
    expires, early = secured_by(old.decode(), "2025-11-07T11:59:59Z")
    assert expires == "2026-02-05T12:00:00Z"
    assert early["reason"] == "Strict"
    expires, late = secured_by((new + old).decode(), "2025-11-07T12:00:01Z")
    assert expires == "2026-02-05T12:00:00Z", "of several the first to end"
    assert (late["status"], late["reason"]) == ("True", "AuthorityEnds")
    assert "ends at 2026-02-05T12:00:00Z" in late["message"]


def test_the_first_certificate_to_end_is_shown_and_warned_of_when_it_was_not_renewed() -> None:
    strict = desired(spec_security=SecurityMode.STRICT)
    ends = {
        "controller a": CertificateEnd(int(datetime(2026, 2, 1, tzinfo=UTC).timestamp())),
        "broker 1": CertificateEnd(int(datetime(2026, 1, 20, 12, tzinfo=UTC).timestamp())),
    }
    observed = replace(settled(strict).observed(), certificate_ends=ends)

    def seen(now: str) -> tuple[dict[str, Any], dict[str, Any]]:
        status = cluster_status(strict, observed, Plan(), {}, now)
        assert unknown(status, schema()) == []
        (secured,) = [each for each in status["conditions"] if each["type"] == "Secured"]
        return status["certificates"], secured

    shown, early = seen("2026-01-13T12:00:00Z")
    assert shown == {"expires": "2026-01-20T12:00:00Z", "server": "broker 1"}
    assert early["reason"] == "Strict"
    _, late = seen("2026-01-13T12:00:01Z")
    assert (late["status"], late["reason"]) == ("True", "ServerCertificateEnds")
    assert "certificate of broker 1 ends at 2026-01-20T12:00:00Z" in late["message"]


def test_without_tls_there_is_no_row_of_certificates_unless_there_was_one() -> None:
    before = ready_status()
    assert "certificates" not in before
    observed = settled(WISH).observed()
    plan = plan_cluster(WISH, observed)
    was = before | {"certificates": {"expires": "2026-01-20T12:00:00Z", "server": "broker 1"}}
    status = cluster_status(WISH, observed, plan, was, NOW)
    assert status["certificates"] == {"expires": "", "server": ""}


@pytest.mark.parametrize("trust", ["", "what somebody wrote there"])
def test_a_ca_that_cannot_be_read_ends_at_no_known_time(trust: str) -> None:
    expires, secured = secured_by(trust)
    assert (expires, secured["reason"]) == ("", "Strict")


def test_a_cluster_without_tls_has_no_ca() -> None:
    assert ready_status()["authorityExpires"] == ""


# ── Moves ─────────────────────────────────────────────────────────────────────────────────

T0 = TopicPartition("t", 0)


def shown_of(
    wish: DesiredCluster, world: World, before: dict[str, Any] | None = None, now: str = NOW
) -> dict[str, Any]:
    observed = world.observed()
    shown = cluster_status(wish, observed, plan_cluster(wish, observed), before or {}, now)
    assert unknown(shown, schema()) == []
    return shown


def test_a_cluster_in_which_nothing_ever_moved_says_nothing_of_moves() -> None:
    assert not {"moves", "plan", "drains"} & ready_status().keys()


def test_brokers_that_are_emptied_are_shown_from_the_first_pass_to_the_last() -> None:
    world, wish = settled(desired(brokers=4), partitions=4), desired(brokers=3)
    first = shown_of(wish, world)
    assert first["drains"] == [{"broker": 3, "state": "Waiting", "replicas": 3, "since": NOW}]
    advance(world, wish)
    states = []
    shown = first
    for _ in range(300):
        shown = shown_of(wish, world, shown, LATER)
        states += [row["state"] for row in shown["drains"]]
        assert all(row["since"] == NOW for row in shown["drains"])
        if advance(world, wish).is_idle:
            break
    assert states[0] == "Draining"
    assert {"Draining", "Proving", "Stopping"} <= set(states)
    assert shown_of(wish, world, shown)["drains"] == []


def test_what_is_left_of_a_drain_is_shown_if_it_is_known() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.partitions = [PartitionState("t", 0, 3, (3, 0), (3, 0), 1)]
    observed = world.observed()
    assert observed.moves is not None
    assert observed.moves.seen is not None
    (part,) = observed.moves.seen.facts.partitions
    facts = replace(observed.moves.seen.facts, partitions=(replace(part, size_bytes=700),))
    moves = replace(observed.moves, seen=replace(observed.moves.seen, facts=facts))
    observed = replace(observed, moves=moves)
    wish = desired(brokers=3)
    shown = cluster_status(wish, observed, plan_cluster(wish, observed), {}, NOW)
    (row,) = shown["drains"]
    assert (row["bytesLeft"], row["bytesTotal"], row.get("eta")) == (700, 700, None)
    begun = {"drains": [{**row, "bytesTotal": 9_000}]}
    (later,) = cluster_status(wish, observed, plan_cluster(wish, observed), begun, LATER)["drains"]
    assert (later["bytesLeft"], later["bytesTotal"]) == (700, 9_000), "what it was at first"
    world.targets = {T0: (1, 0)}
    world.copies = {T0: (copying(1, left=600, rate=10),)}
    going = replace(observed, moves=replace(moves, moving=world.moves().moving))
    (row,) = cluster_status(wish, going, plan_cluster(wish, going), {}, NOW)["drains"]
    assert (row["bytesLeft"], row["eta"]) == (600, "2026-01-01T00:02:00Z")


def test_moves_are_counted_and_then_are_none() -> None:
    world = settled(WISH)
    world.targets = {T0: (1, 2, 0)}
    shown = shown_of(WISH, world)
    unknown = dict.fromkeys(("bytesLeft", "bytesPerSecond", "eta"))
    assert shown["moves"] == {"running": 1, "queued": 0, **unknown, "summary": "1 copying"}
    world.copies = {T0: (copying(2, left=3 << 30, rate=40 << 20),)}
    assert shown_of(WISH, world, shown, NOW)["moves"] == {
        "running": 1,
        "queued": 0,
        "bytesLeft": 3 << 30,
        "bytesPerSecond": 40 << 20,
        "eta": "2026-01-01T00:02:00Z",
        "summary": "1 copying, 3 GiB left at 40 MiB/s, about 2 min",
    }
    world.targets = {}
    none = {"running": 0, "queued": 0, **unknown, "summary": None}
    assert shown_of(WISH, world, shown)["moves"] == none
    world.reachable = False
    assert "moves" not in shown_of(WISH, world, shown), "it stays as it was said"


def test_a_copy_rate_is_shown_until_there_is_none() -> None:
    world = settled(WISH)
    world.copy_rate = 40 << 20
    shown = shown_of(WISH, world)
    assert shown["moves"]["copyRate"] == 40 << 20
    world.copy_rate = None
    assert shown_of(WISH, world, shown)["moves"]["copyRate"] is None, "which takes it away"


def test_a_spread_that_could_begin_is_shown_until_it_cannot() -> None:
    world = settled(desired(brokers=3), partitions=12)
    wish = desired(brokers=4, spec_balance_mode=BalanceMode.MANUAL)
    for _ in range(50):
        advance(world, wish)
    shown = shown_of(wish, world)
    assert shown["plan"]["moves"] == 9
    assert shown["plan"]["text"] == "9 partitions move to broker 3"
    assert len(shown["plan"]["id"]) == 16
    world.fresh = set()
    assert shown_of(wish, world, shown)["plan"]["id"] == ""
