"""The rotation of a CA, as a pure function: every path, and every server's every lag."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_broker.certificates.rotation import (
    Facts,
    Phase,
    Report,
    Rotation,
    Slot,
    Step,
    decide,
)

OLD, NEW = "old", "new"
BOTH = {Slot.FIRST: OLD, Slot.SECOND: NEW}
FACTS = Facts(now_s=1_000.0, wait_s=60.0, asked=True, authorities=BOTH)
DONE = {
    Phase.TRUSTING: Report(frozenset({OLD, NEW}), OLD),
    Phase.WAITING: Report(frozenset({OLD, NEW}), OLD),
    Phase.RENEWING: Report(frozenset({OLD, NEW}), NEW),
    Phase.DROPPING: Report(frozenset({NEW}), NEW),
    Phase.REMOVING: Report(frozenset({NEW}), NEW, frozenset({NEW})),
}
"""What a server says that has done all that a phase asks for."""
ORDER = [*Phase]


def at(phase: Phase, since_s: float = 0.0) -> Rotation:
    return Rotation(Slot.FIRST, phase, since_s)


def said(*reports: Report | None, **changes: object) -> Facts:
    servers = {f"server {number}": report for number, report in enumerate(reports)}
    return replace(FACTS, servers=servers, **changes)  # type: ignore[arg-type]


def test_a_rotation_goes_through_all_phases_and_ends_in_the_other_slot() -> None:
    rotation, passed = at(Phase.SETTLED), []
    for phase in ORDER[1:]:
        rotation = decide(rotation, said(DONE.get(rotation.phase), wait_s=0.0)).rotation
        assert rotation.phase is phase
        passed.append((rotation.signer, rotation.trusted))
    first, second = Slot.FIRST, Slot.SECOND
    assert passed == [
        (first, (first, second)),
        (first, (first, second)),
        (second, (first, second)),
        (second, (second,)),
        (second, (second,)),
    ]
    last = decide(rotation, said(DONE[Phase.REMOVING], authorities={Slot.SECOND: NEW}))
    assert last == Step(Rotation(Slot.SECOND, Phase.SETTLED, FACTS.now_s))
    assert last.rotation.signer is second
    assert last.rotation.trusted == (second,)


@pytest.mark.parametrize("phase", ORDER[1:])
def test_each_phase_waits_for_each_server(phase: Phase) -> None:
    done = DONE[phase]
    for index in range(3):
        reports: list[Report | None] = [done, done, done]
        for behind in (None, *_worse(phase)):
            reports[index] = behind
            assert decide(at(phase), said(*reports)) == Step(at(phase), (f"server {index}",))


def _worse(phase: Phase) -> list[Report]:
    """Reports of a server that is one step behind, in every way."""
    done = DONE[phase]
    if phase in {Phase.TRUSTING, Phase.WAITING}:
        return [replace(done, trusted=frozenset({one})) for one in (OLD, NEW)]
    if phase is Phase.RENEWING:
        return [replace(done, issuer=one) for one in (OLD, "")] + [
            replace(done, trusted=frozenset({NEW}))
        ]
    if phase is Phase.DROPPING:
        return [replace(done, trusted=frozenset({OLD, NEW})), replace(done, issuer=OLD)]
    return [replace(done, keys=frozenset({OLD, NEW})), replace(done, keys=frozenset({OLD}))]


def test_clients_have_all_the_time_they_were_given() -> None:
    done = DONE[Phase.WAITING]
    early = said(done, now_s=59.9)
    assert decide(at(Phase.WAITING), early).rotation.phase is Phase.WAITING
    assert "clients" in decide(at(Phase.WAITING), early).waits[0]
    late = said(done, now_s=60.0)
    assert decide(at(Phase.WAITING), late) == Step(Rotation(Slot.FIRST, Phase.RENEWING, 60.0))


def test_at_rest_nothing_begins_unless_somebody_asks_and_the_ca_is_there() -> None:
    rest = at(Phase.SETTLED)
    assert decide(rest, replace(FACTS, asked=False)) == Step(rest)
    absent = decide(rest, replace(FACTS, authorities={Slot.FIRST: OLD}))
    assert absent.rotation == rest
    assert absent.waits == ("Secret …-ca-2, which is not there",)
    lost = decide(rest, replace(FACTS, authorities={Slot.SECOND: NEW}))
    assert (lost.rotation, lost.waits) == (rest, ("Secret …-ca, which is not there",))
    in_memory = replace(FACTS, asked=False, unseen=frozenset({Slot.FIRST}))
    assert decide(rest, in_memory) == Step(rest, ("Secret …-ca, which is not there",))
    same = decide(rest, replace(FACTS, authorities={Slot.FIRST: OLD, Slot.SECOND: OLD}))
    assert same.rotation == rest
    assert "has the same" in same.waits[0]


@pytest.mark.parametrize("phase", ORDER[1:])
@pytest.mark.parametrize("gone", ["the request", "the CA"])
def test_a_rotation_is_given_up_until_the_new_ca_signs_and_never_after(
    phase: Phase, gone: str
) -> None:
    lacks = {"asked": False} if gone == "the request" else {"authorities": {Slot.FIRST: OLD}}
    step = decide(at(phase), said(DONE[phase], **lacks))
    if phase in {Phase.TRUSTING, Phase.WAITING}:
        assert step == Step(Rotation(Slot.FIRST, Phase.SETTLED, FACTS.now_s))
    else:
        assert step.rotation.signer is Slot.SECOND


REPORTS = st.builds(
    Report,
    st.frozensets(st.sampled_from([OLD, NEW])),
    st.sampled_from([OLD, NEW, ""]),
    st.frozensets(st.sampled_from([OLD, NEW])),
)


@given(
    st.sampled_from(ORDER),
    st.lists(st.none() | REPORTS, max_size=3),
    st.dictionaries(st.sampled_from(Slot), st.sampled_from([OLD, NEW])),
    st.booleans(),
    st.floats(0, 200),
)
def test_a_step_never_leaves_a_server_alone(
    phase: Phase,
    reports: list[Report | None],
    authorities: dict[Slot, str],
    asked: bool,
    now_s: float,
) -> None:
    """Whatever is known: a new signer, or a CA that is dropped, only when all are ready for it."""
    facts = said(*reports, authorities=authorities, asked=asked, now_s=now_s)
    before = at(phase)
    step = decide(before, facts)
    after = step.rotation
    assert (after == before) or not step.waits
    ids = {authorities.get(slot, "") for slot in Slot}
    if after.signer is not before.signer and after.phase is not Phase.SETTLED:
        assert all(each is not None and ids <= each.trusted for each in reports)
    for dropped in set(before.trusted) - set(after.trusted):
        if after.phase is Phase.SETTLED:  # given up: it has never signed
            assert dropped is not before.signer
        else:
            new = authorities[dropped.other]
            assert all(each is not None and each.issuer == new for each in reports)
    assert after.phase in {phase, Phase.SETTLED, ORDER[(ORDER.index(phase) + 1) % len(ORDER)]}


class Model:
    """Servers that do what the state says, each when it comes to it."""

    def __init__(self, servers: int) -> None:
        self.rotation = at(Phase.SETTLED)
        self.servers = [Report(frozenset({OLD}), OLD, frozenset(BOTH.values()))] * servers

    def decide(self) -> None:
        self.rotation = decide(self.rotation, said(*self.servers, wait_s=0.0)).rotation

    def follow(self, index: int, what: str) -> None:
        """Trusts, or gets a certificate of the CA that signs, or sees which keys are there."""
        server, state = self.servers[index], self.rotation
        signer = BOTH[state.signer]
        if what == "trust":
            server = replace(server, trusted=frozenset(BOTH[slot] for slot in state.trusted))
        elif what == "keys" and state.phase is Phase.REMOVING:
            server = replace(server, keys=frozenset({NEW}))
        elif what == "renew" and signer in server.trusted:
            server = replace(server, issuer=signer)
        self.servers[index] = server

    def restart(self, index: int) -> None:
        """A process that starts reads the newest state."""
        for what in ("trust", "renew", "keys"):
            self.follow(index, what)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["trust", "renew", "keys", "decide", "restart"]), st.integers(0, 2)
        ),
        max_size=60,
    )
)
def test_servers_trust_each_other_in_whatever_order_they_follow(
    events: list[tuple[str, int]],
) -> None:
    """The invariant of the module; and a rotation ends once all have followed."""
    model = Model(3)
    for what, index in events:
        if what == "decide":
            model.decide()
        elif what == "restart":
            model.restart(index)
        else:
            model.follow(index, what)
        for one, other in itertools.product(model.servers, repeat=2):
            assert one.issuer in other.trusted
    began = model.rotation.slot is Slot.SECOND
    for _ in ORDER:
        if model.rotation.slot is Slot.SECOND:
            break
        for index in range(3):
            model.restart(index)
        model.decide()
    assert began or model.rotation.phase is Phase.SETTLED
