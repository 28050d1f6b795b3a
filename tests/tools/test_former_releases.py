"""Former releases, which scenarios run beside this one: e2e/releases.txt."""

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from support.missing import cannot_run

import e2e.__main__  # noqa: F401 - registers the scenarios
from e2e.harness import images, releases
from e2e.harness.process import ROOT, E2EError
from e2e.harness.scenario import REGISTRY

NOWHERE = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trees are kept, empty."""
    monkeypatch.setattr(releases, "cache", lambda: tmp_path)
    return tmp_path / "releases"


def test_scenarios_ask_only_for_releases_of_the_list() -> None:
    asked = {release for one in REGISTRY.values() for release in one.releases}
    assert asked == set(releases.commits()), "each one of the list is played, too"


def test_a_release_is_older_than_those_below_it_and_than_this_one() -> None:
    commits = [*releases.commits().values(), "HEAD"]
    for older, newer in pairwise(commits):
        compared = subprocess.run(
            ["git", "merge-base", "--is-ancestor", older, newer],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if compared.returncode > 1:
            cannot_run(f"this clone lacks {older} or {newer}: {compared.stderr.strip()}")
        assert compared.returncode == 0, f"{older} is not in the history of {newer}"


def test_a_releases_tree_has_what_its_images_and_its_installation_are_made_of(folder: Path) -> None:
    for name in releases.commits():
        try:
            tree = releases.tree(name)
        except E2EError as error:
            cannot_run(str(error))
        assert tree.parent == folder
        for image in images.former(name):
            assert (tree / image.dockerfile).is_file()
        assert (tree / "charts/penstock/files/crds/clusters.yaml").is_file()
        assert releases.tree(name) == tree, "the second time it is there"


def test_a_commit_that_this_clone_lacks_is_named_and_leaves_no_tree(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "commits", lambda: {"N-9": NOWHERE})
    for _ in range(2):
        with pytest.raises(E2EError, match=NOWHERE):
            releases.tree("N-9")
    assert not (folder / NOWHERE).exists()


def test_images_of_releases_differ_in_their_tags() -> None:
    former = [image for name in releases.commits() for image in images.former(name)]
    tags = [image.tag for image in [*images.IMAGES.values(), *former]]
    assert len(set(tags)) == len(tags)
    assert "penstock-broker:n-2" in tags
