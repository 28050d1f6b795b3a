"""Every snippet of every page is tested: it has the right form, and it runs if it can run here."""

from pathlib import Path

import pytest
from support.cluster import Cluster
from support.documents import ROOT, PageRun, is_run, missing_programs, starts_a_cluster
from support.missing import cannot_run

from tools.snippets.check import named_problems, problems
from tools.snippets.page import SnippetError, documents, read_page

PAGES = documents(ROOT)


def runs(page: str) -> bool:
    """Whether anything of it does; a page that cannot be read fails when its test runs."""
    try:
        return any(map(is_run, read_page(ROOT, page)))
    except SnippetError:
        return True


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_have_the_form_that_they_need(page: str) -> None:
    assert problems(read_page(ROOT, page), ROOT) == []


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_that_a_text_names_exist(page: str) -> None:
    assert named_problems((ROOT / page).read_text(), page) == []


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_the_snippets_of_a_page_run(page: str, tmp_path: Path) -> None:
    snippets = read_page(ROOT, page)
    if missing := missing_programs(snippets):
        cannot_run(f"not installed here: {', '.join(missing)}")
    if starts_a_cluster(snippets):
        with PageRun(tmp_path / "page", None) as running:
            running.run(snippets)
    else:
        with (
            Cluster(tmp_path / "cluster", brokers=3) as cluster,
            PageRun(tmp_path / "page", cluster) as running,
        ):
            running.run(snippets)
