"""The documentation's site: links lead to pages, and pages tell what the code has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

import penstock.client
from penstock.cli.main import app
from penstock.client import AsyncTransformer
from penstock.errors import ErrorCode
from tools.site.__main__ import stage
from tools.site.command_reference import command_pages, walk
from tools.site.links import BrokenLinkError, rewrite
from tools.site.pages import pages
from tools.site.reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages(ROOT)


def rewritten(text: str, source: str) -> str:
    return rewrite(text, source, PAGES, ROOT)


def test_a_link_leads_to_the_page_wherever_it_lies_on_the_site() -> None:
    assert rewritten("[a](docs/spark.md#options)", "README.md") == "[a](spark.md#options)"
    assert rewritten("[a](../SECURITY.md)", "docs/security.md") == "[a](security-policy.md)"
    assert (
        rewritten("[a](../../docs/security.md)", "examples/go/README.md") == "[a](../security.md)"
    )
    assert rewritten("[a](docs/decisions)", "README.md") == "[a](decisions/index.md)"
    assert rewritten("[a\nb](docs/spark.md)", "README.md") == "[a\nb](spark.md)"
    assert rewritten("![a](docs/images/demo.svg)", "README.md") == "![a](images/demo.svg)"


def test_a_link_to_a_file_that_is_no_page_stays_as_text() -> None:
    assert rewritten("see [the test](../tests/conftest.py)", "docs/testing.md") == "see the test"


def test_links_to_other_sites_and_within_the_page_and_code_stay_as_they_are() -> None:
    text = "[a](https://example.org/x.md) [b](#here)\n```\n[c](nowhere.md)\n```"
    assert rewritten(text, "README.md") == text


def test_a_link_to_nothing_is_an_error_that_says_where_it_is() -> None:
    with pytest.raises(BrokenLinkError, match=r"README.md:2: docs/nowhere.md#x does not exist"):
        rewritten("first\n[a](docs/nowhere.md#x)", "README.md")


def test_every_page_is_staged(tmp_path: Path) -> None:
    count = stage(ROOT, tmp_path / "site")
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert len(files) == count
    assert (tmp_path / "site/index.md").read_text().startswith("# Penstock")


def test_the_navigation_names_pages_that_exist_and_leaves_out_only_decisions_and_runbooks(
    tmp_path: Path,
) -> None:
    stage(ROOT, tmp_path)
    named = set(re.findall(r":\s+([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert named <= there
    listed = {"decisions/index.md", "runbooks/index.md"}
    folders = ("decisions/", "runbooks/")
    assert {page for page in there - named if not page.startswith(folders)} == set()
    assert {page for page in named if page.startswith(folders)} <= listed


def test_mkdocs_with_its_theme_material_could_build_the_site_too() -> None:
    """It refuses a theme without a name, and the theme has no icons of the set `lucide`."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    theme = settings["theme"]
    assert theme["name"] == "material"
    icons = [palette["toggle"]["icon"] for palette in theme["palette"]]
    assert len(icons) == 2
    assert {icon.partition("/")[0] for icon in icons} == {"material"}
    assert not settings.get("plugins")


def test_the_links_that_a_package_index_shows_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "hatch_fancy_pypi_readme"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    stage(ROOT, tmp_path)
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://penstock.dev/"), link
        page = link.removeprefix("https://penstock.dev/").partition("#")[0].rstrip("/")
        there = [tmp_path / page, tmp_path / f"{page}.md", tmp_path / page / "index.md"]
        assert any(path.is_file() for path in there), link


def test_every_command_and_every_error_has_its_place_in_the_reference() -> None:
    (commands,) = command_pages().values()
    for group in app.registered_groups:
        assert not isinstance(group.name, str) or f"## `penstock {group.name} " in commands
    assert "## `kubectl penstock drain`" in commands
    assert "## `penstock why`" in commands
    assert "## `penstock verify run`" in commands
    errors = reference_pages(ROOT)["reference/errors.md"]
    assert all(f"| `{code.name}` |" in errors for code in ErrorCode)


def sections_of(page: str) -> dict[str, str]:
    """Heading → what is below it, up to the next one."""
    parts = re.split(r"^###? ", page, flags=re.MULTILINE)[1:]
    return {title.strip("`"): body for title, _, body in (one.partition("\n") for one in parts)}


def test_the_reference_has_the_examples_of_every_command() -> None:
    (text,) = command_pages().values()
    sections = sections_of(text)
    shown = 0
    for path, command in walk(typer.main.get_command(app), ("penstock",)):
        title = " ".join(path)
        body = sections.get(title) or sections[f"kubectl {title}"]
        for line in (command.epilog or "").replace("\b", "").split("\n"):
            if line.strip() and line != "Example:":
                assert f"\n{line.strip()}\n" in body.partition("```sh")[2], title
                shown += 1
    assert shown > 100


def python_sections() -> dict[str, str]:
    return sections_of(reference_pages(ROOT)["reference/python.md"])


def test_the_python_reference_has_no_entry_without_words() -> None:
    bodies = {
        title: re.sub(r"```.*?```", "", body, flags=re.DOTALL)
        for title, body in python_sections().items()
    }
    assert not [title for title, body in bodies.items() if not body.strip()]


def test_the_python_reference_has_every_public_name_and_every_field() -> None:
    sections = python_sections()
    fields = {("Record", "offset"), ("DecodedRecord", "error"), ("ProducerConfig", "linger_ms")}
    seen = set()
    for name in penstock.client.__all__:
        assert name in sections
        thing = getattr(penstock.client, name)
        known = getattr(thing, "__dataclass_fields__", getattr(thing, "_fields", ()))
        for field in known:
            if not field.startswith("_"):
                assert f"| `{field}` |" in sections[name], f"{name}.{field}"
                seen.add((name, field))
    assert fields <= seen


def test_the_python_reference_has_calls_and_the_arguments_of_clients() -> None:
    sections = python_sections()
    assert "json_decoder() -> Decoder" in sections["json_decoder"]
    assert "async_transform(" in sections["async_transform"]
    assert "    handle: " in sections["transform"]
    assert "    linger_ms: int = 5," in sections["Producer()"]
    assert "    group_id: str," in sections["WorkerPool()"]
    assert "Out()" not in sections  # made by a transformer


def test_the_python_reference_leaves_out_what_is_internal() -> None:
    sections = python_sections()
    assert (AsyncTransformer.between.__doc__ or "").startswith("Internal")
    assert "AsyncTransformer.between" not in sections
    assert "Producer.close_at_exit" not in sections
    assert not [title for title, body in sections.items() if "\nInternal" in body]
