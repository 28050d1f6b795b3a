"""docs/e2e-results.md has each scenario as it was played last."""

from pathlib import Path

import pytest

import e2e.__main__ as program
from e2e.harness import report
from e2e.harness.report import Figure, Played, Result
from e2e.harness.scenario import REGISTRY


def played(name: str, seconds: float = 1.0, commit: str = "abc") -> Played:
    figures = {"back": Figure(1.5, "s", 3.0)}
    made = Result(name, name.title(), True, seconds, None, "-", figures=figures)
    return Played("2026-11-26", commit, "v1", made)


def test_a_line_is_read_as_it_was_written() -> None:
    assert Played.from_line(played("a").as_line()) == played("a")


def test_what_is_played_replaces_its_row_and_no_other() -> None:
    before = [played("gone"), played("b", commit="old"), played("a", commit="old")]
    found = report.joined(before, [played("b", 2.0, "new")], ["a", "b", "c"])
    assert [(one.result.name, one.commit) for one in found] == [("a", "old"), ("b", "new")]


def test_a_run_renews_the_page_only_if_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAGE", "RESULTS", "LOCAL"):
        monkeypatch.setattr(report, name, tmp_path / name)

    def write(name: str, *, record: bool) -> Path:
        results = [played(name).result]
        return report.write(results, ["a", "b"], kubernetes="v1", at="abc", record=record)

    for one, record in (("a", True), ("b", False)):
        page = write(one, record=record)
        assert page.is_relative_to(tmp_path / ("PAGE" if record else "LOCAL"))
    assert "| A | 1 |" in (tmp_path / "PAGE").read_text()
    assert "| B |" not in (tmp_path / "PAGE").read_text()
    write("b", record=True)
    assert "| A | 1 |" in (tmp_path / "PAGE").read_text()
    assert "| B: back | 1.5 s (limit 3 s) |" in (tmp_path / "PAGE").read_text()


def test_a_figure_over_its_limit_is_no_secret_of_a_row_that_passed() -> None:
    assert "over" not in report.page_of([played("a")])
    late = {"back": Figure(3.01, "s", 3.0), "lost": Figure(0, "", 0), "free": Figure(9, "s")}
    slow = Result("slow", "Slow", True, 1.0, None, "PASS", figures=late)
    page = report.page_of([played("a"), Played("2026-11-26", "abc", "v1", slow)])
    assert "**1 of 3 figures are over their limits**" in page
    assert "| PASS; 1 over its limit |" in page
    assert "| Slow: back | **3.01 s (limit 3 s), over it** |" in page
    assert page.count("over it**") == 1


def test_the_page_is_that_of_the_recorded_lines() -> None:
    lines = report.RESULTS.read_text().splitlines()
    recorded = [Played.from_line(line) for line in lines]
    assert report.PAGE.read_text() == report.page_of(report.joined(recorded, [], list(REGISTRY)))


@pytest.mark.parametrize("other", [["--no-build"], ["--plaintext"], ["--short"], ["--soak", "5"]])
def test_less_than_what_is_shipped_is_not_recorded(
    other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program.parse(["--record", *other])
    assert "--record goes with none of" in capsys.readouterr().err
