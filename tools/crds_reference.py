"""The page of all fields: docs/resources.md, written with the CRDs from the same rows.

rows ──tables of spec and status──┐
settings ──tables of keys─────────┴──▶ docs/resources.md
"""

from collections.abc import Iterator

from penstock.core.limits import INT64_MAX
from penstock.core.manifest.rows import Field, Kind
from penstock.core.settings import (
    BROKER_SETTINGS,
    CONTROLLER_SETTINGS,
    TOPIC_SETTINGS,
    Setting,
)

INTRODUCTION = """<!-- Written by `make crds` from tables in the code; changes here are lost. -->

# Resources and settings

All resources and fields that `kubectl apply` and `penstock local up` accept, in
`penstock.dev/v1alpha1`. In a terminal: `kubectl explain cluster.spec
--api-version=penstock.dev/v1alpha1`. Names follow the rules of Kubernetes; the name of a Cluster
begins with a letter and has at most 40 characters.

`kubectl get penstock` lists everything; `pcl`, `pt` and `pcg` are short for clusters, topics and
consumer groups.
"""
SETTINGS = """
## Settings

`spec.config` of a Cluster accepts all of these settings, `spec.config` of a Topic those of the last
table. A value is a string or a whole number; put `"true"` and `"false"` in quotes. Unknown settings
are refused.
"""


def reference(kinds: list[tuple[str, str, tuple[Field, ...], tuple[Field, ...]]]) -> str:
    """The page; `kinds` are (kind, what it is, rows of spec, rows of status)."""
    lines = [INTRODUCTION.rstrip()]
    for kind, doc, spec, status in kinds:
        lines += [f"\n## {kind}\n", f"{doc}\n", "| spec | | |", "|---|---|---|", *_rows(spec)]
        lines += ["", "| status | | |", "|---|---|---|", *_rows(status)]
    lines.append(SETTINGS.rstrip())
    for title, settings in (
        ("Settings of the controller and defaults for new topics", CONTROLLER_SETTINGS),
        ("Settings of brokers", BROKER_SETTINGS),
        ("Settings of topics (on a Cluster: inherited by its topics)", TOPIC_SETTINGS),
    ):
        lines += [
            f"\n### {title}\n",
            "| setting | default | values | meaning |",
            "|---|---|---|---|",
        ]
        lines += [_setting(setting) for setting in settings]
    return "\n".join(lines) + "\n"


def _rows(rows: tuple[Field, ...], path: str = "") -> Iterator[str]:
    for row in rows:
        here = f"{path}{row.name}"
        yield f"| `{here}` | {_what(row)} | {row.doc} |"
        yield from _rows(row.fields, f"{here}[]." if row.kind is Kind.OBJECTS else f"{here}.")


def _what(row: Field) -> str:
    parts = [" or ".join(f"`{choice}`" for choice in row.choices) or row.kind.value]
    if row.minimum is not None and row.maximum is not None:
        parts.append(f"{row.minimum} to {row.maximum}")
    if row.required:
        parts.append("required")
    if row.default is not None:
        shown = str(row.default).lower() if isinstance(row.default, bool) else row.default
        parts.append(f"default `{shown}`")
    if row.immutable:
        parts.append("never changes")
    return ", ".join(parts)


def _setting(setting: Setting) -> str:
    if setting.choices:
        values = ", ".join(f"`{choice}`" for choice in setting.choices)
    elif setting.share:
        values = "0 to 1"
    elif setting.maximum == INT64_MAX:
        values = f"{setting.minimum} or more"
    else:
        values = f"{setting.minimum} to {setting.maximum}"
    default = "no limit" if setting.default == str(INT64_MAX) else f"`{setting.default}`"
    return f"| `{setting.key}` | {default} | {values} | {setting.documentation} |"
