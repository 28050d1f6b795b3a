"""Part of `secure`: users who get in by certificate, at a port of its own, by docs/security.md.

openssl: a CA, ada's certificate ─▶ ConfigMap people, spec.security.clientCertificates ─▶ 9100
"""

import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

from e2e.harness.images import BROKER
from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.login import MOUNT, Login
from e2e.harness.penstock import CLUSTERS, condition, is_settled
from e2e.harness.process import CommandError, run, wait_until
from e2e.harness.scenario import Stage
from e2e.harness.workload import client_pod

PEOPLE: Final = "people"
POD: Final = "with-certificate"
HERS: Final = "/hers"
ROLL_S: Final = 240.0
KEY_MODE: Final = 0o440
"""Others of the pod cannot read it; the group of its volumes can."""
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def users_show_certificates(
    stage: Stage, kubectl: Kubectl, login: Login, topic: str, penstock: Callable[..., str]
) -> None:
    """Ada reads what a rule lets her, and nothing else; nobody gets in with another CA's
    certificate, or without one. `login`: with the cluster's CA. `penstock`: as an administrator."""
    cluster = login.trust.removesuffix("-trust")
    with tempfile.TemporaryDirectory() as folder:
        ours, others = Path(folder) / "ours", Path(folder) / "others"
        for path in (ours, others):
            path.mkdir()
            _sign(path)
        kubectl.call("create", "configmap", PEOPLE, f"--from-file={ours}/ca.crt")
        asked: Manifest = {"clientCertificates": {"caConfigMap": PEOPLE}}
        began = time.monotonic()
        kubectl.patch(CLUSTERS, cluster, {"spec": {"security": asked}})
        penstock("acl", "allow", "cert:ada", "read", "--topic", topic)
        kubectl.apply(_secret("ours", ours))
        kubectl.apply(_secret("others", others))
        kubectl.apply(_pod(login))
        kubectl.wait_condition("pod", POD, deadline_s=60.0)
        at = f"--bootstrap={cluster}-bootstrap.{kubectl.namespace}.svc:9100"
        read = ("consume", topic, "--offset=beginning", "--exit", at)
        wait_until("ada reads", lambda: not _refusal(kubectl, "ours", *read), ROLL_S)
        stage.measure("certificates let users in", time.monotonic() - began)
        for who, command, word in (
            ("ours", ("topic", "create", "hers", at), "may not"),
            ("others", read, "certificate"),
            ("", read, "certificate"),
        ):
            said = _refusal(kubectl, who, *command)
            stage.say(f"{who or 'no certificate'}, {command[0]}: {said}")
            stage.expect(word in said, f"{who}: {word} is not said: {said or 'let in'}")
            stage.expect("Traceback" not in said, said)
        penstock("acl", "revoke", "cert:ada", "--topic", topic)
        wait_until("ada is out", lambda: _refusal(kubectl, "ours", *read), 10.0)
        kubectl.delete("configmap", PEOPLE)
        kubectl.wait(
            CLUSTERS,
            cluster,
            lambda found: PEOPLE in condition(found, "Secured").get("message", ""),
        )
        kubectl.patch(CLUSTERS, cluster, {"spec": {"security": {"clientCertificates": None}}})
        kubectl.delete("pod", POD, now=True)
        kubectl.wait(CLUSTERS, cluster, is_settled, ROLL_S)


def _sign(path: Path) -> None:
    """A CA, and ada's certificate."""
    run(
        "openssl", "req", "-x509", *KEY, "-days", "10", "-subj", f"/CN=users of {path.name}",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        "-keyout", f"{path}/users.key", "-out", f"{path}/ca.crt",
    )  # fmt: skip
    run(
        "openssl", "req", "-new", *KEY, "-subj", "/CN=ada",
        "-keyout", f"{path}/ada.key", "-out", f"{path}/ada.csr",
    )  # fmt: skip
    run(
        "openssl", "x509", "-req", "-in", f"{path}/ada.csr", "-CA", f"{path}/ca.crt",
        "-CAkey", f"{path}/users.key", "-CAcreateserial", "-days", "10", "-out", f"{path}/ada.crt",
    )  # fmt: skip


def _secret(name: str, path: Path) -> Manifest:
    files = {
        each: b64encode((path / each).read_bytes()).decode() for each in ("ada.crt", "ada.key")
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": files}


def _pod(login: Login) -> Manifest:
    """Waits for commands; has both certificates and the cluster's CA, and no token."""
    spec = client_pod("client", BROKER.tag, ("sleep", "infinity"), login)
    for name in ("ours", "others"):
        spec["volumes"].append(
            {"name": name, "secret": {"secretName": name, "defaultMode": KEY_MODE}}
        )
        mount = {"name": name, "mountPath": f"{HERS}/{name}", "readOnly": True}
        spec["containers"][0]["volumeMounts"].append(mount)
    spec = {"restartPolicy": "Never", **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}


def _refusal(kubectl: Kubectl, who: str, *command: str) -> str:
    """What is said to `penstock …` with that certificate of ada's; empty: it did it."""
    hers = (f"--cert={HERS}/{who}/ada.crt", f"--key={HERS}/{who}/ada.key") if who else ()
    try:
        kubectl.exec(POD, "penstock", f"--ca-file={MOUNT}/ca.crt", *hers, *command)
    except CommandError as error:
        return error.output or str(error)
    return ""
