"""A user with a certificate of docs/security.md: the page's openssl makes it, a broker takes it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from support.cluster import Cluster
from support.documents import ROOT
from support.user_certificates import UserCertificates
from support.waiting import wait_until

from penstock.client import Admin
from penstock.core.authorization import Kind, Operation, Resource, Rule
from tools.snippets.page import read_page

HERE: Final = "tests/documents/test_certificates.py"
SHOWN_ADDRESS: Final = "flights.example.com:31200"
"""Of the Cluster's Service for users with certificates; here it is a port of a broker."""


def shell(folder: Path, script: str) -> str:
    """What a script prints in `folder`; it must succeed."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ("bash", "-euc", script),
        env={**clean, "PATH": path, "HOME": str(folder)}, cwd=folder, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}: {done.stderr}"
    return done.stdout


def test_ada_logs_in_with_the_files_that_the_page_makes(tmp_path: Path) -> None:
    snippets = read_page(ROOT, "docs/security.md")
    (makes,) = (one for one in snippets if "openssl x509" in one.text)
    (logs_in,) = (one for one in snippets if one.detail == HERE)
    hers = tmp_path / "hers"
    hers.mkdir()
    shell(hers, makes.text)

    with Cluster(tmp_path / "cluster", brokers=1, secure=True, start=False) as cluster:
        assert cluster.certificates is not None
        (hers / "flights-ca.crt").write_bytes(cluster.certificates.authority.certificate)
        others = UserCertificates(tmp_path / "others", cluster.certificates.authority)
        with others.ca.open("ab") as trusted:
            trusted.write((hers / "ca.crt").read_bytes())
        (broker,) = cluster.brokers.values()
        broker.arguments += ["--certificate-listen", "127.0.0.1:0", "--users-ca", str(others.ca)]
        broker.arguments += ["--admin", "cert:root"]
        cluster.controller.arguments += ["--admin", "cert:root"]
        cluster.start()
        for topic in ("orders", "payments"):
            cluster.create_topic(topic)
        (info,) = cluster.metadata().brokers
        address = f"{info.host}:{info.certificate_port}"
        with Admin(address, request_timeout_ms=20_000, **others.options("root")) as root:
            rule = Rule(principals=("cert:ada",), operations=(Operation.READ,))
            root.alter_access(Resource(Kind.TOPIC, "orders"), [rule])

        assert SHOWN_ADDRESS in logs_in.text
        command = logs_in.text.replace(SHOWN_ADDRESS, address)
        told = ""

        def sees_orders() -> bool:
            nonlocal told
            told = shell(hers, command)
            return "orders" in told

        wait_until(sees_orders, what="the rule arrives")
        assert "payments" not in told, "she is let in as herself"
