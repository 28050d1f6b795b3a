"""The judge finds each broken promise, says which records, and passes what kept them all."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import MisuseError
from penstock.verify.check import check_files
from penstock.verify.history import Event, HistoryWriter
from penstock.verify.report import verdict_lines
from penstock.verify.verdict import RULES

Edit = Callable[[list[Event]], None]


def clean_history() -> list[Event]:
    """Two keys in one partition, ten records each, seen by a live reader and read back."""
    events: list[Event] = [{"e": "start", "run": 7, "topic": "t", "acks": "ALL", "bytes": 128}]
    for stream, offset in ((0, 100), (1, 110)):
        where = {"s": stream, "q": 0, "n": 10}
        at = {"p": 0, "o": offset}
        events.append({"e": "send", **where, "t": 1.0})
        events.append({"e": "ack", **where, **at, "t": 5.0 + stream})
        events.append({"e": "read", "r": "reader-0", **where, **at, "t": 6.0})
    events.append({"e": "through", "r": "reader-0", "p": 0, "o": 120})
    events.append({"e": "ends", "p": 0, "lo": 100, "hi": 120})
    for stream, offset in ((0, 100), (1, 110)):
        final = {"e": "final", "r": "final", "p": 0, "o": offset, "t": 9.0}
        events.append({**final, "s": stream, "q": 0, "n": 10})
    return events


def finals(events: list[Event]) -> list[Event]:
    return [event for event in events if event["e"] == "final"]


def lose(events: list[Event]) -> None:
    events.remove(finals(events)[1])
    next(event for event in events if event["e"] == "ends")["hi"] = 110
    next(event for event in events if event["e"] == "through")["o"] = 110
    events[:] = [e for e in events if not (e["e"] == "read" and e["s"] == 1)]


def resurrect(events: list[Event]) -> None:
    ack = next(event for event in events if event["e"] == "ack")
    ack["e"] = "fail"


def duplicate(events: list[Event]) -> None:
    events.append({**finals(events)[0], "o": 120})
    next(event for event in events if event["e"] == "ends")["hi"] = 130


def reorder(events: list[Event]) -> None:
    first = finals(events)[0]
    position = events.index(first)
    events[position : position + 1] = [
        {**first, "q": 5, "n": 5},
        {**first, "q": 0, "n": 5, "o": 105},
    ]


def change(events: list[Event]) -> None:
    events.append({"e": "odd", "r": "reader-0", "p": 0, "o": 120, "t": 7.0})


def invent(events: list[Event]) -> None:
    finals(events)[1]["s"] = 99


def vanish(events: list[Event]) -> None:
    events.append({"e": "read", "r": "reader-0", "p": 0, "o": 120, "s": 1, "q": 10, "n": 3, "t": 8})


def skip(events: list[Event]) -> None:
    reads = [event for event in events if event["e"] == "read"]
    reads[1].update(o=112, q=2, n=8)


def reads(events: list[Event]) -> list[Event]:
    return [event for event in events if event["e"] == "read"]


def skip_the_first(events: list[Event]) -> None:
    reads(events)[0].update(o=103, q=3, n=7)


def skip_the_last(events: list[Event]) -> None:
    reads(events)[1].update(n=6)


def skip_a_whole_partition(events: list[Event]) -> None:
    events[:] = [event for event in events if event["e"] != "read"]


def forget_the_end(events: list[Event]) -> None:
    events[:] = [event for event in events if event["e"] not in ("ends", "final", "read")]


def write(path: Path, events: list[Event]) -> Path:
    with HistoryWriter(path) as writer:
        for event in events:
            writer.write(event)
    return path


def test_a_clean_history_passes_with_its_figures(tmp_path: Path) -> None:
    verdict = check_files([write(tmp_path / "h.jsonl", clean_history())])
    assert verdict.passed, verdict_lines(verdict)
    assert (verdict.sent, verdict.acknowledged, verdict.final, verdict.read) == (20, 20, 20, 20)
    assert verdict.write_gap_ms == 1.0


@pytest.mark.parametrize(
    ("rule", "edit", "records"),
    [
        ("lost", lose, 10),
        ("resurrected", resurrect, 10),
        ("duplicated", duplicate, 10),
        ("reordered", reorder, 5),
        ("changed", change, 1),
        ("changed", invent, 10),
        ("vanished", vanish, 3),
        ("skipped", skip, 2),
        ("skipped", skip_the_first, 3),
        ("skipped", skip_the_last, 4),
        ("skipped", skip_a_whole_partition, 20),
        ("unfinished", forget_the_end, 20),
    ],
)
def test_each_broken_promise_is_found_and_named(
    tmp_path: Path, rule: str, edit: Edit, records: int
) -> None:
    events = clean_history()
    edit(events)
    verdict = check_files([write(tmp_path / "h.jsonl.gz", events)])
    assert rule in verdict.breaches, verdict.to_dict()
    assert verdict.breaches[rule].records == records
    assert any(RULES[rule] in line for line in verdict_lines(verdict))


def test_loss_with_acks_leader_is_told_but_allowed(tmp_path: Path) -> None:
    events = clean_history()
    lose(events)
    events[0]["acks"] = "LEADER"
    verdict = check_files([write(tmp_path / "h.jsonl", events)])
    assert verdict.passed
    assert verdict.allowed["lost"].records == 10


def test_records_of_unknown_outcome_may_go_either_way(tmp_path: Path) -> None:
    for edit in (lose, lambda events: None):
        events = clean_history()
        next(e for e in events if e["e"] == "ack" and e["s"] == 1)["e"] = "unknown"
        edit(events)
        assert check_files([write(tmp_path / "h.jsonl", events)]).passed


@pytest.mark.parametrize("answer", ["fail", "unknown", ""])
def test_a_run_in_which_nothing_was_acknowledged_proves_nothing(
    tmp_path: Path, answer: str
) -> None:
    events = clean_history()
    events[:] = [e for e in events if e["e"] not in ("read", "final")]
    for event in events:
        if event["e"] == "ack":
            event.update(e=answer, why="NOT_ENOUGH_REPLICAS")
        elif event["e"] in ("ends", "through"):
            event.update({key: 100 for key in ("hi", "o") if key in event})
    if not answer:
        events = events[:1]
    verdict = check_files([write(tmp_path / "h.jsonl", events)])
    assert list(verdict.breaches) == ["unacknowledged"]
    assert verdict.breaches["unacknowledged"].records == (20 if answer else 0)
    lines = verdict_lines(verdict)
    assert RULES["unacknowledged"] in lines[0]
    assert not answer or "NOT_ENOUGH_REPLICAS" in lines[1]


def test_a_history_cut_in_the_last_line_is_read_up_to_there(tmp_path: Path) -> None:
    path = write(tmp_path / "h.jsonl", clean_history())
    path.write_text(path.read_text() + '{"e":"fin')
    assert check_files([path]).passed


def test_a_broken_line_in_the_middle_is_refused_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "h.jsonl", clean_history())
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(MisuseError, match="line 1 is not a history event"):
        check_files([path])


def test_histories_of_two_runs_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", clean_history())
    other = clean_history()
    other[0]["run"] = 8
    with pytest.raises(MisuseError, match="2 runs"):
        check_files([one, write(tmp_path / "2.jsonl", other)])


@pytest.mark.parametrize(
    "content",
    [b"", b"[1,2,3]\n", b'{"moves": [', b'"text"', b'{"e":"odd"}\n', b"\x9a\xff\n" * 9],
    ids=["empty", "a list", "cut off", "a string", "without its start", "binary"],
)
def test_what_is_no_history_is_refused_instead_of_passed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(content)
    with pytest.raises(MisuseError, match=r"h\.jsonl: is not a history of a workload"):
        check_files([path])


def test_each_of_several_files_must_be_a_history(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(MisuseError, match="empty: is not a history"):
        check_files([write(tmp_path / "h.jsonl", clean_history()), tmp_path / "empty"])


def test_a_compressed_history_whose_bytes_have_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl.gz"
    data = bytearray(gzip.compress(write(tmp_path / "h", clean_history()).read_bytes()))
    data[12:40] = bytes(0xFF for _ in range(28))  # behind the header
    path.write_bytes(data)
    with pytest.raises(MisuseError, match=r"h\.jsonl\.gz: is damaged: "):
        check_files([path])


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"absent\.jsonl: cannot be read: No such file"):
        check_files([tmp_path / "absent.jsonl"])
