"""The support bundle: what is in it, and that no secret is."""

import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.apiserver import ApiServer
from support.kube_scene import Scene, running
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.redact import GONE, redact, redact_text

SECRET = "hunter2-do-not-tell"


@pytest.fixture
def scene(api_server: ApiServer) -> Scene:
    return Scene(api_server)


def make_report(scene: Scene, file: Path, *words: str) -> Any:
    where = ["--kubeconfig", str(scene.kubeconfig), "-n", scene.namespace]
    return CliRunner().invoke(app, ["report", "-f", str(file), *words, *where])


def test_a_bundle_has_everything_but_secrets(scene: Scene, tmp_path: Path) -> None:
    scene.healthy()
    scene.pod(
        "flights-broker-3",
        "broker",
        environment={"DATABASE_PASSWORD": SECRET, "LEVEL": "info", "URL": f"https://u:{SECRET}@h/"},
        status=running("broker"),
    )
    scene.make(
        "/api/v1",
        "secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "flights-secret"},
         "stringData": {"key": SECRET}},
    )  # fmt: skip
    scene.event("Pod", "flights-broker-3", "Failed", f"login with token={SECRET} failed")
    file = tmp_path / "bundle.zip"
    done = make_report(scene, file, "-o", "json")
    assert done.exit_code == 0, done.output
    listed = {one["file"]: one["bytes"] for one in json.loads(done.stdout)}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "logs are not for everybody"
    with zipfile.ZipFile(file) as bundle:
        assert bundle.testzip() is None
        content = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert {name: len(text.encode()) for name, text in content.items()} == listed
    assert {
        "about.json", "status.json", "why.json", "errors.txt", "describe-cluster.json",
        "objects/clusters/flights.json", "objects/topics/flights.json", "objects/events.jsonl",
        "objects/pods/flights-broker-0.json", "objects/pods/flights-controller-a.json",
        "objects/volume-claims/data-flights-broker-0.json",
        "objects/leases/flights-controller.json",
        "objects/metadata/flights-cluster-x.json", "objects/metadata/flights-topic-x.json",
    } <= set(content)  # fmt: skip
    for name, text in content.items():
        assert SECRET not in text, name
    pod = json.loads(content["objects/pods/flights-broker-3.json"])
    environment = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
    assert environment == {
        "DATABASE_PASSWORD": GONE, "LEVEL": "info", "URL": f"https://{GONE}@h/"
    }  # fmt: skip
    assert f"login with token={GONE} failed" in content["objects/events.jsonl"]
    # No kubelet and no network behind this API server: told, not fatal.
    assert "flights-broker-0" in content["errors.txt"]


def test_several_operators_have_files_of_their_own(scene: Scene, tmp_path: Path) -> None:
    scene.healthy()
    lease = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "penstock-operator"}, "spec": {"holderIdentity": "a"},
    }  # fmt: skip
    elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    scene.server.request("POST", elsewhere, lease)
    try:
        file = tmp_path / "bundle.zip"
        done = make_report(scene, file, "-o", "json")
        assert done.exit_code == 0, done.output
    finally:
        scene.server.request("DELETE", f"{elsewhere}/penstock-operator")
    with zipfile.ZipFile(file) as bundle:
        names = [name for name in bundle.namelist() if name.startswith("objects/operator/leases")]
    assert "objects/operator/leases/default/penstock-operator.json" in names
    assert len(names) == len(set(names)) >= 2


def test_an_existing_file_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    scene.cluster()
    file = tmp_path / "mine.zip"
    file.write_text("mine")
    done = make_report(scene, file)
    assert done.exit_code == 1
    assert "mine.zip already exists" in done.stderr
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"password: {SECRET}",
        f"PASSWORD='{SECRET}'",
        f'{{"client_secret": "{SECRET}"}}',
        f'{{\\"apiKey\\": \\"{SECRET}\\"}}',
        f"GET /x?access_token={SECRET}&page=1",
        f"Authorization: Bearer {SECRET}",
        f"authorization = Basic {SECRET}",
        f"connecting to postgres://admin:{SECRET}@db:5432/x",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f"--sasl-password={SECRET}",
        f"--sasl-password {SECRET}",
        f"MY_DB_PASSWORD_FILE_CONTENT={SECRET}",
    ],
)
def test_secrets_in_texts_are_removed(text: str) -> None:
    assert SECRET not in redact_text(text)
    assert GONE in redact_text(text)


def test_a_token_is_removed_wherever_it_stands() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
    assert redact_text(f"got {token}, ok") == f"got {GONE}, ok"


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "leader elected", "topic": "flights", "partition": 0, "isr": [0, 1]}',
        "records 1234 at 12:30:01, key=AA value=delayed",
        "flights-broker-0.flights-brokers.ns.svc:9092",
        "http://127.0.0.1:9404/metrics",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "thing",
    [
        {"password": SECRET},
        {"nested": [{"sslKeystorePassword": SECRET}]},
        {"env": [{"name": "API_KEY", "value": SECRET}]},
        {"args": ["--token", SECRET, "--level", "info"]},
        {"args": [f"--token={SECRET}"]},
        {"stringData": {"credentials": {"user": SECRET}}},
        {"annotations": {"kubectl.kubernetes.io/last-applied-configuration":
                         json.dumps({"env": [{"name": "DB_PASSWORD", "value": SECRET}]})}},
        {"tokens": [SECRET, SECRET]},
        {"secret": {"data": SECRET}},
    ],
)  # fmt: skip
def test_secrets_in_objects_are_removed(thing: dict[str, Any]) -> None:
    assert SECRET not in json.dumps(redact(thing))


def test_where_a_secret_is_stays_readable() -> None:
    thing = {"valueFrom": {"secretKeyRef": {"name": "flights-tls", "key": "ca.crt"}},
             "secretName": "flights-tls", "automountServiceAccountToken": False,
             "imagePullSecrets": [{"name": "registry"}]}  # fmt: skip
    assert redact(thing) == thing


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=20,
    )
)
def test_redaction_keeps_the_form_of_any_object(thing: object) -> None:
    def form(one: object) -> object:
        if isinstance(one, dict):
            return {key: form(value) for key, value in one.items() if key != "managedFields"}
        return [form(each) for each in one] if isinstance(one, list) else None

    assert form(redact(thing)) == form(thing)


def test_long_and_deep_lines_take_no_time() -> None:
    """Unbounded patterns would take hours here, and deep JSON would end in a RecursionError."""
    text = "a" * 1_000_000 + "\n" + "[" * 100_000 + "\n" + '{"a":' * 900 + "1" + "}" * 900
    assert redact_text(text) == text
