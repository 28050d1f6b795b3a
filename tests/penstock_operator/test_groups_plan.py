"""ConsumerGroups: what the plan does in the cases people meet, and its properties.

The world below is a group of data: it carries plans out as `carry.py` does, and dies where told.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import desired

from penstock.core.authorization import Operation, Rule
from penstock.core.types import TopicPartition
from penstock.kubernetes.names import PAUSED
from penstock_operator.groups import View, reset
from penstock_operator.groups.model import (
    CarryOut,
    GroupFacts,
    GroupPlan,
    GroupResource,
    Lag,
    Seen,
    WriteDown,
)
from penstock_operator.groups.plan import owners_of, plan_group
from penstock_operator.model import Severity, Wait
from penstock_operator.names import GROUP_FINALIZER

READY = View(gone=False, desired=desired(), ready=True)
NOW = "2026-01-01T00:00:00Z"
WHERE = TopicPartition("flights", 0)


def body(name: str = "readers", status: Any = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1}
    return {
        "metadata": metadata,
        "spec": {"cluster": "flights", "deletionPolicy": "Retain", **spec},
        "status": status or {},
    }


def facts(members: int = 0, committed: int = 7, **more: Any) -> GroupFacts:
    state = "Stable" if members else "Empty"
    return GroupFacts(state, members, {WHERE: committed}, Lag(3, 1), **more)


def plan(made: dict[str, Any], seen: GroupFacts | None, view: View = READY) -> GroupPlan:
    resource = GroupResource(made)
    return plan_group(resource, view, owners_of([resource]), Seen(seen))


def reasons(made: GroupPlan) -> list[str]:
    return [wait.reason for wait in made.waits]


EARLIEST = {"id": "one", "to": "earliest", "dryRun": False}


def test_a_group_that_is_only_watched_has_nothing_to_do() -> None:
    for members in (0, 3):
        made = plan(body(), facts(members))
        assert (made.acts, made.waits) == (False, ())


def test_a_group_that_does_not_exist_is_awaited() -> None:
    assert reasons(plan(body(), GroupFacts("Dead"))) == ["NoGroup"]


def test_a_reset_names_the_members_it_waits_for() -> None:
    made = plan(body(offsetReset=EARLIEST), facts(3))
    assert made.reset is None
    assert "one must wait while 3 members are active" in made.waits[0].message
    assert made.waits[0].severity is Severity.PROGRESS


def test_a_reset_is_due_once_per_id() -> None:
    due = plan(body(offsetReset=EARLIEST), facts())
    assert isinstance(due.reset, CarryOut)
    done = body(offsetReset=EARLIEST, status={"resetIds": ["zero", "one", "two"]})
    assert not plan(done, facts(last_reset_id="two")).acts, "also when another came after it"
    found = plan(body(offsetReset=EARLIEST), facts(5, last_reset_id="one")).reset
    assert isinstance(found, WriteDown), "although there are members again"
    assert found.record["id"] == "one"


def test_a_dry_run_needs_no_empty_group_and_is_made_again_when_it_asks_for_something_else() -> None:
    dry = {**EARLIEST, "dryRun": True}
    due = plan(body(offsetReset=dry), facts(3)).reset
    assert isinstance(due, CarryOut)
    assert due.reset.dry_run
    shown = {"dryRun": reset.record_of(due.reset, {WHERE: (7, 0)}, NOW)}
    assert not plan(body(offsetReset=dry, status=shown), facts(3)).acts
    other = plan(body(offsetReset={**dry, "to": "latest"}, status=shown), facts(3))
    assert other.reset is not None


def test_a_reset_that_was_changed_after_it_was_carried_out_is_not_ignored_silently() -> None:
    first = plan(body(offsetReset=EARLIEST), facts()).reset
    assert isinstance(first, CarryOut)
    status = reset.done(reset.record_of(first.reset, {WHERE: (7, 0)}, NOW), {})
    changed = plan(body(offsetReset={**EARLIEST, "to": "latest"}, status=status), facts())
    assert not changed.acts
    assert "set a new id" in changed.note
    assert not plan(body(offsetReset=EARLIEST, status=status), facts()).note


@pytest.mark.parametrize(
    ("committed", "reason"), [(None, "BrokersDoNotAnswer"), ({}, "NothingCommitted")]
)
def test_a_reset_of_everything_waits_until_it_is_known_what_that_is(
    committed: Any, reason: str
) -> None:
    seen = GroupFacts("Empty", 0, committed)
    assert reasons(plan(body(offsetReset=EARLIEST), seen)) == [reason]


def test_named_topics_are_reset_for_a_group_that_does_not_exist_yet() -> None:
    made = plan(body(offsetReset={**EARLIEST, "topics": ["flights"]}), GroupFacts("Dead"))
    assert made.reset is not None
    assert made.waits == ()


def test_the_oldest_resource_has_a_group() -> None:
    first, second = body("b"), body("a", groupId="b")
    first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    second["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    both = [GroupResource(first), GroupResource(second)]
    owners = owners_of(both)
    late = plan_group(both[1], READY, owners, Seen(facts()))
    assert reasons(late) == ["NameTaken"]
    assert not reasons(plan_group(both[0], READY, owners, Seen(facts())))
    second["metadata"] |= {"deletionTimestamp": NOW, "finalizers": [GROUP_FINALIZER]}
    second["spec"]["deletionPolicy"] = "Delete"
    going = plan_group(both[1], READY, owners_of(both), Seen(facts()))
    assert (going.delete, going.finalizer) == (False, False), "it is the other one's"


def test_nothing_is_done_while_paused_or_while_nobody_answers() -> None:
    held = body(offsetReset=EARLIEST, deletionPolicy="Delete")
    held["metadata"]["annotations"] = {PAUSED: "true"}
    assert reasons(plan(held, facts())) == ["Paused"]
    assert not plan(held, facts()).acts
    asked = body(offsetReset=EARLIEST)
    silent = plan(asked, None, View(gone=False, problem="no broker is ready yet"))
    assert (silent.acts, reasons(silent)) == (False, ["ClusterNotServing"])
    assert "no broker is ready yet" in silent.waits[0].message
    problem = Seen(problem=Wait("BrokersDoNotAnswer", "no route"))
    told = plan_group(GroupResource(asked), READY, {}, problem)
    assert reasons(told) == ["BrokersDoNotAnswer"]


def test_a_deletion_waits_for_proof_that_nobody_reads() -> None:
    going = body(deletionPolicy="Delete")
    going["metadata"] |= {"deletionTimestamp": NOW, "finalizers": [GROUP_FINALIZER]}
    assert reasons(plan(going, facts(2))) == ["GroupNotEmpty"]
    assert not plan(going, None).acts, "brokers that do not answer prove nothing"
    assert plan(going, facts()).delete
    gone = plan(going, None, View(gone=True))
    assert (gone.delete, gone.finalizer) == (False, False)
    going["spec"]["deletionPolicy"] = "Retain"
    kept = plan(going, facts())
    assert (kept.delete, kept.finalizer) == (False, False)


ACCESS = [{"principals": ["cert:ada"], "operations": ["Reset"]}]
RESETS = Rule(principals=("cert:ada",), operations=(Operation.RESET,))


def test_rules_of_access_wait_for_nothing_but_a_valid_spec_of_the_groups_owner() -> None:
    made = body(access=ACCESS)
    for seen in (None, facts(), facts(3), GroupFacts("Dead")):
        assert plan(made, seen).access == (RESETS,)
    assert plan(body(access=[]), facts()).access == ()
    assert plan(body(), facts()).access is None, "not managed"
    made["metadata"]["annotations"] = {PAUSED: "true"}
    assert plan(made, facts()).access is None
    other = plan_group(
        GroupResource(body(access=ACCESS)), READY, {"readers": "first"}, Seen(facts())
    )
    assert (reasons(other), other.access) == (["NameTaken"], None)


def test_managed_rules_go_with_the_group() -> None:
    going = body(deletionPolicy="Delete", access=ACCESS)
    going["metadata"] |= {"deletionTimestamp": NOW, "finalizers": [GROUP_FINALIZER]}
    assert plan(going, facts(2)).access is None, "not before its members have left"
    for seen in (facts(), GroupFacts("Dead")):
        assert plan(going, seen).access == ()
    del going["spec"]["access"]
    assert plan(going, facts()).access is None, "rules set by hand stay"


# ── Properties ────────────────────────────────────────────────────────────────────────────


@dataclass
class World:
    """A group, its resource, and an operator that may die at any write."""

    body: dict[str, Any] = field(default_factory=body)
    exists: bool = True
    members: int = 0
    committed: int = 7
    last_id: str = ""
    applied: list[str] = field(default_factory=list)
    left: bool = False
    deleted_with_members: bool = False

    def plan(self) -> GroupPlan:
        if not self.exists and not self.members:
            return plan(self.body, GroupFacts("Dead"))
        return plan(self.body, facts(self.members, self.committed, last_reset_id=self.last_id))

    def step(self, dies_after: int = 99) -> GroupPlan:
        """One look of the operator, which writes so many times at most."""
        made = self.plan()
        writes = iter(range(dies_after))

        def alive() -> bool:
            return next(writes, None) is not None

        if made.delete and alive():
            self.deleted_with_members |= self.members > 0
            self.exists, self.last_id = False, ""
        if made.finalizer is not None and alive():
            self.body["metadata"]["finalizers"] = [GROUP_FINALIZER] if made.finalizer else []
        if made.drop_pending and alive():
            self.body["status"]["pendingReset"] = None
        if made.reset is not None:
            self._reset(made, alive)
        return made

    def _reset(self, made: GroupPlan, alive: Any) -> None:
        assert made.reset is not None
        step, status = made.reset, self.body["status"]
        if isinstance(step, WriteDown):
            record = step.record
        else:
            asked = step.reset
            record = reset.record_of(asked, {WHERE: (self.committed, 0)}, NOW)
            if asked.dry_run:
                if alive():
                    status["dryRun"] = record
                return
            if alive():
                status["pendingReset"] = record
            if alive():
                assert not self.members, "refused by the coordinator, too"
                self.exists, self.committed, self.last_id = True, 0, asked.id
                self.applied.append(asked.id)
        if alive():
            status.update(reset.done(record, status))

    def is_settled(self) -> bool:
        made = self.plan()
        finalizers = self.body["metadata"].get("finalizers")
        going = "deletionTimestamp" in self.body["metadata"]
        return not made.acts and (not made.waits or (going and not finalizers))


ASKED = st.tuples(
    st.just("ask"), st.sampled_from("ab"), st.sampled_from([False, False, True]), st.integers(0, 5)
)
EVENTS = st.one_of(
    ASKED,
    ASKED,
    ASKED,
    st.tuples(st.just("members"), st.sampled_from([0, 0, 2])),
    st.tuples(st.just("policy"), st.sampled_from(["Retain", "Delete"])),
    st.tuples(st.just("commit"), st.integers(1, 9)),
    st.tuples(st.just("look"), st.integers(0, 4)),
    st.tuples(st.just("look"), st.just(99)),
    st.tuples(st.just("delete")),
)


def happens(world: World, event: tuple[Any, ...]) -> None:
    match event:
        case ("members", int(count)):
            world.members = count
            world.exists |= count > 0
        case ("ask", str(reset_id), bool(dry), int(writes)):
            asked = {"id": reset_id, "to": "earliest", "dryRun": dry}
            world.body["spec"]["offsetReset"] = asked
            world.step(writes)
        case ("policy", str(policy)):
            world.body["spec"]["deletionPolicy"] = policy
        case ("commit", int(count)):
            world.committed += count
        case ("look", int(writes)):
            world.step(writes)
        case ("delete",):
            if world.body["metadata"].get("finalizers"):  # else the object is gone at once
                world.body["metadata"]["deletionTimestamp"] = NOW


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_it_converges_and_each_reset_happens_once_wherever_the_operator_dies(
    events: list[tuple[Any, ...]],
) -> None:
    world = World()
    for event in events:
        happens(world, event)
    world.members, world.exists = 0, True
    for _ in range(4):
        world.step()
    assert world.is_settled()
    assert len(world.applied) == len(set(world.applied)), "each id is carried out once"
    assert not world.deleted_with_members
    asked = world.body["spec"].get("offsetReset")
    going = "deletionTimestamp" in world.body["metadata"]
    if asked and not asked["dryRun"] and not going:
        assert asked["id"] in world.body["status"]["resetIds"]
        assert world.body["status"]["pendingReset"] is None
    if going:
        assert not world.body["metadata"]["finalizers"]
