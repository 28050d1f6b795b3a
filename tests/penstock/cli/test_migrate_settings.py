"""What a copy says in one line: settings that nobody can use, and what is missing at the end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.migrate import _settings, _wrong
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.migration.groups import Translation
from penstock.migration.kafka import Kafka
from penstock.migration.verifying import Verdict


@pytest.mark.parametrize(
    ("name", "value"), [("no.such.setting", "1"), ("security.protocol", "NONSENSE")]
)
def test_librdkafka_refuses_a_setting(name: str, value: str) -> None:
    with pytest.raises(MisuseError, match=f"refuses the settings .*{name}"):
        Kafka("127.0.0.1:1", {name: value})


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_a_file_of_another_cluster_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match=f"another address, {name}=prod:9092; remove that line"):
        Kafka("127.0.0.1:1", {name: "prod:9092"})


def test_a_file_of_bytes_is_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_bytes(b"\x91\xff\x00")
    with pytest.raises(MisuseError, match="is not text in UTF-8"):
        _settings(file)


@pytest.mark.parametrize(
    ("waiting", "complete", "target", "said"),
    [
        ({TopicPartition("t", 1): 7}, False, 3, "7 offsets of t/1 wait behind an open transaction"),
        ({}, False, 3, "the source has records that were not copied yet"),
        ({}, True, -1, "groups are further in the source than the copy: g in t/0"),
        ({}, True, 3, ""),
    ],
)
def test_what_is_missing_is_said(
    waiting: dict[TopicPartition, int], complete: bool, target: int, said: str
) -> None:
    done: Any = SimpleNamespace(waiting=waiting, complete=complete, elsewhere="")
    moved = [("g", Translation(TopicPartition("t", 0), 5, target))]
    found = _wrong(done, [], moved, {})
    assert found.startswith(f"copy not complete: {said}" if said else "")
    assert bool(found) is bool(said)
    done.elsewhere = "keys lie elsewhere"
    assert _wrong(done, [], moved, {"h": "x"}) == "keys lie elsewhere"
    differs = Verdict(TopicPartition("t", 0), 5, 4, same=False)
    assert _wrong(done, [differs], moved, {}).startswith("the copy differs from what was read")
    done.elsewhere = ""
    if not said:
        assert _wrong(done, [], moved, {"h": "x"}).startswith("groups were not moved: h: x; ")
