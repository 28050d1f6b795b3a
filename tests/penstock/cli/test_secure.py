"""`penstock local up --secure` and `penstock local token`, as a user types them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from support.local import write_manifest
from support.waiting import wait_until

from penstock_broker.certificates.authority import Authority

if TYPE_CHECKING:
    from .conftest import Program


def test_the_life_of_a_secure_cluster(program: "Program", tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path)
    up = ("local", "up", "-f", manifest, "--detach", "--port", 0)
    told = program.ok(*up, "--secure").splitlines()
    bootstrap = told[0].split("running on ")[1].split(";")[0]
    ca, token = (word.split("=")[1] for word in told[-1].split()[1:])
    # Found by itself, the cluster's own files are used; by its address, those that are given.
    assert "flights" in program.ok("topic", "list")
    given = ("--ca-file", ca, "--token-file", token)
    program.ok(*given, "produce", "flights", "--bootstrap", bootstrap, stdin="one\n")
    assert "uses TLS" in program.fails("topic", "list", "--bootstrap", bootstrap)
    program.ok("profile", "set", "mine", "--bootstrap", bootstrap, *given, "--use")
    assert "flights" in program.ok("topic", "list")
    assert "uses TLS" in program.fails("topic", "list", "--bootstrap", bootstrap), "nothing of it"
    program.ok("profile", "remove", "mine")
    wait_until(
        lambda: '"healthy": true' in program.run("local", "status", "-o", "json").stdout,
        what="the cluster is healthy",
    )
    assert "nothing to change" in program.ok(*up, "--secure")

    program.ok("local", "token", "ada", "--for", "10m", "--out", tmp_path / "ada.token")
    assert (tmp_path / "ada.token").stat().st_mode & 0o777 == 0o600
    hers = ("--token-file", tmp_path / "ada.token")
    denied = program.fails(*hers, "topic", "create", "hers", "--partitions", "1")
    assert "serviceaccount:local/ada" in denied
    assert "cannot be a name" in program.fails("local", "token", "Ada Lovelace", code=2)

    shows_a_certificate(program, tmp_path)

    program.ok("local", "down")
    assert "made with --secure" in program.fails(*up)
    program.ok(*up, "--secure")
    assert "flights" in program.ok("topic", "list")
    root = Path(ca).parent.parent
    program.ok("local", "down", "--purge", "--yes")
    assert not root.exists()


def shows_a_certificate(program: "Program", tmp_path: Path) -> None:
    made = json.loads(
        program.ok("local", "certificate", "ada", "--out", tmp_path / "of ada", "-o", "json")
    )
    assert made["principal"] == "cert:ada"
    certificate, key = Path(made["certificate_file"]), Path(made["key_file"])
    assert {each.stat().st_mode & 0o777 for each in (certificate, key)} == {0o600}
    shown = ("--cert", certificate, "--key", key)
    denied = program.fails(*shown, "topic", "create", "hers", "--partitions", 1)
    assert "cert:ada" in denied, "found by itself, and not as the administrator"
    program.ok("acl", "allow", "cert:ada", "create", "describe", "--topic-prefix", "hers")
    given = ("--ca-file", made["ca_file"], *shown)
    program.ok(*given, "topic", "create", "hers", "-p", 1, "--bootstrap", made["bootstrap"])
    told = program.ok("local", "certificate", "bob", "--out", tmp_path, "--days", 1)
    assert f"--cert {tmp_path / 'bob.crt'}" in told
    assert "cannot be a user's name" in program.fails("local", "certificate", "../ada", code=2)


def test_a_cluster_without_tls_stays_so(program: "Program", tmp_path: Path) -> None:
    up = ("local", "up", "-f", write_manifest(tmp_path), "--detach", "--port", 0)
    bootstrap = program.ok(*up).split("running on ")[1].split(";")[0]
    assert "was made without --secure" in program.fails(*up, "--secure")
    assert "no cluster with --secure" in program.fails("local", "token", "ada")
    assert "there are no certificates" in program.fails("local", "certificate", "ada")
    (tmp_path / "ca.crt").write_bytes(Authority.new("test").certificate)
    given = ("--ca-file", tmp_path / "ca.crt")
    told = program.fails(*given, "topic", "list", "--bootstrap", bootstrap)
    assert "does not use TLS" in told
    program.ok("local", "down")
