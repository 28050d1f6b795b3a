"""Writes Grafana's dashboards for the chart: `python -m tools.dashboards`, with `--check` compares.

    rows (here): title, unit, queries ──▶ charts/penstock/files/dashboards/<name>.json

Nobody edits the results. tests/monitoring/test_dashboards.py checks that every query names metrics
that exist.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "charts" / "penstock" / "files" / "dashboards"
_OF_CLUSTER: Final = 'namespace=~"$namespace",cluster=~"$cluster"'
_WIDTH: Final = 8
_HEIGHT: Final = 8
_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `queries`: legend to PromQL, in which `$$` stands for the chosen clusters."""

    title: str
    unit: str
    queries: dict[str, str]


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{$$}}[$__rate_interval]))"


def _sum(metric: str, by: str) -> str:
    return f"sum by ({by}) ({metric}{{$$}})"


def _most(metric: str, by: str) -> str:
    return f"max by ({by}) ({metric}{{$$}})"


def _p99(metric: str, by: str, more: str = "") -> str:
    rate = f"rate({metric}_bucket{{$${more}}}[$__rate_interval])"
    return f"histogram_quantile(0.99, sum by ({by}, le) ({rate}))"


def _in_and_out(what: str, by: str, prefix: str = "penstock") -> dict[str, str]:
    legend = "" if by == "cluster" else f" {{{{{by}}}}}"
    return {
        f"in{legend}": _rate(f"{prefix}_{what}_in_total", by),
        f"out{legend}": _rate(f"{prefix}_{what}_out_total", by),
    }


_CONTROLLER: Final = "penstock_controller"
_OPERATOR: Final = "penstock_operator"
DASHBOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "overview": (
        "Penstock overview",
        (
            Panel(
                "Partitions not well",
                "short",
                {
                    "offline": _most(f"{_CONTROLLER}_offline_partitions", "cluster"),
                    "under min ISR": _most(f"{_CONTROLLER}_under_min_isr_partitions", "cluster"),
                    "at min ISR": _most(f"{_CONTROLLER}_at_min_isr_partitions", "cluster"),
                    "under-replicated": _most(
                        f"{_CONTROLLER}_under_replicated_partitions", "cluster"
                    ),
                },
            ),
            Panel(
                "Brokers and controllers",
                "short",
                {
                    "brokers alive": f"sum(max by (broker) ({_CONTROLLER}_broker_alive{{$$}}))",
                    "controllers active": _sum(f"{_CONTROLLER}_active", "cluster"),
                    "detached": _most(f"{_CONTROLLER}_detached", "cluster"),
                },
            ),
            Panel(
                "Size",
                "short",
                {
                    "topics": _most(f"{_CONTROLLER}_topics", "cluster"),
                    "partitions": _most(f"{_CONTROLLER}_partitions", "cluster"),
                },
            ),
            Panel("Bytes", "Bps", _in_and_out("bytes", "cluster")),
            Panel("Records", "cps", _in_and_out("records", "cluster")),
            Panel(
                "Produce, 99 %",
                "s",
                {
                    "request": _p99("penstock_request_seconds", "cluster", ',method="Produce"'),
                    "write": _p99("penstock_produce_write_seconds", "cluster"),
                    "replication": _p99("penstock_produce_replication_seconds", "cluster"),
                },
            ),
            Panel(
                "Refused",
                "cps",
                {
                    "produce {{error}}": _rate("penstock_produce_errors_total", "error"),
                    "overloaded": _rate("penstock_overloads_total", "cluster"),
                },
            ),
            Panel(
                "Throttled",
                "cps",
                {"{{principal}}": _rate("penstock_throttled_total", "principal")},
            ),
            Panel(
                "Free disk",
                "percentunit",
                {"{{instance}}": "penstock_disk_free_bytes{$$} / penstock_disk_total_bytes{$$}"},
            ),
        ),
    ),
    "broker": (
        "Penstock brokers",
        (
            Panel("Bytes", "Bps", _in_and_out("bytes", "instance")),
            Panel(
                "Replication",
                "Bps",
                {
                    "in {{instance}}": _rate("penstock_replicated_in_bytes_total", "instance"),
                    "out {{instance}}": _rate("penstock_replicated_out_bytes_total", "instance"),
                },
            ),
            Panel(
                "Requests",
                "reqps",
                {"{{method}}": _rate("penstock_request_seconds_count", "method")},
            ),
            Panel(
                "Requests, 99 %",
                "s",
                {"{{method}}": _p99("penstock_request_seconds", "method")},
            ),
            Panel(
                "Request errors",
                "cps",
                {"{{method}} {{code}}": _rate("penstock_request_errors_total", "method, code")},
            ),
            Panel(
                "Group commit, 99 %",
                "s",
                {"{{instance}}": _p99("penstock_tick_seconds", "instance")},
            ),
            Panel(
                "Event loop lag, 99 %",
                "s",
                {"{{instance}}": _p99("penstock_event_loop_lag_seconds", "instance")},
            ),
            Panel(
                "Connections and streams",
                "short",
                {
                    "{{kind}} {{instance}}": _sum("penstock_open_streams", "kind, instance"),
                    "connections at {{port}} {{instance}}": _sum(
                        "penstock_connections", "port, instance"
                    ),
                },
            ),
            Panel("Bytes in flight", "bytes", {"{{instance}}": "penstock_inflight_bytes{$$}"}),
            Panel("Fetches that wait", "short", {"{{instance}}": "penstock_parked_fetches{$$}"}),
            Panel(
                "Replicas",
                "short",
                {
                    "leads {{instance}}": "penstock_leaders{$$}",
                    "replicas {{instance}}": "penstock_replicas{$$}",
                    "not preferred {{instance}}": "penstock_leaders_not_preferred{$$}",
                },
            ),
            Panel(
                "ISR changes",
                "cps",
                {
                    "shrinks {{instance}}": _rate("penstock_isr_shrinks_total", "instance"),
                    "expands {{instance}}": _rate("penstock_isr_expands_total", "instance"),
                },
            ),
            Panel(
                "Follower lag",
                "short",
                {"{{instance}} to {{follower}}": "penstock_follower_lag_offsets{$$}"},
            ),
            Panel(
                "RocksDB",
                "bytes",
                {
                    "to compact {{instance}}": "penstock_store_pending_compaction_bytes{$$}",
                    "in memory {{instance}}": "penstock_store_memory_bytes{$$}",
                },
            ),
            Panel(
                "Write stalls",
                "cps",
                {"{{instance}}": _rate("penstock_store_stalls_total", "instance")},
            ),
            Panel(
                "Process",
                "bytes",
                {"memory {{instance}}": "process_resident_memory_bytes{$$}"},
            ),
        ),
    ),
    "topics": (
        "Penstock topics",
        (
            Panel("Bytes", "Bps", _in_and_out("bytes", "topic", "penstock_topic")),
            Panel("Records", "cps", _in_and_out("records", "topic", "penstock_topic")),
            Panel(
                "Log size of leaders",
                "bytes",
                {"{{topic}}": 'sum by (topic) (penstock_partition_log_bytes{$$,role="leader"})'},
            ),
            Panel(
                "Records kept",
                "short",
                {
                    "{{topic}}": "sum by (topic) "
                    '(penstock_partition_log_end_offset{$$,role="leader"} '
                    '- penstock_partition_log_start_offset{$$,role="leader"})'
                },
            ),
            Panel(
                "Readers wait for transactions",
                "short",
                {"{{topic}}": _most("penstock_partition_stable_offset_lag", "topic")},
            ),
            Panel(
                "Left out",
                "short",
                {
                    "topics {{instance}}": "penstock_topics_left_out{$$}",
                    "partitions {{instance}}": "penstock_partitions_left_out{$$}",
                },
            ),
        ),
    ),
    "groups": (
        "Penstock consumer groups",
        (
            Panel(
                "Lag in time",
                "s",
                {"{{group}}": _most("penstock_group_partition_lag_seconds", "group")},
            ),
            Panel(
                "Lag in records",
                "short",
                {"{{group}}": _sum("penstock_group_partition_lag_records", "group")},
            ),
            Panel("Members", "short", {"{{group}}": _most("penstock_group_members", "group")}),
            Panel(
                "Commits and rebalances",
                "cps",
                {
                    "commits": _rate("penstock_group_commits_total", "cluster"),
                    "rebalances": _rate("penstock_group_rebalances_total", "cluster"),
                },
            ),
            Panel(
                "Transactions",
                "s",
                {
                    "oldest open": _most("penstock_transactions_oldest_open_seconds", "cluster"),
                    "oldest not stored": _most(
                        "penstock_transactions_oldest_finishing_seconds", "cluster"
                    ),
                },
            ),
            Panel(
                "Transactions ended",
                "cps",
                {
                    "{{outcome}} {{reason}}": _rate(
                        "penstock_transactions_ended_total", "outcome, reason"
                    )
                },
            ),
        ),
    ),
    "control": (
        "Penstock controllers and operator",
        (
            Panel(
                "Metadata writes",
                "cps",
                {
                    "writes": _rate(f"{_CONTROLLER}_metadata_writes_total", "cluster"),
                    "conflicts": _rate(f"{_CONTROLLER}_metadata_conflicts_total", "cluster"),
                    "unanswered": _rate(f"{_CONTROLLER}_metadata_unknowns_total", "cluster"),
                },
            ),
            Panel(
                "Elections",
                "cps",
                {"{{how}}": _rate(f"{_CONTROLLER}_elections_total", "how")},
            ),
            Panel(
                "Leaders",
                "short",
                {
                    "broker {{broker}}": _most(f"{_CONTROLLER}_broker_leaders", "broker"),
                    "not preferred": _most(f"{_CONTROLLER}_leaders_not_preferred", "cluster"),
                },
            ),
            Panel(
                "Moves",
                "short",
                {
                    "moves": _most(f"{_CONTROLLER}_moves", "cluster"),
                    "damaged replicas": _most(f"{_CONTROLLER}_damaged_replicas", "cluster"),
                },
            ),
            Panel(
                "Copy that has stalled longest",
                "s",
                {"{{cluster}}": _most(f"{_CONTROLLER}_move_stalled_seconds", "cluster")},
            ),
            Panel(
                "Clusters",
                "short",
                {
                    "ready {{cluster}}": f"{_OPERATOR}_cluster_ready{{$$}}",
                    "paused {{cluster}}": f"{_OPERATOR}_cluster_paused{{$$}}",
                    "hibernated {{cluster}}": f"{_OPERATOR}_cluster_hibernated{{$$}}",
                    "stalled {{cluster}} {{reason}}": f"{_OPERATOR}_cluster_stalled{{$$}}",
                },
            ),
            Panel(
                "Topics not Ready",
                "short",
                {"{{cluster}}": f"count by (cluster) ({_OPERATOR}_topic_ready{{$$}} == 0)"},
            ),
            Panel(
                "Operator",
                "cps",
                {
                    "passes {{result}}": "sum by (result) "
                    f"(rate({_OPERATOR}_reconciles_total[$__rate_interval]))",
                    "actions {{action}}": "sum by (action) "
                    f"(rate({_OPERATOR}_actions_total[$__rate_interval]))",
                },
            ),
            Panel("Operators that lead", "short", {"leaders": f"sum({_OPERATOR}_leader)"}),
            Panel(
                "Operator is behind", "s", {"oldest pass": f"max({_OPERATOR}_oldest_pass_seconds)"}
            ),
            Panel(
                "Releases",
                "short",
                {"{{role}} {{version}}": "count by (role, version) (penstock_build_info)"},
            ),
        ),
    ),
}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {
            "x": column * _WIDTH,
            "y": row * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": query.replace("$$", _OF_CLUSTER),
                "legendFormat": legend,
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def dashboard(name: str) -> dict[str, Any]:
    """As Grafana reads it."""
    title, panels = DASHBOARDS[name]
    first = "penstock_build_info"
    return {
        "uid": f"penstock-{name}",
        "title": title,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("namespace", f"label_values({first}, namespace)"),
                _variable("cluster", f'label_values({first}{{namespace=~"$namespace"}}, cluster)'),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def files() -> dict[Path, str]:
    """What is to be in the folder."""
    return {
        FOLDER / f"{name}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in DASHBOARDS
    }


def main(arguments: list[str]) -> int:
    wanted = files()
    known = {path: path.read_text() for path in FOLDER.glob("*.json")}
    if "--check" in arguments:
        if known == wanted:
            return 0
        sys.stderr.write(f"{FOLDER} is not what tools/dashboards.py says: run it\n")
        return 1
    for path in known.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
