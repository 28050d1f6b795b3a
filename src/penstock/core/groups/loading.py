"""Computes a coordinator's state from the records of its log.

    load, load, … ─▶ the newest value per key ─▶ groups, members, what they own, offsets

Records that contradict each other are corruption: a member without a group, or a partition with two
owners (I18). Then the groups of this log are not served at all, rather than wrongly (I16).
"""

from collections.abc import Mapping

from penstock.core.groups.records import (
    CurrentKey,
    CurrentRecord,
    EndedKey,
    EndedRecord,
    GroupKey,
    GroupRecord,
    Key,
    MemberKey,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingRecord,
    TargetKey,
    TargetRecord,
    Value,
    decode_key,
    decode_value,
)
from penstock.core.groups.state import Group, Member
from penstock.errors import ClusterError, ErrorCode


class Loader:
    """Reads a log's records, oldest first, into groups."""

    def __init__(self) -> None:
        self._found: dict[Key, Value] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """The next record. Raises ClusterError(DATA_CORRUPTED)."""
        known = decode_key(key)
        if known is None:
            return
        if value is None:
            self._found.pop(known, None)
        else:
            self._found[known] = decode_value(known, value)

    def ended(self) -> dict[EndedKey, EndedRecord]:
        """How transactions ended here, as of the last record."""
        found = [
            (key, value)
            for key, value in self._found.items()
            if isinstance(key, EndedKey) and isinstance(value, EndedRecord)
        ]
        return dict(sorted(found, key=lambda item: item[1].time_ms))

    def groups(self) -> dict[str, Group]:
        """The state as of the last record. Raises ClusterError(DATA_CORRUPTED)."""
        groups: dict[str, Group] = {}
        for key, value in self._found.items():
            if isinstance(key, GroupKey) and isinstance(value, GroupRecord):
                groups[key.group_id] = Group(key.group_id, value)
        for key, value in self._found.items():
            if isinstance(key, MemberKey) and isinstance(value, MemberRecord):
                group = _known(groups, key)
                group.members[key.member_id] = Member(key.member_id, value)
                if value.instance_id:
                    group.instances[value.instance_id] = key.member_id
        for key, value in self._found.items():
            self._add_to(groups, key, value)
        return groups

    @staticmethod
    def _add_to(groups: dict[str, Group], key: Key, value: Value) -> None:
        match key, value:
            case TargetKey(), TargetRecord():
                group = _known(groups, key)
                _member(group, key).target = value.parts
                group.targets.update(dict.fromkeys(value.parts, key.member_id))
                group.names.update(value.names)
            case CurrentKey(), CurrentRecord():
                group = _known(groups, key)
                _member(group, key).current = value
                owned = dict.fromkeys(value.parts | value.pending, key.member_id)
                if not group.owners.keys().isdisjoint(owned):
                    raise _contradiction(key, "owns a partition that another member owns")
                group.owners.update(owned)
                group.names.update(value.names)
            case OffsetKey(), OffsetRecord():
                part = (key.topic_id, key.partition)
                _known(groups, key).offsets[part] = value
            case PendingKey(), PendingRecord():
                _known(groups, key).pending[key.producer_id] = value
            case _:
                pass


def _known(
    groups: Mapping[str, Group], key: MemberKey | TargetKey | CurrentKey | OffsetKey | PendingKey
) -> Group:
    group = groups.get(key.group_id)
    if group is None:
        raise _contradiction(key, "belongs to a group that was never stored")
    return group


def _member(group: Group, key: TargetKey | CurrentKey) -> Member:
    member = group.members.get(key.member_id)
    if member is None:
        raise _contradiction(key, "belongs to a member that was never stored")
    return member


def _contradiction(key: Key, what: str) -> ClusterError:
    return ClusterError(
        f"the offsets topic is inconsistent: {key} {what}; the partition is unavailable",
        ErrorCode.DATA_CORRUPTED,
    )
