"""A field of a manifest as a row of a table.

Rows only say what a Kubernetes structural schema can also say (type, range, pattern,
enum, default): `fields` checks YAML against them, `tools/crds.py` writes them as schemas.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """The type of a field. The value is its name in messages."""

    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = "a string"
    SCALAR = "a string or a whole number"
    TIME = "a time such as 2030-01-31T12:00:00Z"
    TEXTS = "a list of strings"
    QUANTITY = "a quantity such as 10Gi"
    QUANTITIES = "a mapping of resource names to quantities"
    LABELS = "a mapping of strings to strings"
    SETTINGS = "a mapping of setting names to values"
    OBJECT = "a mapping"
    OBJECTS = "a list of mappings"
    OPAQUES = "a list of mappings with any content"


RESOURCE_PATTERN: Final = r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|m|k|M|G|T|P)?"
"""The part that makes sense for requests and limits of CPU and memory."""

TEXT_LENGTH_MAX: Final = 253
ITEMS_MAX: Final = 256
"""Items of a list and keys of a mapping, unless the row says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row: name as written in YAML, type, meaning, limits.

    `default` None with `required` False: absent stays absent (`doc` says what that means).
    `minimum` and `maximum` are inclusive and bound an INTEGER. `max_length` bounds TEXT and the
    items of TEXTS, in characters; `pattern` must match all of them, and a SCALAR that is a number
    too: in a CRD its `minimum` says so. `min_items` bounds lists, `max_items` lists and mappings.
    `immutable` fields never change once applied; `immutable_doc` says what to do instead. `fields`
    are the rows of an OBJECT, and of each of the OBJECTS, which `key` distinguishes; without one
    they are replaced as a whole. An absent OBJECT has its fields' defaults; an `optional` one stays
    absent.
    """

    name: str
    kind: Kind
    doc: str
    default: int | str | bool | None = None
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None
    max_length: int = TEXT_LENGTH_MAX
    min_items: int = 0
    max_items: int = ITEMS_MAX
    pattern: str | None = None
    pattern_doc: str = ""
    choices: tuple[str, ...] = ()
    immutable: bool = False
    immutable_doc: str = ""
    optional: bool = False
    key: str = ""
    fields: "tuple[Field, ...]" = ()


def has_default(row: Field) -> bool:
    """Whether an absent field has a value."""
    if row.kind is Kind.OBJECT:
        return not row.optional and any(has_default(nested) for nested in row.fields)
    return row.default is not None or row.kind is Kind.SETTINGS
