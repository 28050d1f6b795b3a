"""Somebody who answers questions: a terminal, or in this process what stands for one."""

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.cli import changes

_END_OF_INPUT = "\x04"


@contextmanager
def typing(text: str) -> Iterator[int]:
    """A program's standard input: a terminal at which `text` was typed, and then Ctrl-D.

    "" = nobody types.
    """
    ours, theirs = pty.openpty()
    try:
        if text:
            os.write(ours, (text + _END_OF_INPUT).encode())
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


@contextmanager
def person_there(yes: bool = True) -> Iterator[None]:
    """While it is `yes`, commands in this process take their input for a person's."""
    with pytest.MonkeyPatch.context() as patch:
        if yes:
            patch.setattr(changes, "is_person_there", lambda: True)
        yield
