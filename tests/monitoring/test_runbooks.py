"""Every alert has a page, every page an alert; the looks of docs/runbooks/*.md answer.

That commands exist, also those in the text, `tests/documents/test_pages.py` checks on all pages.
"""

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.cluster import Cluster
from support.recordings import RULES
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import Consumer
from penstock.core.settings import CLUSTER_SETTINGS
from tools.snippets.page import How, read_page

ROOT: Final = RULES.parents[4]
PAGES: Final = ROOT / "docs" / "runbooks"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def pages() -> dict[str, str]:
    return {path.stem: path.read_text() for path in PAGES.glob("Penstock*.md")}


def looks() -> list[str]:
    """What the pages show as a first look, without what asks Kubernetes."""
    texts = {
        snippet.text
        for name in pages()
        for snippet in read_page(ROOT, f"docs/runbooks/{name}.md")
        if snippet.how is How.ELSEWHERE
    }
    return sorted({line for text in texts for line in text.splitlines()})


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert pages().keys() == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_where_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    said = rule["annotations"]
    assert said["runbook_url"].endswith(f"/runbooks/{rule['alert']}/")
    assert said["summary"]
    assert "{{ $" in said["description"], "it shows a value, or where"


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_has_the_same_parts_in_the_same_order(name: str) -> None:
    headings = re.findall(r"^#+ (.*)$", pages()[name], re.MULTILINE)
    parts = ["What it means", "What users feel", "Look", "Do", "Afterwards"]
    assert headings == [name, *parts]
    assert f"({name}.md)" in (PAGES / "README.md").read_text()


def test_settings_that_pages_name_exist() -> None:
    known = {setting.key for setting in CLUSTER_SETTINGS}
    for name, text in pages().items():
        for key in re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=[^`]*)?`", text):
            assert key in known or key.startswith("spec."), f"{name} names {key}"


def test_what_a_log_says_according_to_a_page_is_logged() -> None:
    """A phrase in code, in a line about a log."""
    folders = (ROOT / "src", ROOT / "broker_image" / "src", ROOT / "operator" / "src")
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    found = [
        (name, phrase)
        for name, text in pages().items()
        for line in text.splitlines()
        if re.search(r"\blogs?\b", line)
        for phrase in re.findall(r"`([a-z]+ [a-z; ]+)`", line)
        if not phrase.startswith(("penstock ", "kubectl ", "chronyc "))
    ]
    assert len(found) > 4
    for name, phrase in found:
        assert f'"{phrase}' in sources, f"{name} names {phrase!r}, which nothing logs"


def test_what_looks_at_the_brokers_answers_from_a_cluster(shared_cluster: Cluster) -> None:
    shared_cluster.create_topic("flights")
    with Consumer(
        shared_cluster.bootstrap, group_id="readers", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe("flights")
        wait_until(lambda: consumer.poll(0.2) or consumer.assignment(), what="it is a member")
        consumer.commit()
        for line in looks():
            words = [*shlex.split(line)[1:], "--bootstrap", shared_cluster.bootstrap]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, f"{line}: {done.output}"


@pytest.mark.parametrize(
    ("lasting", "undone"),
    [
        (r"penstock partitions throttle \d", "penstock partitions throttle default"),
        (r"penstock broker (cordon|drain) 2", "penstock broker uncordon 2"),
        (r"penstock topic alter flights --(un)?set", "`spec.config`"),
    ],
)
def test_a_page_says_how_to_undo_what_lasts(lasting: str, undone: str) -> None:
    """Else the cluster copies slowly, or leaves a broker out, for ever. Of a topic that has a
    resource, the operator undoes what is not written there."""
    found = {name: text for name, text in pages().items() if re.search(lasting, text)}
    assert found
    assert [name for name, text in found.items() if undone not in text] == []


def test_links_lead_to_pages() -> None:
    for name, text in pages().items():
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (PAGES / target).is_file(), f"{name} links to {target}"


def test_the_repository_has_the_pages_that_others_link_to() -> None:
    assert Path(PAGES / "README.md").is_file()
