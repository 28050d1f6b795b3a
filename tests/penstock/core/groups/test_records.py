"""Records of groups: back as they went in, the same bytes for the same state, no guesses."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.groups.loading import Loader
from penstock.core.groups.records import (
    AppliedReset,
    CurrentKey,
    CurrentRecord,
    GroupKey,
    GroupRecord,
    Key,
    MemberKey,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    TargetKey,
    TargetRecord,
    Value,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.core.types import TopicId
from penstock.errors import ClusterError, ErrorCode

text = st.text(st.characters(codec="utf-8"), max_size=12)
number = st.integers(0, 2**62)
topic = st.sampled_from([TopicId("t"), TopicId("u")])
named = st.frozensets(st.tuples(topic, st.integers(0, 20)))
NAMES = {"t": "Flüge", "u": "u"}


def only(parts: frozenset[tuple[TopicId, int]]) -> dict[TopicId, str]:
    return {topic_id: NAMES[topic_id] for topic_id, _ in parts}


entries = st.one_of(
    st.tuples(
        st.builds(GroupKey, text),
        st.builds(
            GroupRecord,
            epoch=number,
            assignment_epoch=number,
            assignor=text,
            empty_since_ms=number,
            reset=st.none() | st.builds(AppliedReset, text, text, number),
        ),
    ),
    st.tuples(
        st.builds(MemberKey, text, text),
        st.builds(
            MemberRecord,
            instance_id=text,
            client_id=text,
            client_host=text,
            rack=text,
            topics=st.lists(text).map(tuple),
            pattern=text,
            assignor=text,
            session_timeout_ms=number,
            rebalance_timeout_ms=number,
        ),
    ),
    st.tuples(
        st.builds(TargetKey, text, text),
        named.map(lambda parts: TargetRecord(parts, only(parts))),
    ),
    st.tuples(
        st.builds(CurrentKey, text, text),
        st.builds(
            lambda epoch, parts, pending, left: CurrentRecord(
                epoch=epoch, parts=parts, pending=pending, names=only(parts | pending), left=left
            ),
            number,
            named,
            named,
            st.booleans(),
        ),
    ),
    st.tuples(
        st.builds(OffsetKey, text, topic, number),
        st.builds(
            OffsetRecord,
            topic=text,
            offset=number,
            leader_epoch=st.integers(-1, 9),
            metadata=text,
            time_ms=number,
            reset_id=text,
            reason=text,
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


def test_the_bytes_are_what_other_versions_will_read() -> None:
    """Written into logs: a change here needs another version."""
    key = OffsetKey("g", TopicId("id"), 3)
    assert encode_key(key) == b'[1,"offset","g","id",3]'
    value = OffsetRecord(topic="t", offset=7, leader_epoch=2, metadata="m", time_ms=1_000)
    assert (
        encode_value(value)
        == b'{"v":1,"topic":"t","offset":7,"epoch":2,"time":1000,"metadata":"m"}'
    )
    assert encode_value(replace(value, metadata="", rewind_epoch=3)) == (
        b'{"v":1,"topic":"t","offset":7,"epoch":2,"time":1000,"rewind_epoch":3}'
    )
    parts = frozenset({(TopicId("id"), 2), (TopicId("id"), 1)})
    current = CurrentRecord(epoch=5, parts=parts, pending=frozenset(), names={TopicId("id"): "t"})
    assert (
        encode_value(current)
        == b'{"v":1,"epoch":5,"parts":[["id","t",[1,2]]],"pending":[],"left":false}'
    )


@pytest.mark.parametrize("key", [b"[2]", b"[]", b'[2,"offset","g"]', b'[1,"quota","g"]'])
def test_a_key_of_another_version_is_skipped(key: bytes) -> None:
    loader = Loader()
    loader.add(key, b"whatever")
    assert loader.groups() == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"nonsense", b"{}"),
        (b"{}", b"{}"),
        (b'[1,"offset","g"]', b"{}"),
        (b'[1,"group",7]', b"{}"),
        (b'[1,"group","g"]', b"[]"),
        (b'[1,"group","g"]', b'{"v":1}'),
        (b'[1,"member","g","m"]', b'{"v":1}'),
        (b'[1,"target","g","m"]', b'{"v":1,"parts":[]}'),
        (b'[1,"offset","g","t",0]', b'{"v":1,"topic":"t","offset":1,"epoch":0,"time":0}'),
    ],
)
def test_what_cannot_be_understood_is_corruption_and_never_guessed(
    key: bytes | None, value: bytes
) -> None:
    def load() -> None:
        loader = Loader()
        loader.add(key, value)
        loader.groups()

    with pytest.raises(ClusterError) as caught:
        load()
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_two_owners_in_a_log_are_corruption() -> None:
    loader = Loader()
    parts = frozenset({(TopicId("t"), 0)})
    loader.add(encode_key(GroupKey("g")), encode_value(GroupRecord()))
    for member in "mn":
        loader.add(encode_key(MemberKey("g", member)), encode_value(MemberRecord()))
        current = CurrentRecord(epoch=1, parts=parts, pending=frozenset(), names=only(parts))
        loader.add(encode_key(CurrentKey("g", member)), encode_value(current))
    with pytest.raises(ClusterError, match="another member owns"):
        loader.groups()
