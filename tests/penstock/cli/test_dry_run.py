"""`--dry-run` of commands that no other test tries: it says what would be done, and nothing is."""

import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import BatchRun, Producer

if TYPE_CHECKING:
    from .conftest import Program

TRAINS = """---
apiVersion: penstock.dev/v1alpha1
kind: Topic
metadata: {name: trains}
spec: {cluster: test, partitions: 3}
"""


class Scene:
    """A running local cluster with an open transaction, a ledger and profiles."""

    def __init__(self, program: "Program") -> None:
        self.folder = program.folder
        self._environment = program.environment
        manifest = program.folder / "cluster.yaml"
        self.changed = program.folder / "changed.yaml"
        self.changed.write_text(manifest.read_text() + TRAINS)
        (listed,) = self.json("local", "list")
        self.bootstrap = str(listed["bootstrap"])

    def run(self, *words: object) -> str:
        done: Any = CliRunner().invoke(
            app, [str(one) for one in words], env=self._environment, catch_exceptions=False
        )
        assert done.exit_code == 0, f"{words}: {done.output}"
        return str(done.stdout)

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "-o", "json"))

    def commit_batch(self) -> None:
        """As a Spark query does."""
        run = BatchRun("spark/flights", "query", str(uuid.uuid4()), 0)
        with Producer(self.bootstrap, transactional_id="spark/flights") as producer:
            branches = producer.branches()
            branch = branches.begin(run, 0, 0)
            assert branch is not None
            branches.send_columns("flights", [b"row"])
            branches.hand_over()
            branches.commit_batch(run, 1, [branch], wait_visible_ms=20_000)

    def state(self) -> dict[str, Any]:
        """All that one of the commands could change."""
        local = self.folder / "state/penstock/local"
        (cluster,) = local.iterdir()
        return {
            "clusters": self.json("local", "list"),
            "processes": {
                one["name"]: (one["pid"], one["restarts"], one["up"])
                for one in self.json("local", "status")["processes"]
            },
            "files": {one.name: one.is_dir() or one.read_bytes() for one in cluster.iterdir()},
            "topics": [(one["topic"], one["partitions"]) for one in self.json("topic", "list")],
            "transactions": [
                (one["id"], one["epoch"], one["state"]) for one in self.json("txn", "list")
            ],
            "ledgers": self.json("txn", "ledgers"),
            "profiles": (self.folder / "config/penstock/profiles.yaml").read_bytes(),
        }


@pytest.fixture(scope="module")
def scene(penstock: "Program") -> Iterator[Scene]:
    scene = Scene(penstock)
    scene.commit_batch()
    scene.run("profile", "set", "air", "--bootstrap", "air:9092")
    scene.run("profile", "set", "here", "--bootstrap", scene.bootstrap, "--use")
    with Producer(
        scene.bootstrap,
        transactional_id="pay-0",
        client_id="billing",
        transaction_timeout_ms=600_000,
    ) as producer:
        transaction = producer.transaction()
        transaction.begin()
        transaction.send("flights", b"paid")
        producer.flush()
        yield scene
        transaction.abort()


SAID: Final = {
    "local down": "cluster test could be stopped\n",
    "local down --purge": """cluster test could be stopped
{folder}/state/penstock/local/test: records could be removed
""",
    "local up -f {changed}": """cluster test would change:
  topic trains: create""",
    "local up --cluster other --port 0": """cluster other would start:
  3 brokers and a controller""",
    "txn abort pay-0": "pay-0: 1 open transaction of billing at 127.0.0.1 could be aborted\n",
    "txn forget-ledger spark/flights": "ledger of spark/flights could be deleted\n",
    "profile set sea --bootstrap sea:9092": "profile sea could be set\n",
    "profile set air --bootstrap sea:9092 --use": (
        "profile air could be set, and would be the current one\n"
    ),
    "profile use air": "profile air would be the current one\n",
    "profile remove air": "profile air could be removed\n",
    "profile clear": "no profile would be the current one\n",
}
"""What each command begins with."""


@pytest.mark.parametrize("words", SAID)
def test_what_would_be_done_is_said_and_not_done(scene: Scene, words: str) -> None:
    given = {"folder": scene.folder, "changed": scene.changed}
    before = scene.state()
    told = scene.run(*words.format(**given).split(), "--dry-run")
    assert told.startswith(SAID[words].format(**given))
    assert scene.state() == before
