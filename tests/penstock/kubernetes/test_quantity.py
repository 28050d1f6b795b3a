"""Quantities in every form that the API server accepts, and texts that are none."""

from decimal import Decimal

import pytest

from penstock.kubernetes.quantity import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", "0"), ("7", "7"), ("-1.5", "-1.5"), ("+2.", "2"), ("1e3", "1000"), ("1E-2", "0.01"),
        ("3n", "0.000000003"), ("100u", "0.0001"), ("500m", "0.5"),
        ("2k", "2000"), ("1M", "1000000"), ("1G", "1000000000"), ("1T", "1000000000000"),
        ("1P", "1000000000000000"), ("1E", "1000000000000000000"),
        ("0.5Ki", "512"), ("512Mi", "536870912"), ("10Gi", "10737418240"), ("1Ti", "1099511627776"),
        ("1Pi", "1125899906842624"), ("1Ei", "1152921504606846976"),
    ],
)  # fmt: skip
def test_a_quantity_is_a_number_in_its_base_unit(text: str, number: str) -> None:
    assert quantity(text) == Decimal(number)


@pytest.mark.parametrize(
    "text",
    ["", "Gi", "1gi", "1K", "1mi", "1 Gi", "1GiB", "0x1", "1.2.3", "1e999", "nan", "٣", "9" * 31],
)
def test_another_text_is_none(text: str) -> None:
    assert quantity(text) is None
