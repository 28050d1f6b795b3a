"""What operators alone ask of the controller: a part of `contract`, which has the wrapper of their
other requests. `core.control.fencing` decides.
"""

from dataclasses import dataclass

from penstock.core.control.documents import OperatorLease


@dataclass(frozen=True, slots=True)
class AcquireOperatorEpoch:
    """`lease`: which the operator held when it asked, as it last wrote it."""

    request_id: int
    cluster_id: str
    lease: OperatorLease


@dataclass(frozen=True, slots=True)
class OperatorEpochGiven:
    """0: the cluster's format has no operator epochs, and no operator is fenced."""

    epoch: int
