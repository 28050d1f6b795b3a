"""Records of transactions: back as they went in, the same bytes for the same state, no guesses."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.transactions.loading import Loader
from penstock.core.transactions.records import (
    Attempt,
    BranchKey,
    BranchRecord,
    Ending,
    EndReason,
    GroupParticipant,
    IdKey,
    IdRecord,
    Key,
    LastEnd,
    LedgerKey,
    LedgerRecord,
    PartitionParticipant,
    Value,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.core.transactions.state import Book
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode

text = st.text(st.characters(codec="utf-8"), max_size=12)
number = st.integers(0, 2**62)
pid = number.map(ProducerId)
participant = st.one_of(
    st.builds(PartitionParticipant, st.sampled_from("tu").map(TopicId), st.integers(0, 20)),
    st.builds(GroupParticipant, text),
)
ending = st.builds(Ending, pid, number, st.booleans())
branch_record = st.builds(
    BranchRecord,
    producer_id=pid,
    epoch=number,
    is_open=st.just(True),
    timeout_ms=number,
    started_ms=number,
    joined=st.frozensets(participant),
    finishing=st.dictionaries(participant, ending),
    last=st.none()
    | st.builds(
        LastEnd,
        producer_id=pid,
        epoch=number,
        commit=st.booleans(),
        reason=st.sampled_from(EndReason),
        time_ms=number,
    ),
    attempt=st.none() | st.builds(Attempt, text, number, number, number),
).filter(lambda record: record.joined.isdisjoint(record.finishing))
texts = st.lists(text, max_size=5).map(tuple)

entries = st.one_of(
    st.tuples(
        st.builds(IdKey, text),
        st.builds(
            IdRecord,
            instance_id=text,
            client_id=text,
            client_host=text,
            timeout_ms=number,
            used_ms=number,
            superseded=texts,
        ),
    ),
    st.tuples(st.builds(BranchKey, text, number), branch_record),
    st.tuples(
        st.builds(LedgerKey, text),
        st.builds(
            LedgerRecord,
            checkpoint=text,
            run=text,
            used_ms=number,
            batch=st.integers(-1, 2**62),
            batch_run=text,
            time_ms=number,
            rows=st.lists(st.tuples(number, number), max_size=5).map(tuple),
            superseded=texts,
            digests=st.lists(st.tuples(number, st.integers(1, 2**64 - 1)), max_size=5).map(tuple),
            replay=text,
        ),
    ),
)


@settings(deadline=None)
@given(entries)
def test_a_record_comes_back_as_it_went_in(entry: tuple[Key, Value]) -> None:
    key, value = entry
    assert decode_key(encode_key(key)) == key
    assert decode_value(key, encode_value(value)) == value


@settings(deadline=None)
@given(entries)
def test_records_are_compact_json(entry: tuple[Key, Value]) -> None:
    for encoded in (encode_key(entry[0]), encode_value(entry[1])):
        document = json.loads(encoded)
        compact = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        assert encoded == compact.encode()


@settings(deadline=None)
@given(branch_record)
def test_the_same_state_is_the_same_bytes(record: BranchRecord) -> None:
    turned = dict(reversed(list(record.finishing.items())))
    values = {name: getattr(record, name) for name in BranchRecord.__slots__}
    assert encode_value(BranchRecord(**{**values, "finishing": turned})) == encode_value(record)


def test_the_bytes_are_what_other_versions_will_read() -> None:
    """Written into logs: a change here needs another version."""
    assert encode_key(IdKey("ü")) == '[1,"id","ü"]'.encode()
    assert encode_key(BranchKey("a", 3)) == b'[1,"branch","a",3]'
    assert encode_key(LedgerKey("a")) == b'[1,"ledger","a"]'
    owner = IdRecord(
        instance_id="i",
        client_id="c",
        client_host="h",
        timeout_ms=5,
        used_ms=6,
        superseded=("j",),
    )
    assert (
        encode_value(owner)
        == b'{"v":1,"instance":"i","client":"c","host":"h","timeout":5,"used":6,"superseded":["j"]}'
    )
    record = BranchRecord(
        producer_id=ProducerId(7),
        epoch=2,
        is_open=True,
        timeout_ms=5,
        started_ms=6,
        joined=frozenset(
            {
                PartitionParticipant(TopicId("t"), 2),
                PartitionParticipant(TopicId("t"), 1),
                GroupParticipant("g"),
            }
        ),
        finishing={
            GroupParticipant("h"): Ending(ProducerId(7), 1, commit=True),
            PartitionParticipant(TopicId("t"), 0): Ending(ProducerId(7), 0, commit=False),
        },
        last=LastEnd(
            producer_id=ProducerId(7),
            epoch=1,
            commit=True,
            reason=EndReason.MEMBER_GONE,
            time_ms=8,
        ),
        attempt=Attempt("r", 1, 2, 3),
    )
    assert encode_value(record) == (
        b'{"v":1,"pid":7,"epoch":2,"open":true,"timeout":5,"started":6,'
        b'"joined":[{"t":[1,2]},["g"]],'
        b'"finishing":[[7,0,false,[{"t":[0]},[]]],[7,1,true,[{},["h"]]]],'
        b'"last":[7,1,true,"member gone",8],"attempt":["r",1,2,3]}'
    )
    ledger = LedgerRecord(
        checkpoint="c",
        run="r",
        used_ms=9,
        batch=4,
        batch_run="q",
        time_ms=8,
        rows=((3, 30), (4, 40)),
        superseded=("p",),
    )
    assert encode_value(ledger) == (
        b'{"v":1,"checkpoint":"c","run":"r","used":9,"batch":4,"batch_run":"q","time":8,'
        b'"rows":[[3,30],[4,40]],"superseded":["p"]}'
    )
    ledger = replace(ledger, digests=((4, 2**64 - 1),))
    assert encode_value(ledger).endswith(
        b'"superseded":["p"],"digests":[[4,18446744073709551615]]}'
    )
    assert decode_value(LedgerKey("a"), encode_value(ledger)) == ledger


def test_participants_have_one_textual_form() -> None:
    assert str(PartitionParticipant(TopicId("t"), 3)) == "partition/t/3"
    assert str(GroupParticipant("a/b")) == "group/a/b"


@pytest.mark.parametrize("key", [b"[2]", b"[]", b'[2,"id","g"]', b'[1,"quota","g"]'])
def test_a_key_of_another_version_is_skipped(key: bytes) -> None:
    loader = Loader()
    loader.add(key, b"whatever")
    book = Book()
    loader.fill(book)
    assert not book.holders


BRANCH = b'{"v":1,"pid":7,"epoch":2,"open":%s,"timeout":5,"started":6%s}'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"nonsense", b"{}"),
        (b"{}", b"{}"),
        (b'[1,"id"]', b"{}"),
        (b'[1,"id",7]', b"{}"),
        (b'[1,"branch","a"]', b"{}"),
        (b'[1,"branch","a","b"]', b"{}"),
        (b'[1,"ledger",1]', b"{}"),
        (b'[1,"id","a"]', b"[]"),
        (b'[1,"id","a"]', b'{"v":1}'),
        (b'[1,"branch","a",0]', b'{"v":1}'),
        (b'[1,"ledger","a"]', b'{"v":1}'),
        (b'[1,"branch","a",0]', BRANCH % (b"false", b"")),  # nobody has stored the id
        (b'[1,"branch","a",0]', BRANCH % (b"false", b',"joined":[{"t":[1]},[]]')),
        (b'[1,"branch","a",0]', BRANCH % (b"true", b',"joined":[[],[]]')),
        (b'[1,"branch","a",0]', BRANCH % (b"true", b',"joined":[{},[7]]')),
        (b'[1,"branch","a",0]', BRANCH % (b"true", b',"last":[1,2]')),
        (b'[1,"branch","a",0]', BRANCH % (b"true", b',"last":[1,2,true,"whim",3]')),
        (
            b'[1,"branch","a",0]',
            BRANCH % (b"true", b',"joined":[{"t":[1]},[]],"finishing":[[7,1,true,[{"t":[1]},[]]]]'),
        ),
    ],
)
def test_what_cannot_be_understood_is_corruption_and_never_guessed(
    key: bytes | None, value: bytes
) -> None:
    def load() -> None:
        loader = Loader()
        loader.add(key, value)
        loader.fill(Book())

    with pytest.raises(ClusterError) as caught:
        load()
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_one_producer_id_in_two_branches_is_corruption() -> None:
    loader = Loader()
    for name in "ab":
        loader.add(encode_key(IdKey(name)), encode_value(IdRecord()))
        loader.add(
            encode_key(BranchKey(name, 0)), encode_value(BranchRecord(producer_id=ProducerId(7)))
        )
    with pytest.raises(ClusterError, match="has producer id 7, as 'a' has"):
        loader.fill(Book())


def test_a_record_without_value_takes_its_key_away() -> None:
    loader = Loader()
    loader.add(encode_key(IdKey("a")), encode_value(IdRecord()))
    loader.add(encode_key(IdKey("a")), None)
    loader.add(encode_key(IdKey("never")), None)
    book = Book()
    loader.fill(book)
    assert not book.holders
