"""What docs/kafka.md says of our side exists: settings, calls, commands, options, fields.

A span of code in the column of Penstock is read by what its section is about, and so are remarks,
in a column without a heading. Spans in the other columns belong to Kafka, and are not looked at.
"""

import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

from penstock import client
from penstock.cli.main import Elsewhere, app
from penstock.client import Admin, Consumer, ConsumerConfig, Delivery, Producer, ProducerConfig
from penstock.client import Transaction as Transacting
from penstock.core.partitioner import KeyHash
from penstock.core.topic import CONFIG_KEYS
from penstock.spark.given import COMMON_SETTINGS, SINK_OPTIONS, SOURCE_OPTIONS
from penstock.spark.options import CLIENT_SETTINGS
from penstock.spark.sink_options import SINK_SETTINGS

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "kafka.md"
NOTHING: Final = "–"
OBJECTS: Final = {
    "p": Producer, "c": Consumer, "a": Admin, "tx": Transacting, "delivery": Delivery,
}  # fmt: skip
CALL: Final = re.compile(r"\b(p|c|a|tx|delivery)\.(\w+)\(([^`]*)\)")


@dataclass(frozen=True)
class Row:
    """`section`: the last heading above. `ours`: the text of the cell with our side. `remarks`: of
    the cell without a heading, if there is one."""

    section: str
    ours: str
    remarks: str

    @property
    def spans(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.ours)

    @property
    def remarked(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.remarks)


def rows() -> Iterator[Row]:
    """Rows of tables; ours is the column that is headed Penstock, Penstock's or kept."""
    section, column, remarks = "", None, None
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            column = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if column is None:
            heads = [index for index, cell in enumerate(cells) if cell in HEADS]
            assert len(heads) == 1, f"no column is ours: {line}"
            column = heads[0]
            remarks = cells.index("") if "" in cells else None
        elif set(cells[0]) != {"-"}:
            yield Row(section, cells[column], "" if remarks is None else cells[remarks])


HEADS: Final = {"Penstock", "Penstock's", "kept"}
ROWS: Final = list(rows())


def names(*configs: Any) -> set[str]:
    return {field.name for config in configs for field in fields(config)}


SETTINGS: Final = {
    "Producing": names(ProducerConfig),
    "Consuming": names(ConsumerConfig),
    "Security": names(ConsumerConfig) & names(ProducerConfig),
    "Topic settings": {key.name for key in CONFIG_KEYS},
    "Spark": {
        *SOURCE_OPTIONS, *SINK_OPTIONS, *COMMON_SETTINGS, *CLIENT_SETTINGS, *SINK_SETTINGS,
    },
}  # fmt: skip


def wrong_setting(section: str, span: str) -> str:
    """A name that is no setting, or ""; a span that is more than a name is not one."""
    name = span.partition("=")[0]
    if section not in SETTINGS or not re.fullmatch(r"[A-Za-z][\w.]*", name) or CALL.match(span):
        return ""
    if name in SETTINGS[section] or hasattr(client, name):
        return ""
    return name


def wrong_remark(span: str) -> str:
    """Likewise: a remark names settings of any section, and hashes of keys."""
    known = {*KeyHash, *(name for each in SETTINGS.values() for name in each)}
    return span if re.fullmatch(r"[a-z][\w.]*", span) and span not in known else ""


def wrong_calls(span: str) -> list[str]:
    """Calls of methods, and keyword arguments, that do not exist."""
    wrong = []
    for of, method, arguments in CALL.findall(span):
        found = getattr(OBJECTS[of], method, None)
        if found is None:
            wrong.append(f"{of}.{method}")
            continue
        known = inspect.signature(found).parameters
        wrong += [
            f"{of}.{method}({name}=)"
            for name in re.findall(r"(\w+)=", arguments)
            if name not in known
        ]
    return wrong


def wrong_command(span: str) -> str:
    """The first word of a command line that does not exist, or is an unknown option."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(span)[1:]
    while words:
        if isinstance(command, Elsewhere):
            command = command.load()
        if not hasattr(command, "commands") or words[0].startswith("-"):
            break
        word = words.pop(0)
        if word not in command.commands:
            return word
        command = command.commands[word]
    if isinstance(command, Elsewhere):
        command = command.load()
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return next((w for w in words if re.match(r"--?[a-zA-Z]", w) and w not in options), "")


def kinds() -> dict[str, Any]:
    found = {}
    for file in (ROOT / "crds").glob("*.yaml"):
        document = yaml.safe_load(file.read_text())
        schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        found[document["spec"]["names"]["kind"]] = schema
    return found


KINDS: Final = kinds()


def wrong_fields(spans: list[str]) -> list[str]:
    """Paths below `spec` that the kind named before them does not have."""
    wrong, kind = [], ""
    for span in spans:
        if span in KINDS:
            kind = span
        if not span.startswith("spec."):
            continue
        at = KINDS.get(kind, {})
        for name in span.split("."):
            at = at.get("items", at).get("properties", {}).get(name)
            if at is None:
                wrong.append(f"{kind or 'no kind'} {span}")
                break
    return wrong


def test_the_page_has_all_its_tables() -> None:
    found = {row.section for row in ROWS}
    assert found >= {*SETTINGS, "Administration", "Scripts", "Manifests of Strimzi"}
    assert len(ROWS) > 150


def test_every_setting_exists() -> None:
    assert not [w for row in ROWS for span in row.spans if (w := wrong_setting(row.section, span))]


def test_every_setting_that_a_remark_names_exists() -> None:
    remarked = {span for row in ROWS for span in row.remarked}
    assert {"group_id", "max.message.bytes"} <= remarked
    assert not [wrong for span in remarked if (wrong := wrong_remark(span))]


def test_every_call_and_its_keyword_arguments_exist() -> None:
    spans = [span for row in ROWS for span in (*row.spans, *row.remarked)]
    assert not [wrong for span in spans for wrong in wrong_calls(span)]


def test_every_field_of_a_resource_exists() -> None:
    assert not [wrong for row in ROWS for wrong in wrong_fields(row.spans)]


def test_every_command_and_its_options_exist() -> None:
    """Of the whole page, whichever column."""
    spans = re.findall(r"`(penstock [^`]+)`", PAGE.read_text())
    spans += re.findall(r"^(penstock .+)$", PAGE.read_text(), re.MULTILINE)
    assert len(spans) > 60
    wrong = {span: word for span in spans if (word := wrong_command(span.replace("…", "x")))}
    assert not wrong


def test_each_row_says_something_or_that_there_is_nothing() -> None:
    empty = [row for row in ROWS if not row.ours and row.section != "Topic settings"]
    assert not empty


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (wrong_setting("Producing", "linger_m"), "linger_m"),
        (wrong_setting("Topic settings", "retention.millis"), "retention.millis"),
        (wrong_setting("Spark", "startingOffset"), "startingOffset"),
        (wrong_setting("Producing", "delivery_timeout_ms"), ""),
        (wrong_remark("start"), "start"),
        (wrong_remark("c.poll(max_records=…)"), ""),
        (wrong_calls("p.sent(t)"), ["p.sent"]),
        (wrong_calls("c.poll(max_record=…)"), ["c.poll(max_record=)"]),
        (wrong_fields(["Cluster", "spec.broker"]), ["Cluster spec.broker"]),
        (wrong_fields(["spec.brokers"]), ["no kind spec.brokers"]),
        (wrong_command("penstock topic lits"), "lits"),
        (wrong_command("penstock topic list --al"), "--al"),
        (wrong_command("penstock partitions plan --drain 3"), ""),
    ],
)
def test_what_does_not_exist_is_found(found: Any, wrong: Any) -> None:
    assert found == wrong
