"""docs/tutorials/spark.md runs from its first to its last line."""

import contextlib
import io
from pathlib import Path

from pyspark.sql import SparkSession
from support.documents import ROOT, PageRun

from tools.snippets.page import read_page

HERE = "tests/penstock/spark/test_spark_tutorial.py"


class Session:
    """A Python that has this process's Spark: where a page makes a session, it gets this one."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._names = {"spark": spark}
        self._home = home

    def run(self, text: str, place: str, until: str) -> str:
        """What it prints."""
        assert not until, f"{place} never ends, and nothing interrupts it here"
        text = text.replace('"/tmp/', f'"{self._home}/')
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, place, "exec"), self._names)
        return printed.getvalue()

    def close(self) -> None:
        """Nothing is its own."""


def test_the_tutorial_runs(spark: SparkSession, tmp_path: Path) -> None:
    snippets = read_page(ROOT, "docs/tutorials/spark.md")
    with PageRun(tmp_path / "page", None, Session(spark, tmp_path)) as running:
        running.run(snippets, left_to=HERE)
