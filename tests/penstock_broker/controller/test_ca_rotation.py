"""Controllers that share the state of a CA's rotation in a ConfigMap: a real API server."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.kubernetes_store import PATIENT
from support.operator_process import get

from penstock.core.types import BrokerId
from penstock.errors import MisuseError, PenstockError
from penstock.kubernetes.api import Api
from penstock.kubernetes.certificate_ends import ends_in
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import (
    CERTIFICATE_ENDS,
    ROTATE_CA_WAIT,
    ROTATION,
    TRUST_LABEL,
    ClusterNames,
)
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority, Subject
from penstock_broker.certificates.reports import report_of
from penstock_broker.certificates.rotation import Phase, Report, Rotation, Slot
from penstock_broker.controller.ca_rotation import CaRotation, ThisController, first_guess, roots_of
from penstock_broker.controller.ca_state import REPORTS, Seen, Shown
from penstock_broker.controller.enrolment_authority import (
    Authorities,
    AuthorityFiles,
    OwnCertificate,
    fingerprint_of,
)
from penstock_broker.controller.enrolment_trust import TrustMap
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects

CLUSTER = "flights"
OLD, NEW = Authority.new(CLUSTER), Authority.new(CLUSTER)
SUBJECT = Subject(common_name="controllers", uri="spiffe://penstock/c-1/controller")


@dataclass
class Controller:
    """A process: its mount, and what it runs."""

    name: str
    folder: Path
    trust: TrustMap
    today: list[date]
    clock: list[float] = field(default_factory=lambda: [0.0])
    controllers: int = 2

    def __post_init__(self) -> None:
        self.authorities = Authorities(
            {
                slot: AuthorityFiles(self.folder / f"{slot.value}.crt", self.folder / slot.value)
                for slot in Slot
            }
        )
        found = self.authorities.found()
        state = self.trust.read().shown.rotation or first_guess(found)
        signer = self.authorities.load(state.signer)
        self.own = OwnCertificate(SUBJECT, signer, roots_of(state, found))
        self.rotation = CaRotation(
            state, self.authorities, self.own, lambda: self.clock[0], lambda: self.today[0]
        )
        self.tls = Tls(self.own.files)

    def look(self, brokers: dict[BrokerId, Report | None] | None = None) -> float:
        """`brokers` None: it stands by."""
        this = ThisController(self.name, self.controllers, self.tls)
        return self.rotation.look(this, self.trust, brokers)


class Scene:
    """Two Secrets as a folder that all controllers mount, or each its own copy."""

    def __init__(self, server: ApiServer, path: Path) -> None:
        self.server, self.path = server, path
        self.names = ClusterNames(CLUSTER, server.namespace("rotation"))
        self.api: Api = connect("tests", PATIENT, kubeconfig=str(server.kubeconfig))
        self.trust = TrustMap(self.api, ClusterObjects(CLUSTER, self.names.namespace))
        self.made: list[Controller] = []
        self.today = [date(2026, 1, 10)]
        self.mount(Slot.FIRST, OLD)
        self.own(Slot.FIRST)

    def mount(self, slot: Slot, authority: Authority | None, folder: str = "") -> None:
        where = self.path / folder
        where.mkdir(exist_ok=True)
        for name, content in ((f"{slot.value}.crt", "certificate"), (slot.value, "key")):
            if authority is None:
                (where / name).unlink(missing_ok=True)
            else:
                (where / name).write_bytes(getattr(authority.pair, content))

    def controller(self, name: str, folder: str = "") -> Controller:
        self.made.append(Controller(name, self.path / folder, self.trust, self.today))
        return self.made[-1]

    def owner(self, slot: Slot) -> str:
        """The path of the ConfigMap that owns a CA's Secret."""
        name = dict(zip(Slot, self.names.authorities, strict=True))[slot]
        return f"/api/v1/namespaces/{self.names.namespace}/configmaps/{name}"

    def owners(self) -> set[str]:
        """The ConfigMaps that own CAs' Secrets."""
        return {
            name
            for slot, name in zip(Slot, self.names.authorities, strict=True)
            if get(self.server, self.owner(slot)) is not None
        }

    def ask(self, wait_s: int = 0) -> None:
        """What the operator makes, when somebody asks for another CA."""
        self.own(Slot.SECOND, wait_s)
        self.mount(Slot.SECOND, NEW)

    def own(self, slot: Slot, wait_s: int = 0) -> None:
        """Makes the ConfigMap that owns the Secret of a CA."""
        path, _, name = self.owner(slot).rpartition("/")
        metadata = {
            "name": name,
            "labels": {TRUST_LABEL: CLUSTER},
            "annotations": {ROTATE_CA_WAIT: f"{wait_s}"},
        }
        self.server.request("POST", path, {"metadata": metadata})

    @property
    def path_of_trust(self) -> str:
        return f"/api/v1/namespaces/{self.names.namespace}/configmaps/{self.names.trust}"

    def published(self) -> dict[str, Any]:
        return dict(self.server.request("GET", self.path_of_trust))

    def state(self) -> Rotation:
        found = self.trust.read().shown.rotation
        assert found is not None
        return found

    def waits(self) -> tuple[str, ...]:
        return tuple(self.trust.read().shown.waits)

    def close(self) -> None:
        for each in self.made:
            each.own.close()
        self.api.close()


@pytest.fixture
def scene(api_server: ApiServer, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(api_server, tmp_path)
    yield made
    made.close()


def broker(*trusted: Authority, issuer: Authority) -> dict[BrokerId, Report | None]:
    report = Report(frozenset(map(fingerprint_of, trusted)), fingerprint_of(issuer))
    return {BrokerId(0): report}


def test_at_rest_the_trust_is_published_once_and_nothing_is_written(scene: Scene) -> None:
    one, other = scene.controller("a_1"), scene.controller("b_1")
    one.look()
    other.look()
    written, data = scene.api.writes, scene.published()
    assert data["data"]["ca.crt"].encode() == OLD.certificate
    assert set(data["metadata"]["annotations"]) == {CERTIFICATE_ENDS}
    for _ in range(3):
        one.look(broker(OLD, issuer=OLD))
        other.look()
    assert scene.api.writes == written
    assert scene.published() == data


def test_the_ends_of_all_certificates_are_published(scene: Scene) -> None:
    active, standby = scene.controller("a_1"), scene.controller("b_1")
    active.look()
    standby.look()
    said = {BrokerId(0): Report(frozenset(), "", ends_s=1_900_000_000), BrokerId(1): None}
    active.look(said)
    standby.look()
    own = report_of(active.tls).ends_s
    ends = ends_in(scene.published())
    assert {name: one.at_s for name, one in ends.items()} == {
        "broker 0": 1_900_000_000,
        "controller a": own,
        "controller b": report_of(standby.tls).ends_s,
    }
    scene.today[0] += timedelta(days=3)
    active.look(said)
    assert set(ends_in(scene.published())) == {"broker 0", "controller a"}, "b is gone"


def test_two_controllers_go_through_it_and_end_at_rest(scene: Scene) -> None:
    active, standby = scene.controller("a_1"), scene.controller("b_1")
    active.look()
    scene.ask()
    both, new = broker(OLD, NEW, issuer=OLD), broker(NEW, issuer=NEW)
    active.look(both)
    assert scene.state().phase is Phase.TRUSTING
    assert scene.published()["data"]["ca.crt"].encode() == OLD.certificate + NEW.certificate
    active.look(both)
    assert scene.waits() == ("controllers, of which 1 of 2 report",)
    standby.look()
    active.look(both)
    assert scene.state().phase is Phase.WAITING
    active.look(both)
    assert scene.state().phase is Phase.RENEWING
    renewed = broker(OLD, NEW, issuer=NEW)
    active.look(renewed)
    assert scene.waits() == ("controller b (1)",), "it shows a certificate of the old CA"
    standby.look()
    active.look(renewed)
    assert scene.state().phase is Phase.DROPPING
    assert scene.published()["data"]["ca.crt"].encode() == NEW.certificate
    standby.look()
    active.look(new)
    assert scene.state().phase is Phase.REMOVING
    active.look(new)
    assert {*scene.waits()} == {"controller a (1)", "controller b (1)"}, "they see the old key"
    assert scene.owners() == {scene.names.authorities[1]}, "the old Secret's owner is deleted"
    scene.mount(Slot.FIRST, None)
    standby.look()
    active.look(new)
    assert scene.state() == Rotation(Slot.SECOND, Phase.SETTLED, scene.state().since_s)
    assert REPORTS not in scene.published()["metadata"]["annotations"]
    written = scene.api.writes
    for _ in range(3):
        active.look(new)
        standby.look()
    assert scene.api.writes == written
    assert active.rotation.signer().certificate == NEW.certificate


def test_the_report_of_a_process_that_is_gone_counts_until_it_is_not_renewed(scene: Scene) -> None:
    scene.mount(Slot.FIRST, OLD, "lags")
    active, lags = scene.controller("a_1"), scene.controller("b_1", "lags")
    active.look()
    scene.ask()
    both = broker(OLD, NEW, issuer=OLD)
    active.look(both)
    lags.look()
    active.look(both)
    assert scene.waits() == ("controller b (1)",), "its volume has one CA"
    active.clock[0] = 89.9
    active.look(both)
    assert scene.waits() == ("controller b (1)",)
    active.clock[0] = 90.0
    active.look(both)
    assert scene.waits() == ("controllers, of which 1 of 2 report",)
    assert "b_1" not in scene.published()["metadata"]["annotations"][REPORTS]
    scene.controller("b_2").look()  # the next process in that pod
    active.look(both)
    assert scene.state().phase is Phase.WAITING


def test_a_process_that_runs_shows_it_again_and_again(scene: Scene) -> None:
    active, standby = scene.controller("a_1"), scene.controller("b_1")
    active.look()
    scene.ask(wait_s=3_600)
    both = broker(OLD, NEW, issuer=OLD)
    for now_s in range(0, 600, 25):
        active.clock[0] = standby.clock[0] = float(now_s)
        active.look(both)
        standby.look()
    assert scene.state().phase is Phase.WAITING
    assert scene.waits() == ("clients, which must have time to trust both CAs",)


def test_what_somebody_removes_or_breaks_half_way_is_written_again(scene: Scene) -> None:
    active, standby = scene.controller("a_1"), scene.controller("b_1")
    active.look()
    scene.ask()
    both = broker(OLD, NEW, issuer=OLD)
    for _ in range(3):
        active.look(both)
        standby.look()
    state = scene.state()
    assert state.phase is Phase.RENEWING
    scene.server.request("DELETE", scene.path_of_trust)
    standby.look()
    assert scene.state() == state
    broken = {"metadata": {"annotations": {ROTATION: "{}", REPORTS: "["}}, "data": {"ca.crt": "x"}}
    media = "application/merge-patch+json"
    scene.server.request("PATCH", scene.path_of_trust, broken, Content_Type=media)
    standby.look()
    assert scene.state() == state
    assert scene.published()["data"]["ca.crt"].encode() == OLD.certificate + NEW.certificate


def test_a_controller_that_starts_half_way_does_as_the_others(scene: Scene) -> None:
    active, standby = scene.controller("a_1"), scene.controller("b_1")
    active.look()
    scene.ask()
    for _ in range(3):
        active.look(broker(OLD, NEW, issuer=OLD))
        standby.look()
    assert scene.controller("c_1").rotation.signer().certificate == NEW.certificate


class Silent(TrustMap):
    """The API server does not answer."""

    def read(self) -> Seen:
        raise KubernetesError("no answer", 0)


def test_the_own_certificate_is_renewed_while_the_api_server_is_unavailable(scene: Scene) -> None:
    controller = scene.controller("a_1")
    controller.look()
    scene.mount(Slot.FIRST, NEW)
    controller.trust = Silent(scene.api, ClusterObjects(CLUSTER, scene.names.namespace))
    with pytest.raises(KubernetesError):
        controller.look()
    assert report_of(controller.tls).issuer == fingerprint_of(NEW)


def test_who_has_read_an_older_state_writes_nothing(scene: Scene) -> None:
    controller = scene.controller("a_1")
    controller.look()
    seen = scene.trust.read()
    scene.trust.write(seen, Shown(Rotation(Slot.FIRST, Phase.TRUSTING, 1.0)))
    with pytest.raises(KubernetesError) as caught:
        scene.trust.write(seen, Shown(Rotation(Slot.FIRST, Phase.SETTLED, 2.0)))
    assert caught.value.is_conflict
    assert scene.state().phase is Phase.TRUSTING


def test_a_secret_that_nobody_asked_for_changes_nothing(scene: Scene) -> None:
    """Whoever may only create Secrets cannot put a CA of theirs into the trust."""
    active = scene.controller("a_1")
    scene.mount(Slot.SECOND, NEW)
    for _ in range(2):
        active.look(broker(OLD, issuer=OLD))
    assert scene.published()["data"]["ca.crt"].encode() == OLD.certificate


def test_a_ca_whose_secret_is_lost_signs_from_memory_and_is_reported(scene: Scene) -> None:
    active, standby = scene.controller("a_1"), scene.controller("b_1")
    standby.look()
    active.look(broker(OLD, issuer=OLD))
    scene.mount(Slot.FIRST, None)
    active.look(broker(OLD, issuer=OLD))
    assert scene.state() == Rotation()
    assert scene.waits() == ("Secret …-ca, which is not there",)
    assert scene.published()["data"]["ca.crt"].encode() == OLD.certificate
    assert active.rotation.signer().certificate == OLD.certificate
    standby.look()
    assert scene.waits() != (), "it is for the active controller to say"
    with pytest.raises(MisuseError, match=r"ca\.crt cannot be read"):
        scene.controller("c_1")
    scene.mount(Slot.FIRST, OLD)
    active.look(broker(OLD, issuer=OLD))
    assert scene.waits() == ()


def test_a_lost_ca_is_replaced_by_another_while_a_controller_remembers_it(scene: Scene) -> None:
    active = scene.controller("a_1")
    active.controllers = 1
    active.look(broker(OLD, issuer=OLD))
    scene.mount(Slot.FIRST, None)
    active.look(broker(OLD, issuer=OLD))
    scene.ask()
    seen = broker(OLD, issuer=OLD)
    phases = []
    for _ in range(20):
        active.look(seen)
        phase = scene.state().phase
        phases.append(phase)
        if phase is Phase.TRUSTING:
            seen = broker(OLD, NEW, issuer=OLD)
        elif phase is Phase.RENEWING:
            seen = broker(OLD, NEW, issuer=NEW)
        elif phase is Phase.DROPPING:
            seen = broker(NEW, issuer=NEW)
        elif phase is Phase.SETTLED:
            break
    assert scene.state().slot is Slot.SECOND, phases
    assert scene.waits() == ()
    assert scene.published()["data"]["ca.crt"].encode() == NEW.certificate


def test_of_two_cas_nobody_knows_the_older_one_signs(tmp_path: Path) -> None:
    assert first_guess({Slot.SECOND: NEW}) == Rotation(Slot.SECOND)
    younger = Authority.new(CLUSTER, now=OLD.begins.replace(year=OLD.begins.year + 1))
    assert first_guess({Slot.FIRST: younger, Slot.SECOND: OLD}) == Rotation(Slot.SECOND)
    assert first_guess({Slot.FIRST: OLD, Slot.SECOND: younger}) == Rotation(Slot.FIRST)
    empty = Authorities({Slot.FIRST: AuthorityFiles(tmp_path / "a", tmp_path / "b")})
    with pytest.raises(PenstockError, match="--second-ca does not say where"):
        empty.load(Slot.SECOND)
