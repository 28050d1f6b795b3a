"""Frames: any split of the bytes gives the same messages, and what is no stream is refused."""

import itertools
import threading
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ClusterError, ErrorCode, NotLeaderError
from penstock.rpc.streams.frames import (
    END,
    LARGE_BYTES,
    MESSAGE,
    PREFACE,
    FrameReader,
    Received,
    end_frame,
    error_of,
    message_frame,
)

MOST = 64 * 2**20


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


sizes = (
    st.integers(0, 300)
    | st.integers(LARGE_BYTES - 8, LARGE_BYTES + 8)
    | st.sampled_from([2**18 - 13, 2**18 + 1, 2**20 - 1, 2**20 + 1, 3_500_000])
)
reads = st.lists(
    st.sampled_from([1, 3, 5, 13, 1_000, LARGE_BYTES, 200_000, 2**22]), min_size=1, max_size=8
)
"""What a kernel has to give, again and again from the first; it never fills more than the room."""


def filler(size: int, number: int) -> bytes:
    """A message in which every place can be told from others nearby."""
    pattern = bytes((at * 7 + number) % 251 for at in range(251))
    return (pattern * (size // 251 + 1))[:size]


class Receiver:
    """A connection's end that reads into the room, as a transport does."""

    def __init__(self, messages: Iterable[bytes], counts: Iterable[int]) -> None:
        self.frames = reader(most=MOST, first=MOST)
        self.sent = [(MESSAGE, message) for message in messages]
        self.taken: list[tuple[int, Received]] = []
        frames = b"".join(message_frame(message) for _, message in self.sent)
        self._coming = memoryview(PREFACE + frames)
        self._counts = itertools.cycle([*counts, 200_000])  # single bytes alone take too long

    @property
    def is_done(self) -> bool:
        return not self._coming

    def read(self) -> None:
        room = self.frames.room()
        count = min(len(room), len(self._coming), next(self._counts))
        assert count > 0, "without room, the connection looks closed"
        room[:count] = self._coming[:count]
        self._coming = self._coming[count:]
        self.taken += self.frames.filled(count)  # asyncio has the room in hand meanwhile

    def check(self) -> None:
        assert self.taken == self.sent
        assert not self.frames.has_half_a_frame


@settings(max_examples=60)
@given(messages=st.lists(sizes, max_size=5), counts=reads)
def test_large_and_small_messages_are_received_whatever_each_read_gives(
    messages: list[int], counts: list[int]
) -> None:
    receiver = Receiver(map(filler, messages, itertools.count()), counts)
    while not receiver.is_done:
        receiver.read()
        room = reader().room()  # of another connection: what was received must not be in it
        room[:] = bytes(len(room))
    receiver.check()


@settings(max_examples=40)
@given(
    messages=st.lists(st.lists(sizes, max_size=3), min_size=2, max_size=3),
    counts=reads,
    turns=st.lists(st.integers(0, 2), min_size=1, max_size=9),
)
def test_connections_of_one_thread_do_not_disturb_each_other(
    messages: list[list[int]], counts: list[int], turns: list[int]
) -> None:
    every = [
        Receiver(map(filler, own, itertools.count(100 * at)), counts[at % len(counts) :])
        for at, own in enumerate(messages)
    ]
    for turn in itertools.cycle([*turns, 0, 1, 2]):
        receiver = every[turn % len(every)]
        if not receiver.is_done:
            receiver.read()
        elif all(each.is_done for each in every):
            break
    for receiver in every:
        receiver.check()


def test_another_thread_does_not_disturb_a_read_that_is_under_way() -> None:
    sent, frames = PREFACE + message_frame(b"mine"), reader()
    room = frames.room()
    room[: len(sent)] = sent
    others: list[tuple[int, Received]] = []
    other = threading.Thread(
        target=lambda: others.extend(reader().feed(PREFACE + message_frame(b"theirs, longer")))
    )
    other.start()
    other.join()
    assert list(frames.filled(len(sent))) == [(MESSAGE, b"mine")]
    assert others == [(MESSAGE, b"theirs, longer")]


def test_a_large_message_is_received_where_it_stays() -> None:
    frames, sent = reader(most=MOST, first=MOST), PREFACE + message_frame(filler(100_000, 1))
    assert not list(frames.feed(sent[:50]))
    assert len(frames.room()) == len(sent) - 50
    assert list(frames.feed(sent[50:])) == [(MESSAGE, filler(100_000, 1))]
    larger = filler(3_500_000, 2)
    assert list(frames.feed(message_frame(larger))) == [(MESSAGE, larger)]


def test_a_message_that_is_only_announced_takes_no_memory() -> None:
    """A header costs its sender five bytes: here it must not cost more than has come."""
    frames = reader(most=MOST, first=MOST)
    list(frames.feed(PREFACE + message_frame(b"hello")))
    chunk = bytes(LARGE_BYTES)
    tracemalloc.start()
    try:
        list(frames.feed(MOST.to_bytes(4, "big") + bytes([MESSAGE])))
        for arrived in range(0, MOST // 8, len(chunk)):
            frames.room()
            assert tracemalloc.get_traced_memory()[1] < 2 * 2**20 + 4 * arrived
            assert not list(frames.feed(chunk))
    finally:
        tracemalloc.stop()


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
