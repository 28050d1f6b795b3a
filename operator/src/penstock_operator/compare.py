"""Whether a live object still matches the desired one.

The server adds its own fields, so the comparison is one-sided: is everything that we want there,
with the value that we want? Fields that we no longer want show in the fingerprint of the object
that was applied last, which the live object carries. Others may add to a list that the server
merges by a key (`kubectl set env`, a webhook): to apply ours again would not remove that. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.kubernetes.quantity import quantity
from penstock_operator.model import Object
from penstock_operator.names import APPLIED_HASH
from penstock_operator.objects.pods import fingerprint

_EXACT: Final = frozenset({"selector", "matchLabels", "nodeSelector", "podSelector"})
"""Maps whose meaning changes with an additional entry; the server treats each as one value."""
_MERGED: Final = {
    "containers": "name",
    "env": "name",
    "ports": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ownerReferences": "uid",
}
"""Lists that the server merges, and what tells their elements apart. Those without it are others of
the same name, as a NetworkPolicy's ports, and each is one value."""


def stamped(wanted: Object) -> Object:
    """The object with its fingerprint, as it is applied."""
    metadata = wanted["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_HASH: fingerprint(wanted)}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def as_decided(wanted: Object, live: Object | None) -> Object:
    """The object as it is sent: one that takes pods away names the version it was decided on.

    The API server refuses it (409) if the object has changed since, and the next pass decides
    again. An operator that froze in between would stop brokers that are needed by now.
    """
    if live is None or not _has_fewer_pods(wanted, live):
        return wanted
    version = live["metadata"]["resourceVersion"]
    return {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}


def _has_fewer_pods(wanted: Object, live: Object) -> bool:
    replicas = wanted.get("spec", {}).get("replicas")
    return replicas is not None and replicas < live.get("spec", {}).get("replicas", 1)


def is_applied(wanted: Object, live: Object | None) -> bool:
    """True if applying `wanted` would change nothing."""
    return live is not None and contains(live, stamped(wanted), shared=True)


def contains(live: Any, wanted: Any, *, shared: bool = False) -> bool:
    """Whether `live` has all of `wanted`; lists must have equal lengths and order.

    `shared`: but for those that the server merges, to which others may have added.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(_has(live.get(key), key, value, shared) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return not wanted and live is None
        pairs = zip(live, wanted, strict=False)
        return len(live) == len(wanted) and all(contains(*pair, shared=shared) for pair in pairs)
    if live == wanted:
        return True
    return isinstance(wanted, str) and isinstance(live, str) and _same_quantity(live, wanted)


def _has(live: Any, key: str, wanted: Any, shared: bool) -> bool:
    if key in _EXACT:
        return bool(live == wanted)
    by = _MERGED.get(key) if shared else None
    if by is not None and _are_told_apart(live, by) and _are_told_apart(wanted, by):
        found = {each[by]: each for each in live}
        return all(contains(found.get(each[by]), each, shared=True) for each in wanted)
    return contains(live, wanted, shared=shared)


def _are_told_apart(value: Any, by: str) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and by in each for each in value
    )


def _same_quantity(one: str, other: str) -> bool:
    """`1000m` equals `1`: the server writes quantities in its own form."""
    a, b = quantity(one), quantity(other)
    return a is not None and a == b
