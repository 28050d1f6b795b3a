"""What a batch that a reader got says in the history: a line per run of records, or per bank entry.

ConsumedBatch ─▶ runs of one stream │ entries of a bank │ odd: nobody sent these bytes
"""

from collections.abc import Iterator

from penstock.client import ConsumedBatch
from penstock.verify.bank import BODY_WORDS
from penstock.verify.history import Event
from penstock.verify.records import parse_body, parse_values


def lines_of(
    batch: ConsumedBatch, tag: int, record_bytes: int, *, kind: str, bank: bool
) -> Iterator[Event]:
    """Events `kind` and "odd", without who read them and when.

    Every value of the workload has `record_bytes`; in a batch where that is not so, all are odd.
    """
    data = batch.columns.value_data
    if len(data) != batch.columns.record_count * record_bytes:
        for offset in range(batch.first_offset, batch.next_offset):
            yield {"e": "odd", "o": offset}
        return
    mine = data[batch.lo * record_bytes : batch.hi * record_bytes]
    body_words = BODY_WORDS if bank else 0
    runs, odd = parse_values(tag, mine, record_bytes, batch.first_offset, body_words)
    for run in runs:
        line = {"e": kind, "o": run.offset, "s": run.stream, "q": run.sequence, "n": run.count}
        if not bank:
            yield line
            continue
        for at in range(run.count):
            row = run.offset + at - batch.first_offset
            transfer, amount, number = parse_body(mine, record_bytes, row, body_words)
            entry = {"o": run.offset + at, "q": run.sequence + at, "n": 1}
            yield line | entry | {"x": transfer, "a": amount, "k": number}
    for offset in odd:
        yield {"e": "odd", "o": offset}
