"""Operations, what they are done to, and the rules that allow them.

own rules of a topic or a group   principals, operations
rules of the cluster              principals, role                        admin, viewer
                                  principals, operations, a prefix        of topics, groups, ids
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Operation(StrEnum):
    """What may be allowed. Each includes Describe."""

    CREATE = "Create"
    READ = "Read"
    WRITE = "Write"
    DESCRIBE = "Describe"
    ALTER = "Alter"
    DELETE = "Delete"
    RESET = "Reset"


class AccessRole(StrEnum):
    """What a rule of the cluster can give at once."""

    ADMIN = "admin"
    """Everything."""
    VIEWER = "viewer"
    """To describe everything, and read no record."""


class Kind(Enum):
    """What operations are done to; the value is its name in messages."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


OPERATIONS: Final[Mapping[Kind, tuple[Operation, ...]]] = {
    Kind.TOPIC: (
        Operation.CREATE,
        Operation.READ,
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.ALTER,
        Operation.DELETE,
    ),
    Kind.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.RESET),
    Kind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Kind.CLUSTER: (Operation.DESCRIBE, Operation.ALTER),
}
"""Which operations there are for what. Those of the cluster are given by roles alone."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What an operation is done to. The cluster has no name."""

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}" if self.name else f"the {self.kind.value}"


CLUSTER: Final = Resource(Kind.CLUSTER)


@dataclass(frozen=True, slots=True)
class Prefix:
    """All resources of a kind whose names begin with `text`; empty: all of them."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allows each of its principals each of its operations.

    Attributes:
        principals: As "serviceaccount:etl/spark", "serviceaccount:etl/*" (every account of a
            namespace), "cert:ada", "oidc:<issuer>/<subject>", "oidc-group:<issuer>/<group>"; "*":
            everybody who is known.
        operations: Empty with a role, and only then.
        role: In the cluster's rules only.
        prefix: In the cluster's rules only, and always there unless the rule gives a role.
    """

    principals: tuple[str, ...]
    operations: tuple[Operation, ...] = ()
    role: AccessRole | None = None
    prefix: Prefix | None = None
