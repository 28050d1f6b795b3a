"""`python -m tools.site`: stages all pages, then has the generator build the site, strictly.

A broken link or anchor, or another warning of the generator, fails it and names the page. Nothing
is fetched, here or by a reader's browser: the site needs no fonts, scripts or pictures of others.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.site.command_reference import command_pages
from tools.site.links import BrokenLinkError, rewrite
from tools.site.pages import DECISIONS, decisions_page, pages
from tools.site.reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
STAGE = "build/site-pages"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class NotBuiltError(Exception):
    """The generator refuses, and says why."""


def stage(root: Path, into: Path) -> int:
    """Writes every page; returns how many files there are. Raises BrokenLinkError."""
    shutil.rmtree(into, ignore_errors=True)
    mapping = pages(root)
    for source, page in mapping.items():
        path = into / page
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            path.write_text(rewrite((root / source).read_text(), source, mapping, root))
        else:
            shutil.copyfile(root / source, path)
    made = {DECISIONS: decisions_page(root), **reference_pages(root), **command_pages()}
    for page, text in made.items():
        path = into / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return len(mapping) + len(made)


def build(folder: Path) -> None:
    """Builds the staged pages of `folder` into build/site there, as its mkdocs.yml says. Raises
    NotBuiltError."""
    generator = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [generator, "build", "--clean", "--strict"],
        cwd=folder, env=os.environ | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:  # after its warnings, the generator says with a traceback that it ends
        raise NotBuiltError(_COLOUR.sub("", done.stdout.partition("Traceback")[0]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.site", description="Build the documentation's site into build/site."
    )
    parser.add_argument("--stage", action="store_true", help="only write the pages, build nothing")
    arguments = parser.parse_args()
    try:
        count = stage(ROOT, ROOT / STAGE)
    except BrokenLinkError as error:
        raise SystemExit(f"docs: {error}") from None
    if arguments.stage:
        print(f"{count} files in {STAGE}")
        return
    try:
        build(ROOT)
    except NotBuiltError as error:
        print(error, file=sys.stderr)
        raise SystemExit(f"docs: the site was not built, see above; pages are in {STAGE}") from None
    print(f"build/site: {count} files; open build/site/index.html")


if __name__ == "__main__":
    main()
