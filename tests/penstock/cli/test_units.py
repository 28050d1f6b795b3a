"""Settings with units become the numbers that the cluster stores."""

import pytest

from penstock.cli.units import plain
from penstock.errors import MisuseError


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "1h30m", "5400000"),
        ("retention.ms", "250ms", "250"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "86400000", "86400000"),
        ("retention.bytes", "10Gi", "10737418240"),
        ("retention.bytes", "10GiB", "10737418240"),
        ("retention.bytes", "1M", "1000000"),
        ("retention.bytes", "-1", "-1"),
        ("cleanup.policy", "compact", "compact"),
        ("min.insync.replicas", "2", "2"),
    ],
)
def test_units_by_the_name_of_the_setting(name: str, text: str, number: str) -> None:
    assert plain({name: text}) == {name: number}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("retention.ms", "7 days", "milliseconds, or a duration as 90s, 12h, 7d"),
        ("retention.ms", "", "milliseconds"),
        ("retention.bytes", "10Gb", "bytes, or a size as 512Ki, 10Mi, 1Gi"),
        ("max.message.bytes", "much", "bytes"),
    ],
)
def test_what_is_no_quantity_names_the_setting_and_the_forms(
    name: str, text: str, wanted: str
) -> None:
    with pytest.raises(MisuseError) as raised:
        plain({name: text})
    assert raised.value.message.startswith(f"{name} is {text!r}; it must be {wanted}")
