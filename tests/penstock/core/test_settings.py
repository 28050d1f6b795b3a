"""Settings are refused at the edge, with the value seen and the limits."""

from pathlib import Path

import pytest

from penstock.core.control.config import parse_control_number
from penstock.core.limits import INT64_MAX
from penstock.core.settings import (
    BROKER_SETTINGS,
    CLUSTER_SETTINGS,
    parse_broker_setting,
    split_config,
)
from penstock.errors import ErrorCode, MisuseError


@pytest.mark.parametrize("text", ["0", "1001", "-1", "many", ""])
def test_partitions_of_the_internal_topic_are_1_to_1000(text: str) -> None:
    for fine in ("1", "1000"):
        assert parse_broker_setting("transactions.topic.partitions", fine) == int(fine)
    with pytest.raises(MisuseError, match="from 1 to 1000") as refused:
        parse_broker_setting("transactions.topic.partitions", text)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_number_of_the_controller_may_have_any_length_and_is_refused() -> None:
    with pytest.raises(MisuseError, match="a whole number from 1 to 5000"):
        parse_control_number("num.partitions", "9" * 5_000)


def test_every_setting_is_known_by_the_name_on_the_page_of_settings() -> None:
    page = (Path(__file__).parents[3] / "docs/resources.md").read_text()
    assert [one.key for one in CLUSTER_SETTINGS if f"`{one.key}`" not in page] == []
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for one in BROKER_SETTINGS:
        assert f"| `{one.default}` |" in rows[one.key]
        assert one.maximum == INT64_MAX or f"to {one.maximum} |" in rows[one.key]


def test_settings_go_to_brokers_or_to_controllers() -> None:
    config = {"log.cleaner.backoff.ms": "1", "broker.session.timeout.ms": "2", "retention.ms": "3"}
    assert split_config(config) == (
        {"log.cleaner.backoff.ms": "1"},
        {"broker.session.timeout.ms": "2", "retention.ms": "3"},
    )
