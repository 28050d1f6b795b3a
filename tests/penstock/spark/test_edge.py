"""What Spark prints of an error: its line, without the frames of the client."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import BatchRun, Branch
from penstock.errors import PenstockError
from penstock.spark.batch import BatchReader
from penstock.spark.edge import at_edge
from penstock.spark.exactly_once import ExactlyOnceStreamWriter, WrittenBranch
from penstock.spark.options import parse
from penstock.spark.plan_read import ReadTask
from penstock.spark.planning import ReadRange
from penstock.spark.sink import StreamWriter
from penstock.spark.sink_options import parse_sink
from penstock.spark.stream import StreamReader

NOBODY = {
    "penstock.bootstrap.servers": "127.0.0.1:1",
    "penstock.connect.timeout.ms": "100",
    "penstock.request.timeout.ms": "100",
}
READING = parse(NOBODY | {"subscribe": "t", "pollTimeoutMs": "100", "fetchOffset.numRetries": "0"})
WRITING = NOBODY | {"penstock.delivery.timeout.ms": "100"}


def read() -> list[pa.RecordBatch]:
    return list(BatchReader(READING).read(ReadTask([ReadRange("t", 0, 0, 10)])))


def look() -> object:
    reader = StreamReader(READING)
    return reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def write() -> object:
    rows = pa.record_batch({"value": [b"v"], "partition": pa.array([-1], pa.int32())})
    return StreamWriter(parse_sink(WRITING | {"topic": "t"})).write(iter([rows]))


def commit() -> object:
    options = parse_sink(WRITING | {"topic": "t", "delivery": "exactly-once"}, streaming=True)
    message = WrittenBranch(BatchRun("app", "query", "run", 7), 1, Branch(1, 0))
    return ExactlyOnceStreamWriter(options).commit([message], 7)


@pytest.mark.parametrize("call", [read, look, write, commit])
def test_an_error_leaves_without_frames_of_what_raised_it(call: Callable[[], object]) -> None:
    with pytest.raises(PenstockError) as caught:
        call()
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1, text
    assert Path(caught.traceback[-1].path).name == "edge.py", text
    assert "/penstock/client/" not in text


def test_a_defect_keeps_its_frames() -> None:
    @at_edge
    def broken() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect") as caught:
        broken()
    assert caught.traceback[-1].name == "broken"
