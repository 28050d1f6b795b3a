"""`penstock quota …` against a real cluster, which stores quotas and asks nobody who they are."""

import json
from pathlib import Path
from typing import Any

from support.cluster import Cluster
from typer.testing import CliRunner

from penstock.cli.main import app


def test_quotas_are_set_shown_and_removed(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:

        def run(*words: str, code: int = 0) -> str:
            env = {"PENSTOCK_BOOTSTRAP": cluster.bootstrap}
            done: Any = CliRunner().invoke(app, ["quota", *words], env=env)
            assert done.exit_code == code, done.output
            return str(done.output)

        def rows() -> Any:
            return json.loads(run("list", "-o", "json"))

        assert "there are no quotas" in run("list")
        run("set", "cert:ada", "--produce-bytes-per-second", "1.5Mi", "--streams", "2")
        assert "produceBytesPerSecond=1572864" in run("list")
        run("set", "*", "--mutations-per-minute", "60")
        run("set", "cert:ada", "--streams", "3")
        assert "mutationsPerMinute=60" in run("list")
        assert rows() == [
            {"principals": ["*"], "limits": {"mutationsPerMinute": 60}},
            {"principals": ["cert:ada"], "limits": {"streams": 3}},
        ]
        assert "no quota names cert:bob" in run("remove", "cert:bob", code=1)
        assert "give at least one limit" in run("set", "cert:bob", code=2)
        wrong = run("set", "cert:bob", "--fetch-bytes-per-second", "1 MB", code=2)
        assert "per-second is '1 MB'; it must be a number of bytes, as 1048576 or 1Mi" in wrong
        assert "is not one" in run("set", "bob", "--streams", "1", code=2)
        run("remove", "cert:ada")
        assert [row["principals"] for row in rows()] == [["*"]]
