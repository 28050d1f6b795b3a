"""Results as people read them: names in full, units as they are written everywhere."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console
from support.terminals import person_there

from penstock.cli.changes import confirm, print_change
from penstock.cli.kube.picture import show_explanation, show_status
from penstock.cli.kube.snapshot import Snapshot
from penstock.cli.kube.status import describe
from penstock.cli.kube.why import Explanation
from penstock.cli.options import Output
from penstock.cli.output import print_record
from penstock.views.findings import Finding


def test_units_and_abbreviations_keep_their_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"mib_per_second": 1.5, "under_min_isr_partitions": 0, "topic_id": "x"}
    print_record(record, Output.TABLE)
    labels = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == ["MiB per second", "Under min ISR partitions", "Topic id"]


EVIL = "\x1b]0;owned\x07\x1b[2K\x9b8mhidden"


def expect_harmless(said: str) -> None:
    assert "hidden" in said
    assert all(one.isprintable() or one == "\n" for one in said)


def test_no_escape_code_of_a_name_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_record({"client": EVIL, "joined": [EVIL], "open": [{"client": EVIL}]}, Output.TABLE)
    seen = capsys.readouterr().out
    assert seen.count("hidden") == 3
    expect_harmless(seen)
    print_change(f"{EVIL} aborted\nand told", {}, Output.TABLE)
    seen = capsys.readouterr().out
    assert seen.endswith(" aborted\nand told\n")
    expect_harmless(seen)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with person_there():
        confirm(f"Abort {EVIL}?", yes=False)
    expect_harmless("".join(capsys.readouterr()))


def test_no_escape_code_of_an_event_reaches_the_terminal() -> None:
    cluster = {"metadata": {"name": "flights", "namespace": "air"}, "spec": {}, "status": {}}
    event = {
        "type": "Warning", "reason": EVIL, "message": f"{EVIL}\nand more",
        "involvedObject": {"kind": "Pod", "name": "flights-broker-0"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = describe(Snapshot(now=datetime.now(UTC), cluster=cluster, events=(event,)))
    findings = (Finding(EVIL, "code", EVIL, evidence=(EVIL,), do=EVIL),)
    for explained in (True, False):
        paper = Console(file=io.StringIO(), width=200)
        if explained:
            show_explanation(Explanation(EVIL, False, findings), paper)
        else:
            show_status(status, paper)
        expect_harmless(paper.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO
