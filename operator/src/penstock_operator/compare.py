"""Whether a live object still matches the desired one.

The server adds its own fields, so the comparison is one-sided: is everything that we want there,
with the value that we want? Fields that we no longer want show in the fingerprint of the object
that was applied last, which the live object carries. Others may add to a list that the server
merges by a key (`kubectl set env`, a webhook): to apply ours again would not remove that. Pure.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.kubernetes.quantity import quantity
from penstock_operator.model import Object
from penstock_operator.names import APPLIED_HASH
from penstock_operator.objects.pods import fingerprint
from penstock_operator.overruled import Difference, Overruled

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


def is_applied(wanted: Object, live: Object | None, overruled: Overruled | None = None) -> bool:
    """True if applying `wanted` would change nothing. `overruled`: what came of it the last time,
    if something else than `wanted`."""
    if live is None:
        return False
    made = stamped(wanted)
    found = tuple(differences(live, made))
    return not found or Overruled(made["metadata"]["annotations"][APPLIED_HASH], found) == overruled


def outcome(applied: Object, answer: Object) -> Overruled:
    """How an object was stored that was applied as it was `stamped`."""
    found = tuple(differences(answer, applied))
    return Overruled(applied["metadata"]["annotations"][APPLIED_HASH], found)


def contains(live: Any, wanted: Any) -> bool:
    """Whether `live` has all of `wanted`; lists must have equal lengths and order."""
    return next(_differences(live, wanted, "", False), None) is None


def differences(live: Any, wanted: Any) -> Iterator[Difference]:
    """What `live` lacks of `wanted`; others may have added to lists that the server merges."""
    return _differences(live, wanted, "", True)


def _differences(live: Any, wanted: Any, at: str, shared: bool) -> Iterator[Difference]:
    if isinstance(wanted, Mapping):
        if isinstance(live, Mapping):
            for key, value in wanted.items():
                yield from _below(live.get(key), key, value, f"{at}.{key}" if at else key, shared)
        elif wanted or live is not None:
            yield _difference(at, live, wanted)
    elif isinstance(wanted, list):
        if isinstance(live, list) and len(live) == len(wanted):
            for number, pair in enumerate(zip(live, wanted, strict=True)):
                yield from _differences(*pair, f"{at}[{number}]", shared)
        elif wanted or live is not None:
            yield _difference(at, live, wanted)
    elif live != wanted and not _same_quantity(live, wanted):
        yield _difference(at, live, wanted)


def _below(live: Any, key: str, wanted: Any, at: str, shared: bool) -> Iterator[Difference]:
    by = _MERGED.get(key) if shared else None
    if key in _EXACT:
        if live != wanted:
            yield _difference(at, live, wanted)
    elif by is not None and _are_told_apart(live, by) and _are_told_apart(wanted, by):
        found = {each[by]: each for each in live}
        for each in wanted:
            yield from _differences(found.get(each[by]), each, f"{at}[{each[by]}]", shared)
    else:
        yield from _differences(live, wanted, at, shared)


def _difference(at: str, live: Any, wanted: Any) -> Difference:
    return Difference(at, json.dumps(live), json.dumps(wanted))


def _are_told_apart(value: Any, by: str) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and by in each for each in value
    )


def _same_quantity(one: Any, other: Any) -> bool:
    """`1000m` equals `1`: the server writes quantities in its own form."""
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    a, b = quantity(one), quantity(other)
    return a is not None and a == b
