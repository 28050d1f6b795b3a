"""The history of a workload: one JSON object per line, written as things happen.

A line covers a whole run of records, so that 100 million records take about 100,000 lines. Fields
are one letter, because there are many lines; `t` is ms since the start of the workload:

    {"e":"start", "run":tag, "topic":…, "acks":…, "sync":…, "partitions":…, "bytes":…}
                                              "pipe":target | "ring":hops, if there is one
    {"e":"send",  "s":stream, "q":first sequence, "n":count, "t":…}
    {"e":"ack"  | "fail" | "unknown", "s", "q", "n", "t", "p":partition, "o":offset | "why":…}
    {"e":"ended-tx", "x":transaction, "how":"committed" | "aborted" | "unknown", "t"}
    {"e":"read",  "r":reader, "p", "o", "s", "q", "n", "t"}
    {"e":"through","r", "p", "o":position}                        of a live reader, at its end
    {"e":"odd",   "r", "p", "o", "t"}                             a record nobody sent
    {"e":"owns",  "r":member, "p", "t"}                           of a consumer group
    {"e":"got",   "r", "p", "o", "s", "q", "n", "t"}
    {"e":"leaves","r", "p", "t", "how":"revoked" | "lost"}
    {"e":"stored","p", "o":committed offset, "t", "first":1}      first: where it begins
    {"e":"final", "p", "o", "s", "q", "n"}                        the read-back of everything
    {…,           "x":transfer, "a":amount, "k":entry}            send, read, final of a bank
    {"e":"piped", "p", "o", "s", "q", "n"}                        of the target of a pipe
    {"e":"took",  "r":member, "x":its transaction, "p", "o", "s", "q", "n", "t",
                  "w":transaction that wrote it, 0: a producer did, "h":hops behind it}
    {"e":"ended-ring", "x", "how":as of ended-tx, "t"}            of one that took something
    {"e":"ringed","p", "o", "s", "q", "n", "w", "h"}              of both topics of a ring
    {"e":"ends",  "p", "lo":log start, "hi":end}                  at the end, per partition; "hw":
                                                                  high watermark, if transactions
    {"e":"reached", "p", "o":position}                            of the final reader, likewise
    {"e":"ended", "who", "why", "t"}                              a thread that could not go on

With transactions, send, ack, fail and unknown name theirs as "x". A `.gz` name is compressed. A
history cut off by a crash is readable up to its last whole line.
"""

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

from penstock.errors import MisuseError

Event = dict[str, Any]


class HistoryWriter:
    """Appends events; safe to call from several threads. Close it (or use `with`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: IO[str] = _open(path, "wt")

    def write(self, event: Event) -> None:
        line = json.dumps(event, separators=(",", ":")) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def read_history(path: Path) -> Iterator[Event]:
    """The events of one file, in order; the first is its start.

    Raises MisuseError for a file that is no history, because anything else has nothing in it that
    is wrong; and naming the line if one in the middle is not an event. A broken last line (the
    writer was killed) ends the history silently.
    """
    events = _read_lines(path)
    first = next(events, None)
    if first is None or first["e"] != "start":
        raise MisuseError(
            f"{path}: is not a history of a workload: it does not begin with its start; "
            "`penstock verify run --history FILE` writes one"
        )
    yield first
    yield from events


def _read_lines(path: Path) -> Iterator[Event]:
    broken: int | None = None
    try:
        with _open(path, "rt") as file:
            for number, line in enumerate(file, 1):
                if broken is not None:
                    raise MisuseError(f"{path}: line {broken} is not a history event")
                event = _parse(line)
                if event is None:
                    broken = number
                else:
                    yield event
    except EOFError:
        return  # a .gz whose writer was killed
    except OSError as error:
        raise MisuseError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise MisuseError(f"{path}: is not a history of a workload, but binary") from error
    except zlib.error as error:
        raise MisuseError(f"{path}: is damaged: {error}") from error


def _parse(line: str) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "e" in event else None


def _open(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode.replace("t", ""), encoding="utf-8")
