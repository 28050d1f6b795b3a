"""Which operator asks is noted of calls that change something, and passed on."""

from contextvars import copy_context

import pytest

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.operators import OPERATOR_EPOCH, OPERATOR_EPOCH_MAX
from penstock_broker.serving.forwarding import on_behalf
from penstock_broker.serving.operators import note_operator, operator_epoch


class Context:
    """As much of a call as is read."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


def noted(method: str, *metadata: tuple[str, str | bytes]) -> tuple[int, object]:
    """The epoch, and what a broker passes on, in a call of its own."""

    def call() -> tuple[int, object]:
        note_operator(method, Context(*metadata))
        return operator_epoch(), on_behalf()

    return copy_context().run(call)


@pytest.mark.parametrize("epoch", [1, 17, OPERATOR_EPOCH_MAX])
def test_the_epoch_of_a_change_is_passed_on(epoch: int) -> None:
    named = (OPERATOR_EPOCH, str(epoch))
    assert noted("AlterBrokers", ("authorization", "x"), named) == (epoch, (named,))


def test_a_person_names_none() -> None:
    assert noted("AlterBrokers") == (0, ())
    assert noted("AlterBrokers", (OPERATOR_EPOCH, "0")) == (0, ())


def test_questions_are_not_looked_at() -> None:
    assert noted("DescribeMoves", (OPERATOR_EPOCH, "nonsense")) == (0, ())
    assert noted("Check", (OPERATOR_EPOCH, "5")) == (0, ())


@pytest.mark.parametrize("value", ["", "-1", "1.0", "x", "٣", b"1", "9" * 99, str(2**63)])
def test_what_is_no_epoch_is_refused(value: str | bytes) -> None:
    with pytest.raises(ClusterError, match="it must be a number from 0 to") as refused:
        noted("AlterBrokers", (OPERATOR_EPOCH, value))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
