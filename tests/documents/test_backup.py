"""The programs of docs/how-to/backup.md, where topics come and go and runs get into each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.documents import ROOT

from penstock.client import Admin, Consumer, Producer
from penstock.errors import ClusterError, ErrorCode
from tools.snippets.page import read_page

SAVE, RESTORE = (
    one.text for one in read_page(ROOT, "docs/how-to/backup.md") if one.language == "python"
)


class Page:
    """Its programs, in a folder of their own, on topics `flights` and others."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._names: dict[str, Any] = {}
        functions, _, _ = SAVE.rpartition("print(")
        exec(functions, self._names)

    def back_up(self, topic: str) -> int:
        count: int = self._names["back_up"](self.bootstrap, topic, "backup")
        return count

    def restore(self) -> None:
        exec(RESTORE.replace("localhost:9092", self.bootstrap), self._names)

    def create(self, topic: str) -> None:
        with Admin(self.bootstrap) as admin:
            admin.create_topic(topic, partitions=3)

    def delete(self, topic: str) -> None:
        with Admin(self.bootstrap) as admin:
            admin.delete_topic(topic)

    def fill(self, topic: str, count: int, tag: str) -> None:
        with Producer(self.bootstrap) as producer:
            for each in range(count):
                producer.send(topic, f"{tag}{each}".encode(), key=str(each).encode())
            producer.flush()

    def read(self, topic: str) -> list[bytes]:
        with Consumer(self.bootstrap) as consumer:
            batches = consumer.read_to_end(topic).batches
        return sorted(record.value or b"" for batch in batches for record in batch.records())


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Cluster(tmp_path / "cluster", brokers=1) as cluster:
        yield Page(cluster.bootstrap)


def test_a_topic_that_was_made_again_is_restored_with_all_it_ever_had(page: Page) -> None:
    page.create("flights")
    page.fill("flights", 100, "old")
    assert page.back_up("flights") == 100
    assert page.back_up("flights") == 0, "it goes on behind them"
    page.delete("flights")
    page.create("flights")
    page.fill("flights", 90, "new")
    assert page.back_up("flights") == 90
    page.create("flights-late")
    page.fill("flights-late", 20, "late")
    assert page.back_up("flights-late") == 20
    page.restore()
    wanted = [f"old{n}".encode() for n in range(100)] + [f"new{n}".encode() for n in range(90)]
    assert page.read("flights-restored") == sorted(wanted)


def test_what_a_killed_run_wrote_is_restored_once(page: Page) -> None:
    page.create("flights")
    page.fill("flights", 50, "a")
    assert page.back_up("flights") == 50
    with Admin(page.bootstrap) as admin:
        admin.delete_group("backup-flights")  # as if it was killed before it could commit
    page.fill("flights", 5, "b")
    assert page.back_up("flights") == 55
    page.restore()
    assert page.read("flights-restored") == page.read("flights")


def test_a_run_beside_a_member_of_its_group_does_not_end_well(page: Page) -> None:
    page.create("flights")
    page.fill("flights", 10, "a")
    with Consumer(page.bootstrap, group_id="backup-flights", auto_offset_reset="earliest") as other:
        other.subscribe("flights")
        other.poll(timeout_s=10)
        with pytest.raises(ClusterError) as raised:
            page.back_up("flights")
    assert raised.value.code is ErrorCode.GROUP_NOT_EMPTY
    assert page.back_up("flights") == 10


def test_what_is_open_when_a_run_begins_is_left_to_the_next_one(page: Page) -> None:
    """And the markers of what has ended, which nobody is given, do not keep it waiting."""
    page.create("flights")
    with Producer(page.bootstrap, transactional_id="one") as producer:
        with producer.transaction() as tx:
            tx.send("flights", b"seen", key=b"k")
        with producer.transaction() as tx:
            tx.send("flights", b"later", key=b"k")
            producer.flush()
            assert page.back_up("flights") == 1
    assert page.back_up("flights") == 1
