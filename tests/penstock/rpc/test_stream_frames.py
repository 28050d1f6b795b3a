"""Frames: any split of the bytes gives the same messages, and what is no stream is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ClusterError, ErrorCode, NotLeaderError
from penstock.rpc.streams.frames import (
    END,
    MESSAGE,
    PREFACE,
    FrameReader,
    Received,
    end_frame,
    error_of,
    message_frame,
)


def reader(*, most: int = 1_000, first: int = 1_000) -> FrameReader:
    return FrameReader(most, first)


@given(messages=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(0, 600)))
def test_any_split_gives_the_same_messages(messages: list[bytes], cuts: list[int]) -> None:
    sent = PREFACE + b"".join(message_frame(message) for message in messages) + end_frame(None)
    ends = sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)})
    taken: list[tuple[int, Received]] = []
    frames, start = reader(), 0
    for end in ends:
        taken += frames.feed(sent[start:end])
        start = end
    assert taken == [*((MESSAGE, message) for message in messages), (END, b"")]
    assert not frames.has_half_a_frame


def test_a_byte_too_few_is_half_a_frame() -> None:
    frames = reader()
    assert not list(frames.feed(PREFACE + message_frame(b"abc")[:-1]))
    assert frames.has_half_a_frame
    assert list(frames.feed(b"c")) == [(MESSAGE, b"abc")]
    assert not frames.has_half_a_frame


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "47 45 54"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "50 52 49"),
        (PREFACE[:-1] + b"\x02", "version 2 of the format, this is version 1"),
        (PREFACE + b"\x00\x00\x00\x01\x07x", "a frame of kind 7"),
        (PREFACE + b"\x00\x00\x03\xe9\x00", "1001 bytes; at most 1000"),
        (PREFACE + b"\xff\xff\xff\xff\x01", f"{2**32 - 1} bytes; at most 65536"),
    ],
)
def test_what_is_no_stream_is_refused_by_its_first_bytes(sent: bytes, words: str) -> None:
    with pytest.raises(ClusterError, match=words) as refused:
        list(reader().feed(sent))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("at", range(len(PREFACE)))
def test_any_wrong_byte_of_the_preface_is_noticed_when_it_comes(at: int) -> None:
    frames = reader()
    for byte in PREFACE[:at]:
        assert not list(frames.feed(bytes([byte])))
    with pytest.raises(ClusterError):
        list(frames.feed(bytes([PREFACE[at] + 1])))


def test_the_first_message_has_a_limit_of_its_own() -> None:
    frames = reader(most=100, first=10)
    assert list(frames.feed(PREFACE + message_frame(bytes(10)))) == [(MESSAGE, bytes(10))]
    assert list(frames.feed(message_frame(bytes(100)))) == [(MESSAGE, bytes(100))]
    with pytest.raises(ClusterError, match="11 bytes; at most 10 "):
        list(reader(most=100, first=10).feed(PREFACE + message_frame(bytes(11))))


def test_an_end_carries_its_error() -> None:
    error = NotLeaderError("broker 3 leads", ErrorCode.FENCED_LEADER_EPOCH)
    ((kind, body),) = reader().feed(PREFACE + end_frame(error))
    found = error_of(body)
    assert kind == END
    assert isinstance(found, NotLeaderError)
    assert (found.code, str(found)) == (error.code, str(error))
    assert error_of(b"") is None
    garbled = error_of(b"\xff\xff")
    assert garbled is not None
    assert garbled.code is ErrorCode.INVALID_REQUEST
