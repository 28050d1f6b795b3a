"""`penstock ui` with a cluster that asks who calls: pages show what its user may see, and say at
once what is refused and whom to ask."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.console import ConsoleProcess
from support.local import write_manifest
from support.waiting import wait_until

from penstock.client import Admin, Producer
from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.security import LocalSecurity, write_token

RECORDS = "/topics/flights/records"
ADA = "serviceaccount:local/ada"
TOLD = f"{ADA} may not Describe the cluster: no rule allows it; ask an administrator"


def files(cluster: LocalCluster) -> Any:
    """Its administrator's, as options of clients."""
    return cluster.directory.client_files


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secure")
    options = LocalOptions(secure=True)
    manifest = write_manifest(folder, patient=True)
    with LocalCluster.from_manifest(manifest, data_dir=folder / "d", options=options) as cluster:
        with Producer(cluster.bootstrap, **files(cluster)) as producer:
            producer.send("flights", b"one", partition=0)
        yield cluster


@contextmanager
def console_of(secure: LocalCluster, folder: Path, token: str) -> Iterator[ConsoleProcess]:
    """Signed in."""
    given = ("--ca-file", secure.directory.client_files["ca_file"], "--token-file", token)
    with ConsoleProcess(folder, secure.bootstrap, *given) as console:
        console.sign_in()
        yield console


def words(page: str) -> str:
    shown = html.unescape(re.sub(r"<[^>]*>", " ", page.split("<main", 1)[1]))
    return " ".join(shown.split())


def test_an_administrator_sees_all(secure: LocalCluster, tmp_path: Path) -> None:
    token = secure.directory.client_files["token_file"]
    with console_of(secure, tmp_path, token) as console:
        console.see("/", "All is well")
        console.see(RECORDS, "one")
        assert words(console.see(f"{RECORDS}/0/0", "Save the value").text).endswith(" as a file")
        wait_until(
            lambda: "Could not read" not in console.get("/transactions").text,
            what="transactions are read",
        )


def test_others_are_told_what_is_refused_and_whom_to_ask(
    secure: LocalCluster, tmp_path: Path
) -> None:
    token = tmp_path / "ada.token"
    write_token(token, LocalSecurity(secure.directory, secure.cluster.name).token("ada", 600))
    with console_of(secure, tmp_path, str(token)) as console:
        overview = console.see("/", "You may not see how the cluster is", TOLD)
        assert "No broker answers" not in words(overview.text)
        for path in ("/topics", "/groups", "/transactions"):
            console.see(path, TOLD)
        console.see("/topics", "There are no topics that you may see.")
        # No consumer waits for a topic that its user will never see.
        for path in (RECORDS, f"{RECORDS}/0/0", f"{RECORDS}/0/0/value.bin"):
            console.see(path, "does not exist, or you may not see it", status=404)


def test_who_may_describe_a_topic_but_not_read_it(secure: LocalCluster, tmp_path: Path) -> None:
    token = tmp_path / "bob.token"
    write_token(token, LocalSecurity(secure.directory, secure.cluster.name).token("bob", 600))
    with Admin(secure.bootstrap, **files(secure)) as admin:
        rule = Rule(principals=("serviceaccount:local/bob",), operations=(Operation.DESCRIBE,))
        admin.alter_access(Resource(Kind.TOPIC, "flights"), (rule,))
    with console_of(secure, tmp_path, str(token)) as console:
        console.see("/topics", "flights")
        for path, status in ((RECORDS, 200), (f"{RECORDS}/0/0", 404)):
            console.see(path, "ask an administrator for Read on topic flights", status=status)
        assert "There are no records to read" not in console.get(RECORDS).text


def test_a_token_that_is_refused_is_not_an_outage(secure: LocalCluster, tmp_path: Path) -> None:
    token = tmp_path / "forged.token"
    token.write_text("forged")
    with console_of(secure, tmp_path, str(token)) as console:
        console.see("/", "You may not see how the cluster is", "the token is refused")
