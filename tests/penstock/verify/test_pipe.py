"""Members of a recorded pipe: what they go on after."""

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.verify import pipe as pipes
from penstock.verify.pipe import Pipe, PipeConfig


def pipe_whose_members_fail(monkeypatch: pytest.MonkeyPatch, *errors: PenstockError) -> Pipe:
    """One error after the other at a member's start; then all is over."""
    config = PipeConfig(
        bootstrap="127.0.0.1:1", source="a", target="b", group="g", members=1, churn_s=0, settle_s=1
    )
    pipe = Pipe(config, lambda *_: None)
    left = iter(errors)

    def failing(*_: object, **__: Mapping[str, Any]) -> None:
        error = next(left, None)
        if error is None:
            pipe.abandon()
            raise UnreachableError("over")
        raise error

    monkeypatch.setattr(pipes, "Transformer", failing)
    monkeypatch.setattr(pipes, "PAUSE_S", 0.0)
    return pipe


def test_a_member_starts_again_while_brokers_are_down_or_have_just_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = ClusterError("no metadata yet", ErrorCode.LEADER_NOT_AVAILABLE)
    pipe = pipe_whose_members_fail(monkeypatch, UnreachableError("down"), fresh, fresh)
    pipe.work()["pipe-0"]()


def test_a_member_that_is_refused_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = ClusterError("no", ErrorCode.PERMISSION_DENIED)
    pipe = pipe_whose_members_fail(monkeypatch, denied)
    with pytest.raises(ClusterError, match="no"):
        pipe.work()["pipe-0"]()
