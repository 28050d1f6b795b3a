"""Elects leaders and computes ISRs: pure functions from state to state.

    a broker died, came back, wants to stop ──▶ settle        new leader, smaller ISR
    a broker came back without its data     ──▶ forget        out of ISR and ELR
    the leader proposes an ISR              ──▶ alter_isr     compare-and-swap on the version
    preferred leader, "away from"           ──▶ move_leader   another member of the ISR

The order in which `settle` looks for a leader (in replica order, except in line 6):

    1  ISR, live and staying          holds every committed record by definition;
                                      those that are cordoned for leadership last
    2  the leader itself, if it is leaving: better than no leader
    3  ISR, live but leaving
    4  ELR, live                      holds every committed record (KIP-966)
    5  ISR, live, damaged             cannot serve some of them; only if all of ISR and ELR are
                                      damaged, or unclean.leader.election.enable; then those of
                                      the ELR, if all are damaged, unless line 7 may do better
    6  lossy, live, and ISR and ELR are empty: every holder of the committed records has lost
       unsynced ones; nothing better is left. What was fsynced is there. A damaged one only if all
       lossy ones are damaged, or unclean.leader.election.enable.
    7  any live replica, if unclean.leader.election.enable; a lossy one first, a damaged one last.
       Not while a sound member of ISR or ELR registers or opens its logs: it will lead in a
       moment, and nothing is lost.
    8  none: the partition waits. ISR and ELR do not change: their members still hold
       every committed record; the first that comes back may lead.

Lines 1 to 4 are about replicas that are not damaged. A damaged one holds a seat in ISR or ELR only
while no sound member of them is live (I33): `settle` takes it away as soon as one is. It is not
elected as long as a sound member, or a sound lossy one in line 6, may come back, dead or not: that
one would lose its seat to it if the ISR need not be larger, and records with it. Who leads when its
damage is found goes on.

Nobody but the present leader is elected before it has opened its logs and reported what is wrong
with them (`Liveness.opening`): else who comes back first is elected on trust, and its damage is
found when the seats of the others are gone. Who only copies (`adding`) is no replica, and is never
looked at.

Invariants: I1 (the leader is in the ISR; every change of leader, also to none, takes the next
leader epoch), I7 (lines 1-5 lose nothing; 6 and 7 are reported as such), I33.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.core.control.partition import PartitionDocument
from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch, PartitionState


class ElectionKind(StrEnum):
    """How a new leader was found, in the order of preference."""

    ISR = "isr"
    ELR = "elr"
    LOSSY = "last replica standing, unsynced records may be lost"
    UNCLEAN = "unclean, committed records may be lost"
    NONE = "no replica may lead"


@dataclass(frozen=True, slots=True)
class Liveness:
    """`live`: have a session. `leaving`: those of them that want to stop.

    `cordoned`: shall not lead, if anybody else can. `opening`: have not said yet which of their
    logs are damaged, so they may keep what they have and get nothing. `returning`: have no session
    any more, and are about to have another.
    """

    live: frozenset[BrokerId]
    leaving: frozenset[BrokerId] = frozenset()
    cordoned: frozenset[BrokerId] = frozenset()
    opening: frozenset[BrokerId] = frozenset()
    returning: frozenset[BrokerId] = frozenset()

    @property
    def coming(self) -> frozenset[BrokerId]:
        """Will soon be `opened`, or dead."""
        return (self.live & self.opening) | self.returning

    @property
    def staying(self) -> frozenset[BrokerId]:
        return self.live - self.leaving

    @property
    def opened(self) -> frozenset[BrokerId]:
        return self.live - self.opening


@dataclass(frozen=True, slots=True)
class Settings:
    """The topic settings that elections depend on; `min_isr` <= number of replicas."""

    min_isr: int
    unclean: bool


def new_partition(replicas: tuple[BrokerId, ...], live: Collection[BrokerId]) -> PartitionDocument:
    """A partition that never had a record: its ISR is every live replica, at least one."""
    isr = tuple(broker_id for broker_id in replicas if broker_id in live)
    assert isr, "placement must choose at least one live broker"
    return PartitionDocument(
        PartitionState(
            leader=isr[0], leader_epoch=LeaderEpoch(1), isr=isr, replicas=replicas, version=1
        )
    )


def settle(
    document: PartitionDocument, liveness: Liveness, settings: Settings
) -> tuple[PartitionDocument, ElectionKind | None]:
    """The partition's new state with these brokers alive.

    Returns the same object when nothing changes. The kind is None unless the leader changed;
    `ElectionKind.NONE` when it has none now.
    """
    state, unseated = document.state, _unseated(document, liveness)
    if state.leader in liveness.staying and state.leader not in unseated:
        isr = _stayers(document, state.leader, liveness, unseated)
        return _with_isr(document, isr, settings, unseated), None
    leader, kind = _choose_leader(document, liveness, settings)
    if leader == state.leader:
        if leader == NO_LEADER:
            return document, None
        isr = _stayers(document, leader, liveness, unseated)
        return _with_isr(document, isr, settings, unseated), None
    if kind is ElectionKind.ISR:
        isr = _stayers(document, leader, liveness, unseated)
        moved = _with_isr(document, isr, settings, unseated)
        return settled_with(_with_leader(moved, state, leader), settings), kind
    if kind is ElectionKind.NONE:
        return _with_leader(document, state, NO_LEADER), kind
    if kind is ElectionKind.ELR:
        moved = _with_isr(document, (leader,), settings, unseated)
        return settled_with(_with_leader(moved, state, leader), settings), kind
    # A log that may lack committed records continues: former members must follow it.
    fresh = replace(document, state=replace(state, isr=(leader,)), elr=(), lossy=())
    return _with_leader(fresh, state, leader), kind


def rest(
    document: PartitionDocument, liveness: Liveness, settings: Settings
) -> tuple[PartitionDocument, ElectionKind | None]:
    """As `settle`, in a cluster that hibernates: who stops keeps its seat, and nobody is elected,
    except in place of a damaged leader.

    Leaderships of dead brokers end: their next run is another one, and needs another epoch.
    Damaged members lose their seats as ever, once somebody sound is there (I33). Until then they do
    not lead: the sound ones are asleep, and would lose theirs.
    """
    state, unseated = document.state, _unseated(document, liveness)
    seats = tuple(one for one in state.isr if one not in unseated)
    kept = _with_isr(document, seats, settings, unseated)
    if state.leader == NO_LEADER or state.leader in liveness.live - unseated:
        return kept, None
    leader, kind = NO_LEADER, ElectionKind.NONE
    if state.leader in unseated:
        leader, kind = _choose_leader(document, liveness, settings)
    if leader not in kept.state.isr:
        leader, kind = NO_LEADER, ElectionKind.NONE
    return _with_leader(kept, state, leader), kind


def forget(
    document: PartitionDocument, broker_id: BrokerId, *, same_directory: bool
) -> PartitionDocument:
    """The broker came back and lacks data it had acknowledged: it leaves ISR and ELR.

    `same_directory`: it lost what was not synced (power loss); False: it has nothing at all, so
    that there is nothing to drop or to mend. Call this before `settle`, while the broker does not
    yet count as live. The version of every partition that it holds or copies increases, even
    outside the ISR: an ISR proposal that relies on the broker's earlier data is then stale
    (KIP-903).
    """
    state = document.state
    if not same_directory:
        state = replace(
            state,
            dropping=_without(state.dropping, broker_id),
            damaged=_without(state.damaged, broker_id),
        )
    if broker_id not in state.replicas:
        if broker_id not in state.adding and state == document.state:
            return document
        return replace(document, state=replace(state, version=state.version + 1))
    held = broker_id in state.isr or broker_id in document.elr
    led_by_other = state.leader not in {NO_LEADER, broker_id}
    lossy = _without(document.lossy, broker_id)
    if same_directory and not led_by_other and (held or broker_id in document.lossy):
        # A member of the ISR stayed longer than one of the ELR: it comes first.
        lossy = (broker_id, *lossy) if broker_id in state.isr else (*lossy, broker_id)
    leads = state.leader == broker_id
    return replace(
        document,
        state=replace(
            state,
            leader=NO_LEADER if leads else state.leader,
            leader_epoch=LeaderEpoch(state.leader_epoch + 1) if leads else state.leader_epoch,
            isr=_without(state.isr, broker_id),
            version=state.version + 1,
        ),
        elr=_without(document.elr, broker_id),
        lossy=lossy,
    )


def alter_isr(
    document: PartitionDocument, isr: tuple[BrokerId, ...], settings: Settings
) -> PartitionDocument:
    """The leader's new ISR (already checked); the leader epoch stays, the version increases.

    Even if the ISR does not change: this is how a leader ensures that an earlier proposal, whose
    answer was lost and which may still be in flight, can no longer succeed.
    """
    state = document.state
    assert state.leader in isr
    altered = _with_isr(document, _in_replica_order(state, isr), settings)
    if altered is document:
        return replace(document, state=replace(state, version=state.version + 1))
    return altered


def move_leader(document: PartitionDocument, leader: BrokerId) -> PartitionDocument:
    """Another member of the ISR takes over; the ISR stays."""
    assert leader in document.state.isr
    return _with_leader(document, document.state, leader)


def settled_with(document: PartitionDocument, settings: Settings) -> PartitionDocument:
    """An ISR that is large enough needs no ELR, and once it has a leader no lossy members.

    Until then nothing is committed, so that a lossy member lacks nothing more than when it came
    back; but in a compacted topic it may be copying its log again (`Follower`). It may have to lead
    yet: who was elected had perhaps lost its disk, and had not said so.
    """
    if len(document.state.isr) < settings.min_isr:
        return document
    lossy = document.lossy if document.state.leader == NO_LEADER else ()
    if (document.elr, document.lossy) == ((), lossy):
        return document
    return replace(document, elr=(), lossy=lossy)


def _choose_leader(
    document: PartitionDocument, liveness: Liveness, settings: Settings
) -> tuple[BrokerId, ElectionKind]:
    state = document.state
    isr, elr, damaged = frozenset(state.isr), frozenset(document.elr), frozenset(state.damaged)
    able, itself = liveness.opened, liveness.live & {state.leader}
    lossy = frozenset(document.lossy)
    sound, staying = isr - damaged, able & liveness.staying
    last_elr = elr if (isr | elr) <= damaged and not settings.unclean else frozenset()
    last = isr if settings.unclean or (isr | elr) <= damaged else frozenset()
    last_lossy = lossy if settings.unclean or lossy <= damaged else frozenset()
    groups = [
        (ElectionKind.ISR, (sound & staying) - liveness.cordoned),
        (ElectionKind.ISR, sound & staying),
        (ElectionKind.ISR, sound & itself),
        (ElectionKind.ISR, sound & able),
        (ElectionKind.ELR, (elr - damaged) & able),
        (ElectionKind.ISR, last & staying),
        (ElectionKind.ISR, isr & itself),
        (ElectionKind.ISR, last & able),
        (ElectionKind.ELR, last_elr & able),
    ]
    if not isr and not elr:
        groups += [
            (ElectionKind.LOSSY, (lossy - damaged) & able),
            (ElectionKind.LOSSY, last_lossy & able),
        ]
    if settings.unclean and not ((isr | elr) - damaged) & liveness.coming:
        groups += [
            (ElectionKind.UNCLEAN, (lossy - damaged) & able),
            (ElectionKind.UNCLEAN, able - damaged),
            (ElectionKind.UNCLEAN, able),
        ]
    for kind, group in groups:
        for broker_id in document.lossy if kind is ElectionKind.LOSSY else state.replicas:
            if broker_id in group:
                return broker_id, kind
    return NO_LEADER, ElectionKind.NONE


def _unseated(document: PartitionDocument, liveness: Liveness) -> frozenset[BrokerId]:
    """Damaged members of ISR and ELR, if any other member is live and known to be sound (I33)."""
    members, damaged = {*document.state.isr, *document.elr}, {*document.state.damaged}
    sound = (members - damaged) & liveness.opened
    return frozenset(members & damaged) if sound else frozenset()


def _stayers(
    document: PartitionDocument,
    leader: BrokerId,
    liveness: Liveness,
    unseated: frozenset[BrokerId],
) -> tuple[BrokerId, ...]:
    """The ISR without dead, leaving and unseated brokers, but always with the leader."""
    return tuple(
        broker_id
        for broker_id in document.state.isr
        if broker_id == leader or broker_id in liveness.staying - unseated
    )


def _with_isr(
    document: PartitionDocument,
    isr: tuple[BrokerId, ...],
    settings: Settings,
    unseated: frozenset[BrokerId] = frozenset(),
) -> PartitionDocument:
    """The same partition with this ISR, and the ELR that follows from it, without `unseated`.

    The leader confirms records only while |ISR| >= min ISR (I5). So a broker that leaves an ISR
    that becomes too small holds every record that was or will be committed until the ISR grows
    again.
    """
    state = document.state
    if set(isr) == set(state.isr):
        if unseated.isdisjoint(document.elr):
            return document
        return replace(document, elr=tuple(one for one in document.elr if one not in unseated))
    elr: tuple[BrokerId, ...] = ()
    lossy: tuple[BrokerId, ...] = ()
    if len(isr) < settings.min_isr:
        elr = _in_replica_order(state, {*document.elr, *state.isr} - {*isr} - unseated)
        lossy = tuple(broker_id for broker_id in document.lossy if broker_id not in isr)
    return replace(
        document,
        state=replace(state, isr=isr, version=state.version + 1),
        elr=elr,
        lossy=lossy,
    )


def _with_leader(
    document: PartitionDocument, before: PartitionState, leader: BrokerId
) -> PartitionDocument:
    """`before` with the next version and epoch. No records are in question, whoever leads."""
    state = replace(
        document.state,
        leader=leader,
        leader_epoch=LeaderEpoch(before.leader_epoch + 1),
        version=before.version + 1,
    )
    assert leader == NO_LEADER or leader in state.isr
    return replace(document, state=state)


def _without(members: tuple[BrokerId, ...], broker_id: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(member for member in members if member != broker_id)


def _in_replica_order(state: PartitionState, members: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in state.replicas if broker_id in members)
