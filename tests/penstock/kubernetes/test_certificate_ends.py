"""When servers' certificates end, as controllers share it."""

from datetime import UTC, date, datetime

import pytest

from penstock.kubernetes.certificate_ends import (
    CertificateEnd,
    current,
    ends_in,
    ends_text,
    merged,
    soonest,
)
from penstock.kubernetes.names import CERTIFICATE_ENDS

TODAY = date(2026, 1, 10)
SOON = int(datetime(2026, 1, 20, 12, tzinfo=UTC).timestamp())
LATER = SOON + 86_400


def config_map(text: str) -> dict[str, object]:
    return {"metadata": {"annotations": {CERTIFICATE_ENDS: text}}}


def test_what_is_written_is_read_again() -> None:
    ends = merged({}, {"broker 0": SOON}, ("controller a", LATER), TODAY)
    assert ends == {
        "broker 0": CertificateEnd(SOON),
        "controller a": CertificateEnd(LATER, TODAY),
    }
    assert ends_in(config_map(ends_text(ends))) == ends
    assert soonest(ends) == ("broker 0", CertificateEnd(SOON))
    assert CertificateEnd(SOON).at == "2026-01-20T12:00:00Z"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"a": 1}', '{"a": {}}', '{"a": {"ends": "soon"}}', '{"a": {"ends": 5}}'],
)
def test_what_cannot_be_read_is_not_there(text: str) -> None:
    assert ends_in(config_map(text)) == {}
    assert soonest({}) is None
    assert ends_text({}) == ""


def test_a_broker_that_is_down_keeps_its_row_and_one_that_is_unregistered_does_not() -> None:
    before = {"broker 0": CertificateEnd(SOON), "broker 1": CertificateEnd(SOON)}
    ends = merged(before, {"broker 0": None}, ("controller a", LATER), TODAY)
    assert set(ends) == {"broker 0", "controller a"}
    older = merged(before, {"broker 0": 0}, ("controller a", LATER), TODAY)
    assert set(older) == {"controller a"}, "its release does not say, and what it was may be wrong"


def test_what_no_controller_writes_any_more_does_not_count() -> None:
    ends = {"broker 0": CertificateEnd(SOON), "controller a": CertificateEnd(SOON, TODAY)}
    assert current(ends, date(2026, 1, 12)) == ends
    assert current(ends, date(2026, 1, 13)) == {}
    assert current({"broker 0": CertificateEnd(SOON)}, TODAY) == {}


def test_a_standby_changes_its_own_row_alone() -> None:
    before = {
        "broker 0": CertificateEnd(SOON),
        "controller a": CertificateEnd(SOON, TODAY),
        "controller b": CertificateEnd(SOON, TODAY),
    }
    ends = merged(before, None, ("controller b", LATER), TODAY)
    assert ends == before | {"controller b": CertificateEnd(LATER, TODAY)}


def test_a_controller_that_is_gone_takes_its_row_with_it() -> None:
    before = {"controller old": CertificateEnd(SOON, date(2026, 1, 8))}
    assert "controller old" in merged(before, None, ("controller a", LATER), TODAY)
    next_day = date(2026, 1, 11)
    assert set(merged(before, None, ("controller a", LATER), next_day)) == {"controller a"}
