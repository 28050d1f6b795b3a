"""`help()` of clients needs no other page: settings by name, and no reference to a namesake."""

import inspect
import pydoc
import re

import pytest

from penstock import client
from penstock.client import (
    Admin,
    AsyncAdmin,
    AsyncBranches,
    AsyncConsumer,
    AsyncOut,
    AsyncProducer,
    AsyncTransaction,
    AsyncTransformer,
    AsyncWorkerPool,
    Branches,
    Consumer,
    Out,
    Producer,
    Transformer,
    WorkerPool,
    transform,
)
from penstock.client.sync.producer import Transaction

WITH_SETTINGS = [
    *("Producer", "Consumer", "Admin", "Transformer", "transform"),
    *("AsyncProducer", "AsyncConsumer", "AsyncAdmin", "AsyncTransformer", "async_transform"),
]
OTHERS = {"bootstrap", "config", "handle"}
NAMESAKES: dict[type, type] = {
    Admin: AsyncAdmin,
    Branches: AsyncBranches,
    Consumer: AsyncConsumer,
    Out: AsyncOut,
    Producer: AsyncProducer,
    Transaction: AsyncTransaction,
    Transformer: AsyncTransformer,
    WorkerPool: AsyncWorkerPool,
}
OF_ASYNC_CLIENTS = re.compile(r"Async[A-Z]|\bawait\b|\basync with\b|event loop|`take`")
ERROR = re.compile(r"\b[A-Z]\w+Error\b|\b[A-Z]+_[A-Z_]+\b")
ARGUMENT = re.compile(r"^    (\w+): ", re.MULTILINE)


@pytest.mark.parametrize("kind", NAMESAKES, ids=lambda kind: kind.__name__)
def test_no_text_sends_the_reader_to_the_async_client(kind: type) -> None:
    texts = {"": kind.__doc__ or "", **_texts(kind)}
    assert not {name for name, text in texts.items() if OF_ASYNC_CLIENTS.search(text)}
    assert "Async" not in (transform.__doc__ or "")


@pytest.mark.parametrize("kind", NAMESAKES, ids=lambda kind: kind.__name__)
def test_a_method_tells_the_arguments_and_errors_that_its_namesake_tells(kind: type) -> None:
    full = _texts(NAMESAKES[kind])
    missing = {
        name: lost
        for name, text in _texts(kind).items()
        if (lost := _told(full.get(name, "")) - _told(text))
    }
    assert not missing


def _texts(kind: type) -> dict[str, str]:
    return {
        name: inspect.getdoc(member) or ""
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


def _told(text: str) -> set[str]:
    return {*ERROR.findall(text), *ARGUMENT.findall(text)}


def test_no_help_hides_settings() -> None:
    things = {name: getattr(client, name) for name in client.__all__}
    shown = {name: pydoc.plain(pydoc.render_doc(it)) for name, it in things.items() if callable(it)}
    assert len(shown) > 100
    assert not [name for name, text in shown.items() if re.search(r"\*\*(options|more)\b", text)]


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_what_takes_settings_says_what_they_mean(name: str) -> None:
    text = inspect.getdoc(getattr(client, name)) or ""
    settings = set(inspect.signature(getattr(client, name)).parameters) - OTHERS
    assert "request_timeout_ms" in settings
    for setting in settings:
        assert f"\n    {setting}: " in text, setting


def test_a_method_says_what_its_namesake_says() -> None:
    assert "automatic commits\ncover that" in (Consumer.poll.__doc__ or "")
    assert "`with producer.transaction() as tx`" in (Producer.transaction.__doc__ or "")
    assert "if `handle` is an async function" in (Transformer.run.__doc__ or "")
    assert "RECORD_TOO_LARGE with size and limit" in (Producer.send.__doc__ or "")
    assert "No serializer is applied" in (Producer.send_columns.__doc__ or "")
    assert "linger_ms" in (Producer.__doc__ or "")
    assert AsyncProducer.send.__doc__ != Producer.flush.__doc__
