"""Whatever a method may raise can be imported from where the clients come from."""

import builtins
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import penstock.client
from penstock import errors
from penstock.errors import PenstockError

NOT_RAISED_TO_USERS = {
    "NoProgressError",  # by range readers, which Spark's source uses
    "StaleDataDirectoryError",  # to brokers that register
}


def texts() -> Iterator[tuple[str, str]]:
    """What people read about the clients, by name."""
    for name in penstock.client.__all__:
        thing = getattr(penstock.client, name)
        yield name, inspect.getdoc(thing) or ""
        for member, value in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            if not member.startswith("_"):
                yield f"{name}.{member}", inspect.getdoc(value) or ""


def test_every_error_that_a_text_names_is_exported() -> None:
    named = {
        (error, where)
        for where, text in texts()
        for error in re.findall(r"\b[A-Z]\w+Error\b", text)
    }
    assert {"MisuseError", "UnreachableError", "DecodeError"} <= {error for error, _ in named}
    known = {*penstock.client.__all__, *dir(builtins)}
    assert not sorted(pair for pair in named if pair[0] not in known)


def test_every_kind_of_error_that_the_client_makes_is_exported() -> None:
    names = [
        one.name for one in pkgutil.walk_packages(penstock.client.__path__, "penstock.client.")
    ]
    modules = [errors, *(importlib.import_module(name) for name in names)]
    kinds = {
        each.__name__
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, PenstockError)
        and each.__module__.startswith(("penstock.client", "penstock.errors"))
    }
    assert "DeliveryError" in kinds
    assert sorted(kinds - NOT_RAISED_TO_USERS - set(penstock.client.__all__)) == []


def test_a_program_needs_one_import_to_catch_them() -> None:
    assert penstock.client.OffsetOutOfRangeError is errors.OffsetOutOfRangeError
    assert issubclass(penstock.client.DecodeError, penstock.client.ClusterError)
