"""RocksDB's words as Penstock's errors, and a gate that lets the last one out first."""

import threading

import pytest

from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock_broker.store.faults import CallGate, storage_errors


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("IO error: No space left on device: While appending", ErrorCode.DISK_FULL),
        ("IO error: Disk quota exceeded", ErrorCode.DISK_FULL),
        ("Corruption: block checksum mismatch", ErrorCode.DATA_CORRUPTED),
        ("IO error: While fdatasync: Input/output error", ErrorCode.STORAGE_FAILED),
        (
            "IO error: While pread offset 7 len 9: /d/000010.blob: Input/output error",
            ErrorCode.DATA_CORRUPTED,
        ),
        (
            "IO error: while stat a file for size: /d/000010.blob: No such file or directory",
            ErrorCode.DATA_CORRUPTED,
        ),
        (
            "IO error: While appending to file: /d/000010.blob: Input/output error",
            ErrorCode.STORAGE_FAILED,
        ),
        (
            "IO error: While pread offset 7 len 9: /d.blob/000010.sst: Input/output error",
            ErrorCode.DATA_CORRUPTED,
        ),
        (
            "IO error: While pread offset 7 len 9: /d.blob/000010.log: Input/output error",
            ErrorCode.STORAGE_FAILED,
        ),
        ("", ErrorCode.STORAGE_FAILED),
    ],
)
def test_every_status_becomes_one_of_three_errors(text: str, code: ErrorCode) -> None:
    with (
        pytest.raises(ClusterError, match="reading slot 3") as caught,
        storage_errors("reading slot 3"),
    ):
        raise Exception(text)  # noqa: TRY002 - what rocksdict raises
    assert caught.value.code is code


@pytest.mark.parametrize(
    "error", [MisuseError("no"), AssertionError("broken"), KeyError("x"), SystemExit(1)]
)
def test_other_errors_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, storage_errors("reading"):
        raise error
    assert caught.value is error


def no_damage(error: ClusterError) -> None:
    pytest.fail(f"{error} is no damage")


def test_shutting_waits_for_who_is_inside_and_refuses_who_comes_later() -> None:
    gate = CallGate(no_damage)
    leave = threading.Event()
    entered = threading.Event()
    order: list[str] = []

    def call() -> None:
        with gate:
            entered.set()
            leave.wait(timeout=120)
            order.append("left")

    def shut() -> None:
        assert gate.shut(timeout_s=120)
        order.append("shut")

    inside, shutter = threading.Thread(target=call), threading.Thread(target=shut)
    inside.start()
    assert entered.wait(timeout=120)
    shutter.start()
    while True:
        try:
            with gate:
                pass
        except ClusterError:
            break
    assert order == []
    leave.set()
    inside.join(timeout=120)
    shutter.join(timeout=120)
    assert order == ["left", "shut"]
    assert not gate.shut(timeout_s=0)


def test_a_gate_that_nobody_leaves_says_so() -> None:
    gate = CallGate(no_damage)
    with gate, pytest.raises(ClusterError, match="still run"):
        gate.shut(timeout_s=0.01)
