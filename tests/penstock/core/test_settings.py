"""Settings are refused at the edge, with the value seen and the limits."""

import pytest

from penstock.core.settings import parse_broker_setting
from penstock.errors import ErrorCode, MisuseError


@pytest.mark.parametrize("text", ["0", "1001", "-1", "many", ""])
def test_partitions_of_the_internal_topic_are_1_to_1000(text: str) -> None:
    for fine in ("1", "1000"):
        assert parse_broker_setting("transactions.topic.partitions", fine) == int(fine)
    with pytest.raises(MisuseError, match="at least 1 and at most 1000") as refused:
        parse_broker_setting("transactions.topic.partitions", text)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
