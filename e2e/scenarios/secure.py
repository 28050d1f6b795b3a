"""A Strict Cluster: who gets in and who does not, and what goes on when its parts die.

    person ── RBAC on serviceaccounts/token ─▶ kubectl penstock ─▶ rules
    pod ── projected token, ConfigMap <cluster>-trust ─▶ the client without any option

docs/security.md walks a reader through the first half of it, with the same names and manifests.
"""

import base64
import json
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from e2e.harness.images import BROKER
from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.login import API_SERVER, Login
from e2e.harness.penstock import CLUSTERS, OPERATOR_SELECTOR, RESTRICTED, Penstock, condition
from e2e.harness.plugin import plugin
from e2e.harness.process import CommandError, E2EError, kubeconfig, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Load, Workload, client_pod
from e2e.scenarios.certificates import users_show_certificates
from e2e.scenarios.resources import TOPICS, cluster, topic

NAMESPACE = "bank"
CLUSTER = "ledger"
TOPIC = "payments"
GROUP = "tills"
LOADED = "under-load"
TRUST = f"{CLUSTER}-trust"
AUDIENCE = f"penstock.{NAMESPACE}.{CLUSTER}"
APP = f"serviceaccount:{NAMESPACE}/till"
KUBECTL_SAYS = "command terminated with exit code"
CERTIFICATES = "/var/lib/penstock/data/tls"
READY_S = 240.0

CLIENT = f"""\
from penstock.client import Consumer, Producer

AT = "{CLUSTER}-bootstrap.{NAMESPACE}.svc:9092"
with Producer(AT) as producer:
    for number in range(100):
        producer.send("{TOPIC}", f"payment {{number}}".encode())
    producer.flush()
with Consumer(AT, group_id="{GROUP}", auto_offset_reset="earliest") as consumer:
    consumer.subscribe("{TOPIC}")
    records = iter(consumer)
    seen = {{next(records).value for _ in range(100)}}
print(len(seen))
"""

LOGINS: dict[str, Login | None] = {
    "till": Login("till", TRUST, AUDIENCE),
    "stranger": Login("stranger", TRUST, AUDIENCE),
    "no-token": Login("till", TRUST, None),
    "api-token": Login("till", TRUST, API_SERVER),
    "other-audience": Login("till", TRUST, f"penstock.{NAMESPACE}.other"),
    "plaintext": None,
}
REFUSED = {
    "no-token": "token",
    "api-token": "token",
    "other-audience": "token",
    "plaintext": "TLS",
}
"""What is said to a pod that does not get in."""
TEAM = "etl"
TEAM_TOPIC = "orders"
TEAM_SEES = {"writer": "", "reader": "may not Write", "outsider": TEAM_TOPIC}
"""Accounts, and what is said when they write."""
COPY_TRUST = f"{CLUSTER}.{NAMESPACE}.trust.penstock.dev/copy"


@scenario("A Strict Cluster: who gets in, and what dies under load", short=True)
def secure(stage: Stage) -> None:
    """From a manifest to refusals and faults; nobody needs to read a Secret on the way."""
    kubectl = stage.kubectl.in_namespace(NAMESPACE)
    strict = Penstock(stage.kubectl, CLUSTER, NAMESPACE)
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace",
         "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    )  # fmt: skip
    try:
        _create(stage, kubectl)
        with tempfile.TemporaryDirectory() as folder:
            ada, bob = _people(kubectl, Path(folder))
            _people_log_in(stage, ada, bob)
            _pods_log_in(stage, kubectl, ada)
            _another_namespace(stage, kubectl)
            without_token = Login("till", TRUST, None)
            users_show_certificates(stage, kubectl, without_token, TOPIC, partial(_penstock, ada))
            _parts_die(stage, strict, ada)
            _bundle_tells_nothing(stage, strict, ada, Path(folder))
    except E2EError:
        stage.logs.mkdir(parents=True, exist_ok=True)
        for pod in kubectl.list("pod"):
            name = pod["metadata"]["name"]
            (stage.logs / f"{name}.log").write_text(kubectl.logs(name))
        raise
    finally:
        kubectl.delete(CLUSTERS, CLUSTER, wait_s=120.0)
        kubectl.delete("namespace", NAMESPACE, wait_s=120.0)


def _create(stage: Stage, kubectl: Kubectl) -> None:
    began = time.monotonic()
    config = {"default.replication.factor": 3, "min.insync.replicas": 2}
    kubectl.apply(cluster(CLUSTER, security={"mode": "Strict"}, config=config,
                          deletionPolicy="Delete"))  # fmt: skip
    found = kubectl.wait_condition(CLUSTERS, CLUSTER, deadline_s=READY_S)
    stage.measure("Strict Cluster Ready", time.monotonic() - began)
    secured = condition(found, "Secured")
    stage.expect(secured.get("status") == "True", f"Secured is {secured}")


# ---------------------------------------------------------------------- people


def _role(name: str, *rules: Manifest) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": list(rules),
    }


def _bound(user: str, kind: str, role: str) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": NAMESPACE}],
    }


def _account(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


def _people(kubectl: Kubectl, folder: Path) -> tuple[Path, Path]:
    """Kubeconfigs of two who may see everything but Secrets; the first may log in as admin."""
    sees = _role(
        "clusters",
        {"apiGroups": ["penstock.dev"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
    )
    administers = _role(
        "administers",
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"],
         "resourceNames": [f"{CLUSTER}-admin"]},
    )  # fmt: skip
    kubectl.apply([
        *(_account(name) for name in ("ada", "bob", "till", "stranger", "load")),
        sees, administers, _bound("ada", "Role", "administers"),
        *(_bound(user, "ClusterRole", "view") for user in ("ada", "bob")),
        *(_bound(user, "Role", "clusters") for user in ("ada", "bob")),
    ])  # fmt: skip
    return _kubeconfig(kubectl, "ada", folder), _kubeconfig(kubectl, "bob", folder)


def _kubeconfig(kubectl: Kubectl, user: str, folder: Path) -> Path:
    """The administrator's, with the user's token in it instead."""
    token = kubectl.call("create", "token", user).decode().strip()
    given = json.loads(
        kubectl.call("config", "view", "--raw", "--minify", "-o", "json",
                     f"--kubeconfig={kubeconfig()}")
    )  # fmt: skip
    given["users"] = [{"name": given["users"][0]["name"], "user": {"token": token}}]
    path = folder / f"{user}.kubeconfig"
    path.write_text(json.dumps(given))
    return path


def _penstock(user: Path, *args: str) -> str:
    """`kubectl penstock` as that user."""
    return plugin("--kubeconfig", str(user), "--cluster", f"{NAMESPACE}/{CLUSTER}", *args)


def _people_log_in(stage: Stage, ada: Path, bob: Path) -> None:
    """Creating tokens of the admin's account is what decides; reading Secrets is not needed."""
    _penstock(ada, "topic", "create", TOPIC, "--partitions=3", "--replicas=3")
    stage.expect(TOPIC in _penstock(ada, "topic", "list"), "the administrator sees no topic")
    refusal = _refusal(lambda: _penstock(bob, "topic", "list"))
    stage.say(f"without RBAC: {refusal}")
    stage.expect(f"{CLUSTER}-admin" in refusal, f"not said what is missing: {refusal}")
    _clear(stage, refusal)
    for user in ("ada", "bob"):
        who = f"--as=system:serviceaccount:{NAMESPACE}:{user}"
        answer = _refusal(lambda who=who: stage.kubectl.in_namespace(NAMESPACE).call(
            "auth", "can-i", "get", "secrets", who))  # fmt: skip
        stage.expect(answer, f"{user} may read Secrets, so that this shows nothing")


def _refusal(attempt: object) -> str:
    """What was said when it failed; '' if it did not."""
    assert callable(attempt)
    try:
        attempt()
    except CommandError as error:
        lines = (error.output or str(error)).splitlines()
        return "\n".join(line for line in lines if not line.startswith(KUBECTL_SAYS))
    return ""


def _clear(stage: Stage, said: str) -> None:
    """A line or a few for people: no traceback, nothing secret."""
    stage.expect("Traceback" not in said, f"a traceback: {said}")
    stage.expect("eyJ" not in said, "a token was printed")
    stage.expect(len(said.splitlines()) <= 3, f"too much is said: {said}")


# ---------------------------------------------------------------------- pods


def _pods_log_in(stage: Stage, kubectl: Kubectl, ada: Path) -> None:
    _penstock(ada, "acl", "allow", APP, "read", "write", "--topic", TOPIC)
    _penstock(ada, "acl", "allow", APP, "read", "--group", GROUP)
    for name, login in LOGINS.items():
        kubectl.apply(_client(name, login))
    for name in LOGINS:
        kubectl.wait_condition("pod", name, deadline_s=60.0)
    counted = kubectl.exec("till", "python", "-c", CLIENT).strip()
    stage.expect(counted == "100", f"100 records were written, {counted} read")
    seen = kubectl.exec("stranger", "penstock", "topic", "list", "-o", "json")
    stage.expect(TOPIC not in seen, "without a rule, the topic's name is told")
    for name, word in REFUSED.items():
        for command in (("topic", "list"), ("consume", TOPIC, "-o", "beginning", "-e")):
            said = _refusal(lambda: kubectl.exec(name, "penstock", *command))  # noqa: B023
            stage.expect(said, f"{name}: penstock {command[0]} was let in")
            stage.say(f"{name}: {said}")
            stage.expect(word in said, f"{name}: {word} is not said: {said}")
            _clear(stage, said)
    kubectl.delete("pod", *LOGINS, now=True, wait_s=None)


def _client(name: str, login: Login | None) -> Manifest:
    """A pod that waits for commands."""
    spec = client_pod("client", BROKER.tag, ("sleep", "infinity"), login)
    env = {"name": "PENSTOCK_BOOTSTRAP", "value": f"{CLUSTER}-bootstrap.{NAMESPACE}.svc:9092"}
    spec["containers"][0]["env"] = [env]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", **spec},
    }


def _another_namespace(stage: Stage, kubectl: Kubectl) -> None:
    """A team's own: a label of its namespace asks for the trust, the Topic says who may do what."""
    stage.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace",
         "metadata": {"name": TEAM, "labels": {**RESTRICTED, COPY_TRUST: ""}}}
    )  # fmt: skip
    try:
        team = stage.kubectl.in_namespace(TEAM)
        team.apply([_account(name) for name in TEAM_SEES])
        access = [
            {"principals": [f"serviceaccount:{TEAM}/{name}"], "operations": [operation]}
            for name, operation in (("writer", "Write"), ("reader", "Read"))
        ]
        kubectl.apply(topic(TEAM_TOPIC, cluster=CLUSTER, deletionPolicy="Delete", access=access))
        kubectl.wait_condition(TOPICS, TEAM_TOPIC)
        wait_until("the trust is copied", lambda: team.find("configmap", TRUST), 60.0)
        write = f"echo 1 | penstock produce {TEAM_TOPIC}"
        for name in TEAM_SEES:
            team.apply(_client(name, Login(name, TRUST, AUDIENCE)))
        for name, word in TEAM_SEES.items():
            team.wait_condition("pod", name, deadline_s=60.0)
            said = _refusal(lambda: team.exec(name, "sh", "-c", write))  # noqa: B023
            stage.say(f"{TEAM}/{name}: {said or 'wrote a record'}")
            right = word in said if word else not said
            stage.expect(right, f"{name}: {word or 'nothing'} was to be said, not {said}")
            _clear(stage, said)
    finally:
        kubectl.delete(TOPICS, TEAM_TOPIC, wait_s=60.0)
        stage.kubectl.delete("namespace", TEAM, wait_s=120.0)


# ---------------------------------------------------------------------- faults


def _parts_die(stage: Stage, strict: Penstock, ada: Path) -> None:
    """Controllers, brokers, a broker's certificate and the operator, one after the other."""
    operations = ("create", "read", "write", "describe")
    load_account = f"serviceaccount:{NAMESPACE}/load"
    _penstock(ada, "acl", "allow", load_account, *operations, "--topic-prefix", LOADED)
    load = Load(strict.bootstrap, LOADED)
    login = Login("load", TRUST, AUDIENCE)
    with Workload(strict.streams, load, BROKER.tag, stage.logs, login) as running:
        running.started()
        running.goes_on()
        first, second = strict.pod(0), strict.pod(1)
        before = {pod: _certificate(strict, pod) for pod in (first, second)}
        for pod in strict.controller_pods():
            stage.nodes.kill_process(pod["metadata"]["name"], strict.streams)
        running.goes_on()
        stage.nodes.kill_process(first, strict.streams)
        _all_well(strict, ada, running)
        stage.expect(_certificate(strict, first) == before[first],
                     "a broker that starts again on its volume enrolled again")  # fmt: skip
        strict.streams.exec(second, "rm", "-r", CERTIFICATES)
        strict.kill_pod(second)
        _all_well(strict, ada, running)
        stage.expect(_certificate(strict, second) != before[second],
                     "a broker has the certificate that it had lost")  # fmt: skip
        with _without_operator(strict):
            strict.kill_pod(first)
            _all_well(strict, ada, running)
        verdict = running.finish()
    stage.verdicts.append(verdict)
    stage.say(f"{verdict}; longest write gap {verdict.write_gap_s:.2f} s")
    stage.expect(verdict.passed, f"{LOADED}: {verdict}")
    strict.wait_ready()


def _certificate(strict: Penstock, pod: str) -> str:
    """Its digest."""
    return strict.streams.exec(pod, "sha256sum", f"{CERTIFICATES}/server.pem")


def _all_well(strict: Penstock, ada: Path, running: Workload) -> None:
    """Three brokers, all replicas in sync as the administrator sees them, and records flow."""
    strict.wait_brokers(3)

    def in_sync() -> bool:
        seen = json.loads(_penstock(ada, "topic", "describe", LOADED, "-o", "json"))
        return all(len(each["isr"]) == 3 for each in seen["partition_list"])

    wait_until(f"{LOADED} in sync", in_sync, 120.0)
    running.goes_on()


@contextmanager
def _without_operator(strict: Penstock) -> Iterator[None]:
    """No pod of the operator is there while the block runs."""
    deployment = strict.operator.list("deployment", OPERATOR_SELECTOR)[0]["metadata"]["name"]
    strict.operator.patch("deployment", deployment, {"spec": {"replicas": 0}})
    try:
        gone = lambda: not strict.operator.list("pod", OPERATOR_SELECTOR)  # noqa: E731
        wait_until("operators gone", gone, 60.0)
        yield
    finally:
        strict.operator.patch("deployment", deployment, {"spec": {"replicas": 2}})
        strict.operator.call("rollout", "status", f"deployment/{deployment}", timeout_s=120.0)


# ---------------------------------------------------------------------- support bundle


def _bundle_tells_nothing(stage: Stage, strict: Penstock, ada: Path, folder: Path) -> None:
    """Compared with the real keys, which only this test reads, and searched for tokens."""
    bundle = folder / "ledger.zip"
    plugin("report", CLUSTER, "-n", NAMESPACE, "--kubeconfig", str(ada), "-f", str(bundle),
           timeout_s=120.0)  # fmt: skip
    with zipfile.ZipFile(bundle) as opened:
        files = {name: opened.read(name).decode(errors="replace") for name in opened.namelist()}
    stage.expect(any(name.startswith("logs/") for name in files), f"no logs: {sorted(files)}")
    secret = strict.streams.get("secret", f"{CLUSTER}-ca")["data"]["tls.key"]
    pem = strict.streams.exec(strict.pod(0), "cat", f"{CERTIFICATES}/server.pem")
    keys = {secret[:40], *_key_lines(base64.b64decode(secret).decode()), *_key_lines(pem)}
    stage.expect(len(keys) > 2, "no keys to look for")
    for name, text in files.items():
        bad = [word for word in (*keys, "PRIVATE KEY", "eyJ") if word in text]
        stage.expect(not bad, f"{name} of the bundle has {len(bad)} keys or tokens")
    secrets = [text for text in files.values() if '"kind": "Secret"' in text]
    stage.expect(not secrets, "a Secret is in the bundle")


def _key_lines(pem: str) -> set[str]:
    """The lines of private keys in it."""
    inside, found = False, set()
    for line in pem.splitlines():
        if line.startswith("-----"):
            inside = line.startswith("-----BEGIN") and "PRIVATE KEY" in line
        elif inside:
            found.add(line)
    return found
