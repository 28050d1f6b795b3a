"""Bugs put into the operator's pure plans, and the planner's: the tests of the plans find them.

Each is a change of the text, as in the simulator (`penstock_sim.planting`), which has those of
brokers, controllers and the operator's epochs. A test that holds without the bug must fail with it,
in the line that is about its harm. Properties play up to 500 examples for that, always the same
ones; what no property draws, or too rarely, is up to a single test.

Of what the design names, two are not here: what a throttle counts, and bulk in a live window, are
no plans but streams between brokers.
"""

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings

from penstock.core.balance.improve import Improving
from penstock.core.control import documents, isr
from penstock.core.control.documents import FORMAT_NEWEST
from penstock.core.types import ControllerEpoch
from penstock_operator import proofs, volumes
from penstock_operator.move_model import MoveFacts
from penstock_operator.plan import claims, pinning, roll_groups, scale
from penstock_operator.plan import volumes as plan_of_volumes
from penstock_operator.proofs import Proofs
from penstock_sim.planted_moving import in_function
from penstock_sim.planted_shells import all_of, in_text

HERE: Final = Path(__file__).parent
BALANCE: Final = HERE.parent / "penstock/core/balance"
CONTROL: Final = HERE.parent / "penstock/core/control"
EXAMPLES_MAX: Final = 500
SAME: Final = settings(
    max_examples=EXAMPLES_MAX,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


@cache
def loaded(file: Path) -> ModuleType:
    """A module of tests, by a name of its own: no test module can import another by its name."""
    spec = util.spec_from_file_location(f"planted_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Bug:
    """`test`, in `file`, fails with it in this line; `given`: to a single test, by its module."""

    plant: Callable[[Any], None]
    file: Path
    test: str
    line: str
    given: Callable[[Any], dict[str, Any]] = lambda _module: {}


def of_the_next_format() -> str:
    """A document that this version could read, and would write back as one of its own."""
    cluster = documents.ClusterDocument(
        cluster_id="id",
        controller_epoch=ControllerEpoch(1),
        metadata_version=1,
        format=FORMAT_NEWEST,
    )
    text = documents.encode_cluster(cluster)
    newer = text.replace(f'"format":{FORMAT_NEWEST}', f'"format":{FORMAT_NEWEST + 1}')
    assert newer != text
    return newer


def trade(patch: Any) -> None:
    """A planner ends with two replicas that change places, which is as good as before."""
    run = Improving.run

    def restless(self: Improving) -> None:
        run(self)
        trade_two(self)

    def trade_two(self: Improving) -> None:
        placed, moving = self.layout.placed, self.layout.moving
        for given_, taken in ((one, two) for one in range(len(placed)) for two in range(one)):
            for source in set(placed[given_]) - set(placed[taken]):
                for target in set(placed[taken]) - set(placed[given_]):
                    free = not moving[given_] and not moving[taken]
                    if free and self._may_swap(given_, taken, source, target):
                        self._swap(given_, taken, source, target)
                        return

    patch.setattr(Improving, "run", restless)


BUGS: Final = {
    "format_is_not_looked_at": Bug(  # 22
        in_function(
            documents._load,
            "if type(seen) is not int or seen not in FORMATS:",
            "if type(seen) is not int:",
        ),
        CONTROL / "test_documents.py",
        "test_unreadable_documents_are_refused_by_name",
        "with pytest.raises(PenstockError",
        lambda _module: {"text": of_the_next_format(), "mention": "but this version reads 1 to 2"},
    ),
    "target_set_is_taken_for_empty": Bug(  # 23
        in_text(
            MoveFacts,
            "needs",
            """
            return any(broker_id in {*one.replicas, *one.target} for one in known) or any(
                broker_id in {*one.replicas, *one.target, *one.adding} for one in self.moving.moves
            )
            """,
            "return any(broker_id in one.replicas for one in (*known, *self.moving.moves))",
        ),
        HERE / "test_drain.py",
        "test_a_broker_is_empty_only_if_all_answers_say_so",
        "it shall get a replica",
    ),
    "a_claim_goes_that_nobody_has_proven_empty": Bug(  # 26
        in_function(
            scale._claim_to_go,
            "if claim is None or not claim.emptied or desired.forget_broker == broker_id:",
            "if claim is None or desired.forget_broker == broker_id:",
        ),
        HERE / "test_claims.py",
        "test_a_volume_of_a_broker_that_was_given_up_by_name_stays",
        "assert (3 in world.claims, world.registered) == (True, {0, 1, 2})",
        lambda _module: {"takes_back": True},
    ),
    "a_broker_comes_back_to_a_claim_that_may_go": Bug(  # 26
        in_function(
            claims.stale_marks,
            "if claim.emptied and (broker_id < wanted or broker_id in runs or retains)",
            "if claim.emptied and (broker_id in runs or retains)",
        ),
        HERE / "test_claims.py",
        "test_a_mark_is_taken_off_before_the_broker_is_used_again",
        "assert marked(plan) == [(3, False)]",
    ),
    "documents_alone_prove_it": Bug(  # 24
        in_function(
            proofs.is_empty,
            "return facts.logs.get(broker_id) == 0 and (closed or",
            "return (closed or",
        ),
        HERE / "test_drain.py",
        "test_a_broker_that_lists_a_log_stays_whatever_the_documents_say",
        'assert "broker 3 has 1 former replicas to delete" in',
    ),
    "proven_with_a_store_that_is_away": Bug(  # 24
        in_function(
            proofs.is_empty,
            "if broker is None or not broker.alive or facts.moving.paused "
            "or facts.names(broker_id):",
            "if broker is None or not broker.alive or facts.names(broker_id):",
        ),
        HERE / "test_drain.py",
        "test_a_broker_is_empty_only_if_all_answers_say_so",
        "paused=True",
    ),
    "one_look_proves_it": Bug(  # 24
        in_text(Proofs, "proven", "if now_s - since_s >= PROOF_S", "if now_s >= since_s"),
        HERE / "test_drain.py",
        "test_a_proof_takes_two_looks_at_the_same_directory",
        'assert proofs.proven({3: "a", 4: "b"}) == frozenset()',
    ),
    "another_directory_is_the_same_broker": Bug(  # 25
        in_text(
            Proofs,
            "proven",
            "self._since = {key: self._since.get(key, now_s) for key in empty.items()}",
            'self._since = {(one, ""): self._since.get((one, ""), now_s) for one in empty}',
        ),
        HERE / "test_drain.py",
        "test_a_proof_takes_two_looks_at_the_same_directory",
        'assert proofs.proven({3: "other", 4: "b"}) == frozenset()',
    ),
    "two_volumes_at_once": Bug(  # 27
        in_function(
            plan_of_volumes._of_others,
            "if down := sorted(wanted - alive - {broker_id}):",
            "if down := sorted(wanted - wanted):",
        ),
        HERE / "test_volumes.py",
        "test_never_two_volumes_and_never_the_last_copy",
        'assert others <= world.alive, "the budget is one"',
    ),
    "a_volume_whose_records_nobody_else_has": Bug(
        all_of(
            in_function(plan_of_volumes._of_others, "if alone:", "if not alone and alone:"),
            in_function(plan_of_volumes._unled, "return tuple(", "return () and tuple("),
        ),
        HERE / "test_volumes.py",
        "test_never_two_volumes_and_never_the_last_copy",
        "assert holders(world, each) - {broker_id}",
    ),
    "two_of_a_partition_restart_together": Bug(  # 28
        in_function(
            roll_groups.sharing, "shared[broker_id] |= held", "shared[broker_id] |= {broker_id}"
        ),
        HERE / "test_roll.py",
        "test_all_go_exactly_once_in_groups_that_share_nothing",
        "assert len(set(group) & set(each.replicas)) <= 1",
    ),
    "unknown_is_taken_for_absent": Bug(  # 31
        in_function(
            plan_of_volumes._stranded, "if seen.state is NodeState.UNKNOWN:", "if not seen.state:"
        ),
        HERE / "test_volumes.py",
        "test_never_two_volumes_and_never_the_last_copy",
        'assert asked_for or state is NodeState.LOST, "what is not known is not absent"',
    ),
    "a_zonal_volume_is_taken_for_a_local_one": Bug(  # 31
        in_function(
            volumes._host,
            'if each["key"] == HOSTNAME and each["operator"] == "In" and len(values) == 1:',
            'if each["operator"] == "In" and len(values) == 1:',
        ),
        HERE / "test_volume_reading.py",
        "test_only_a_volume_of_one_host_goes_with_it",
        "assert only_hostname(body) == node",
        lambda module: {"body": module.volume(module.host("east", key=module.ZONE)), "node": ""},
    ),
    "another_operator_rolls_a_pinned_cluster": Bug(  # 32
        in_function(pinning._says_the_same, "if mode is not desired.mode:", "if mode:"),
        HERE / "test_pinning.py",
        "test_another_operator_changes_no_template_and_restarts_nothing",
        "assert templates(world) == before",
        lambda module: {"spec": next(iter(module.SPECS.values())), "records": True},
    ),
    "two_replicas_are_traded_back_and_forth": Bug(  # 35
        trade,
        BALANCE / "test_properties.py",
        "test_after_a_plan_was_carried_out_nothing_is_left_to_plan",
        "assert again.moves == ()",
    ),
    "an_unmet_completion_refuses_the_shrink_with_it": Bug(  # 36
        in_function(
            isr._alter_one,
            "error = _move_waits(where, why)",
            "return state, _move_waits(where, why)",
        ),
        CONTROL / "test_moves.py",
        "test_what_forbids_the_switch_does_not_keep_a_lagging_member_in_the_isr",
        "assert outcome.state.isr == ids(0, 1)",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_by_the_line_about_its_harm(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS[name]
    module = loaded(bug.file)
    test = getattr(module, bug.test)
    if hasattr(test, "hypothesis"):
        test = played_again(test.hypothesis)
    bug.plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)) as found:
        test(**bug.given(module))
    frames = traceback.extract_tb(found.value.__traceback__)
    lines = [frame.line or "" for frame in frames if frame.filename == str(bug.file)]
    assert any(bug.line in line for line in lines), lines


def played_again(found: Any) -> Callable[..., None]:
    """A property with our settings in place of its own: `found` is what Hypothesis knows of it."""

    def play(**drawn: Any) -> None:
        found.inner_test(**drawn)

    return SAME(given(**found._given_kwargs)(play))
