"""Whose a producer id is: ids of users carry a mark of their principal.

    63   62              61 … 36            35 … 0
    0    transactional   mark of the owner  counted by the controller

So every broker knows whose an id is, without asking, remembering or storing anything, also for an
id that another broker gave. An id without an owner (mark 0) was given to somebody who was not asked
who they are; users cannot use it. The mark is not a secret, it is a digest: who may not Write to a
topic gains nothing by an account whose mark is equal, and to be given such an account is up to
administrators.

Ids of transactional producers have no mark: they belong to their transactional id, whoever
holds it. A mark of its name would not do: who may choose names finds two with the same mark. So the
id's coordinator says whose a producer id is, when a transaction joins a partition or group.
"""

from functools import lru_cache
from hashlib import sha256
from typing import Final

from penstock.core.types import ProducerId, is_transactional_producer
from penstock.errors import ClusterError, ErrorCode

_COUNTED_BITS: Final = 36
_MARK_BITS: Final = 26
_MARKS: Final = (1 << _MARK_BITS) - 1


@lru_cache(maxsize=10_000)
def _mark(principal: str) -> int:
    """1 to 2^26 - 1."""
    return int.from_bytes(sha256(principal.encode()).digest()[:8], "big") % _MARKS + 1


def owned_producer_id(counted: int, principal: str) -> int:
    """The id of a new producer; `principal` "": it has no owner.

    Raises ClusterError(INTERNAL) once a cluster has given 2^36 ids.
    """
    if not principal:
        return counted
    if counted >> _COUNTED_BITS:
        raise ClusterError(f"producer id {counted} leaves no room for its owner")
    return _mark(principal) << _COUNTED_BITS | counted


def check_producer_id(producer_id: int, principal: str) -> None:
    """Raises ClusterError(PERMISSION_DENIED) if a user names the id of another's producer.

    `principal` "": a caller that nobody asked who they are, who may name any. Less than 0: no id.
    """
    if producer_id < 0 or not principal or is_transactional_producer(ProducerId(producer_id)):
        return
    if producer_id >> _COUNTED_BITS != _mark(principal):
        raise ClusterError(
            f"{principal} may not use producer id {producer_id}: it was given to somebody else; "
            "call InitProducer without an id for a new one",
            ErrorCode.PERMISSION_DENIED,
        )
