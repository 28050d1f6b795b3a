"""Whose a producer id is."""

import pytest

from penstock.core.authorization.producers import check_producer_id, owned_producer_id
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT
from penstock.errors import ClusterError, ErrorCode

ADA, BOB = "serviceaccount:etl/ada", "serviceaccount:etl/bob"


@pytest.mark.parametrize("counted", [0, 1, 2**36 - 1])
def test_an_id_is_its_owners_alone(counted: int) -> None:
    made = owned_producer_id(counted, ADA)
    assert 0 < made < TRANSACTIONAL_PRODUCER_BIT
    assert made & (2**36 - 1) == counted, "ids stay different"
    check_producer_id(made, ADA)
    with pytest.raises(ClusterError, match="may not use producer id") as refused:
        check_producer_id(made, BOB)
    assert refused.value.code is ErrorCode.PERMISSION_DENIED


def test_without_an_owner_ids_are_as_they_were() -> None:
    assert owned_producer_id(7, "") == 7
    check_producer_id(owned_producer_id(7, ADA), "")
    check_producer_id(7, "")
    with pytest.raises(ClusterError):
        check_producer_id(7, ADA)


def test_what_has_no_owner_to_check() -> None:
    check_producer_id(-1, ADA)
    check_producer_id(TRANSACTIONAL_PRODUCER_BIT | 7, ADA)


def test_a_cluster_that_has_given_too_many_says_so() -> None:
    with pytest.raises(ClusterError, match="leaves no room"):
        owned_producer_id(2**36, ADA)
