"""How a batch that a reader got is recorded in the history: a line per run of records.

ConsumedBatch ─▶ runs of one stream, with what their body says │ odd: nobody sent these bytes
"""

from collections.abc import Iterator, Sequence

from penstock.client import ConsumedBatch
from penstock.verify.history import Event
from penstock.verify.records import parse_values


def lines_of(
    batch: ConsumedBatch, tag: int, record_bytes: int, *, kind: str, body: Sequence[str] = ()
) -> Iterator[Event]:
    """Events `kind` and "odd", without who read them and when. `body`: a name for each word of it.

    Every value of the workload has `record_bytes`; in a batch where one has not, all are odd.
    """
    data = batch.columns.value_data
    if len(data) != batch.columns.record_count * record_bytes:
        for offset in range(batch.first_offset, batch.next_offset):
            yield {"e": "odd", "o": offset}
        return
    mine = data[batch.lo * record_bytes : batch.hi * record_bytes]
    runs, odd = parse_values(tag, mine, record_bytes, batch.first_offset, len(body))
    for run in runs:
        line = {"e": kind, "o": run.offset, "s": run.stream, "q": run.sequence, "n": run.count}
        yield line | dict(zip(body, run.body, strict=True))
    for offset in odd:
        yield {"e": "odd", "o": offset}
