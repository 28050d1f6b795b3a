"""`penstock consume`: records to standard output, as lines, by a format, or as JSON.

    -o, --to ──▶ an offset per partition ──▶ Consumer ──poll──▶ batches, cut at --to ──▶ stdout

    --group ──▶ a member of the group, which decides where to begin (consume_group.py)

Output is written after every poll, so that a pipe gets records as they arrive. A closed pipe or
Ctrl-C ends the command at once; without a group, nothing is committed.
"""

import sys
from collections.abc import Callable
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import completion
from penstock.cli.bounded import POLL_S, Bounded
from penstock.cli.connect import Located, locate, open_admin
from penstock.cli.consume_group import (
    POLL_RECORDS_MAX,
    GroupOptions,
    consume_in_group,
    parse_reset,
)
from penstock.cli.options import RECORDS_MAX, Bootstrap, Delimiter, Partitions, example, group_id
from penstock.cli.picking import (
    Rendering,
    choose_topics,
    make_filter,
    parse_delimiter,
    parse_key_delimiter,
    rendering,
)
from penstock.cli.places import Place, PlaceKind, parse_place, resolve
from penstock.cli.template import Template, to_json_line
from penstock.cli.usage import WrongUsageError
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, ConsumedBatch, Consumer, Record
    from penstock.core.types import TopicPartition


class ConsumeOutput(StrEnum):
    """How records are printed."""

    TEXT = "text"
    JSON = "json"


END: Final = Place(PlaceKind.END)
Begin = Annotated[
    str,
    typer.Option(
        "--offset",
        "-o",
        metavar="PLACE",
        help="Where to start: beginning, end, OFFSET, -N, or @TIME.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help="%k key, %v value, %o offset, %p partition, %t topic, %T timestamp in ms, "
        "%h headers, %K %S sizes, %n newline.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Share the topic with the other members of this group, and continue at its "
        "committed offsets; --offset beginning or end applies where there is none.",
        autocompletion=completion.groups,
    ),
]


Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC…",
        help="Names of topics, or with --regex patterns.",
        autocompletion=completion.topics,
    ),
]


Regex = Annotated[
    bool, typer.Option("--regex", "-r", help="All topics whose whole names a TOPIC matches.")
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="PLACE", help="Where to stop, exclusive: end, OFFSET, -N, or @TIME."
    ),
]
ExitAtEnd = Annotated[
    bool,
    typer.Option("--exit", "-e", help="Stop at the current end of the log; same as --to end."),
]
Count = Annotated[
    int | None,
    typer.Option("--count", "-c", min=1, max=RECORDS_MAX, help="Stop after this many records."),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")]
Grep = Annotated[
    str | None,
    typer.Option("--grep", metavar="REGEX", help="Only records in whose value this is found."),
]
KeyDelimiter = Annotated[
    str | None,
    typer.Option("--key-delimiter", "-K", help="Print the key, this delimiter, then the value."),
]
Null = Annotated[
    str | None, typer.Option("--null", "-Z", help="Text to print for a null key or value.")
]
OutputFormat = Annotated[
    ConsumeOutput, typer.Option("--output", help="Text, or a JSON object per line.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog=example(
            "penstock consume flights -o -10 -e",
            "penstock consume flights -o @2013-06-01 --to @2013-07-01 -f '%T %k %v\\n'",
            "penstock consume flights -e --output json | jq .value",
            "penstock consume flights -g billing -e",
            "penstock consume 'flights-.*' --regex --key AA --grep delayed",
        )
    )(consume)


def consume(
    topics: Topics,
    *,
    regex: Regex = False,
    offset: Begin = "beginning",
    to: To = None,
    exit_at_end: ExitAtEnd = False,
    count: Count = None,
    key: Key = None,
    grep: Grep = None,
    partition: Partitions = None,
    format_: Format = None,
    key_delimiter: KeyDelimiter = None,
    delimiter: Delimiter = None,
    null: Null = None,
    output: OutputFormat = ConsumeOutput.TEXT,
    group: Group = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print the records of topics.

    Records are in order within a partition. A pattern means the topics that are there when the
    command begins. Without --exit, --to or --count, the command waits for more records until
    Ctrl-C. With --group, it commits what it has printed.

    A read that has an end fails if for 30 s nothing comes of what is there.
    """
    ending = None if delimiter is None else parse_delimiter(delimiter)
    each = _renderer(output, format_, key_delimiter, null, ending)
    render = rendering(each, make_filter(key, grep))
    if group is not None:
        _check_group(group, has_place=to is not None or bool(partition))
        reset = parse_reset(offset)
        where = locate(bootstrap)
        chosen = topics
        if regex:
            with open_admin(where) as admin:
                chosen = choose_topics(admin, topics, regex=True)
        consume_in_group(where, GroupOptions(group, chosen, reset, exit_at_end, count), render)
        return
    begin, until = parse_place(offset, "--offset"), _until(to, exit_at_end)
    _expect_in_order(begin, until)
    where = locate(bootstrap)
    with open_admin(where) as admin:
        partitions = [
            one
            for topic in choose_topics(admin, topics, regex=regex)
            for one in choose_partitions(admin, topic, partition)
        ]
        starts = resolve(admin, begin, partitions)
        ends = resolve(admin, until, partitions) if until is not None else {}
        if ends and begin.kind is PlaceKind.OFFSET:
            _expect_something_to_read(begin, resolve(admin, END, partitions))
    to_come = until is not None and until.kind is PlaceKind.OFFSET
    _consume_from(where, starts, ends, render, count, to_come=to_come)


def _consume_from(
    where: Located,
    starts: "dict[TopicPartition, int]",
    ends: "dict[TopicPartition, int]",
    render: Rendering,
    count: int | None,
    *,
    to_come: bool,
) -> None:
    from penstock.client import Consumer  # noqa: PLC0415 - grpc only when it is needed

    with Consumer(where.bootstrap, **where.options) as consumer:
        consumer.assign(list(starts))
        for one, start in starts.items():
            consumer.seek(one, start)
        bounded = Bounded(consumer, ends, to_come=to_come) if ends else None
        _print_records(consumer, render, bounded, count)


def _check_group(group: str, *, has_place: bool) -> None:
    if not group:
        raise WrongUsageError(
            "--group is empty (an unset variable?); leave it out to read without a group"
        )
    group_id(group)
    if has_place:
        raise WrongUsageError(
            "a group assigns the partitions: leave out --to and --partition with --group"
        )


def choose_partitions(
    admin: "Admin", topic: str, wanted: list[int] | None
) -> "list[TopicPartition]":
    """The wanted partitions of a topic, or all; raises MisuseError for one that does not exist."""
    from penstock.client import TopicPartition  # noqa: PLC0415 - grpc only when it is needed

    present = [one.partition for one in admin.describe_topics([topic])[topic].partitions]
    unknown = sorted(set(wanted or []) - set(present))
    if unknown:
        raise MisuseError(
            f"topic {topic} has partitions 0 to {len(present) - 1}, not {unknown[0]}",
            ErrorCode.UNKNOWN_PARTITION,
        )
    return [TopicPartition(topic, index) for index in sorted(set(wanted or present))]


def _expect_something_to_read(begin: Place, log_ends: "dict[TopicPartition, int]") -> None:
    """Raises MisuseError if a given offset leaves nothing to read: printing nothing would look like
    success."""
    furthest = max(log_ends.values())
    if begin.number > furthest:
        raise MisuseError(
            f"--offset {begin.number} is not in the log: its partitions end at {furthest} or "
            "earlier; give a smaller offset, -N for the last N records, or end",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )


def _expect_in_order(begin: Place, until: Place | None) -> None:
    offsets = until is not None and until.kind is begin.kind is PlaceKind.OFFSET
    if until is not None and offsets and until.number < begin.number:
        raise WrongUsageError(
            f"--to {until.number} is before --offset {begin.number}, so there is nothing to read"
        )


def _until(to: str | None, exit_at_end: bool) -> Place | None:
    if to is not None and exit_at_end:
        raise WrongUsageError("give --to or --exit, not both")
    if exit_at_end:
        return END
    return parse_place(to, "--to") if to is not None else None


def _renderer(
    output: ConsumeOutput,
    format_: str | None,
    key_delimiter: str | None,
    null: str | None,
    ending: bytes | None,
) -> "Callable[[Record], bytes]":
    """`ending`: what ends a record; None: a newline, unless --format says it."""
    if output is ConsumeOutput.JSON:
        if any(given is not None for given in (format_, key_delimiter, null, ending)):
            raise WrongUsageError(
                "--output json prints everything, an object per line: leave out --format, "
                "--key-delimiter, --null and --delimiter"
            )
        return to_json_line
    between = parse_key_delimiter(key_delimiter)
    if format_ is not None:
        formats, last = [format_], ending or b""
    else:
        formats, last = ["%v"] if between is None else ["%k", "%v"], ending or b"\n"
    parts = [Template(one, (null or "").encode()) for one in formats]
    return lambda record: (between or b"").join([one.render(record) for one in parts]) + last


def _print_records(
    consumer: "Consumer",
    render: Rendering,
    bounded: Bounded | None,
    count: int | None,
) -> None:
    """Prints until every partition is at its end (if there are ends), or `count` are printed."""
    left = count
    ends = {} if bounded is None else bounded.ends
    while bounded is None or not bounded.is_over():
        for batch in consumer.poll(POLL_S, POLL_RECORDS_MAX):
            printed = _print_batch(batch, render, ends, left)
            if left is not None:
                left -= printed
        sys.stdout.buffer.flush()
        if left == 0:
            return


def _print_batch(
    batch: "ConsumedBatch",
    render: Rendering,
    ends: "dict[TopicPartition, int]",
    left: int | None,
) -> int:
    """Prints records before the end, at most `left` of them; returns how many."""
    end = ends.get(batch.topic_partition, batch.next_offset)
    part = batch.between(batch.first_offset, end)
    printed = list(islice(render(part.records()), left))
    sys.stdout.buffer.write(b"".join(printed))
    return len(printed)
