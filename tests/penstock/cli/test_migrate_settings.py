"""Settings of librdkafka that nobody can use: one line says why."""

from pathlib import Path

import pytest

from penstock.cli.migrate import _settings
from penstock.errors import MisuseError
from penstock.migration.kafka import Kafka


@pytest.mark.parametrize(
    ("name", "value"), [("no.such.setting", "1"), ("security.protocol", "NONSENSE")]
)
def test_librdkafka_refuses_a_setting(name: str, value: str) -> None:
    with pytest.raises(MisuseError, match=f"refuses the settings .*{name}"):
        Kafka("127.0.0.1:1", {name: value})


def test_a_file_of_bytes_is_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_bytes(b"\x91\xff\x00")
    with pytest.raises(MisuseError, match="is not text in UTF-8"):
        _settings(file)
