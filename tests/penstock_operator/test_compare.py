"""A live object is compared by quantities in two forms, and by texts that only look like one."""

import pytest

from penstock_operator.compare import contains


@pytest.mark.parametrize("fingerprint", ["12e34567890123456789", "1E999999999999999999", "7e123"])
def test_a_fingerprint_that_reads_as_a_power_of_ten_is_only_a_text(fingerprint: str) -> None:
    assert contains({"hash": fingerprint}, {"hash": fingerprint})
    assert not contains({"hash": "1"}, {"hash": fingerprint})
    assert not contains({"hash": fingerprint}, {"hash": "0" + fingerprint})


@pytest.mark.parametrize(
    ("live", "wanted"), [("1", "1000m"), ("1Gi", "1024Mi"), ("1e3", "1k"), ("0.5", "500m")]
)
def test_the_server_may_write_a_quantity_in_another_form(live: str, wanted: str) -> None:
    assert contains({"cpu": live}, {"cpu": wanted})
    assert not contains({"cpu": live + "1"}, {"cpu": wanted})
