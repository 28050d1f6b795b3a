"""`python -m benchmarks.table`: the results as a page, docs/benchmarks.md.

Ratios carry the meaning: figure and peer were measured in the same run on the same machine.
What a section's table cannot say is in `results/SCRIPT.md` and follows it.
"""

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
TITLES = {
    "throughput": "Throughput beside Kafka",
    "failover": "When a leader dies",
    "catch_up": "While a broker catches up",
    "spark_source": "Spark source",
    "idle": "At rest",
    "groups": "Consumer groups",
    "transactions": "Transactions",
    "latency": "Small appends",
    "security": "TLS, tokens and rules",
    "attacks": "Under attack",
    "memory": "Memory under load",
    "producer_table": "Remembered producers",
    "encoding": "Encoding",
    "store_layout": "Store",
    "compaction": "Compaction beside a producer",
    "verify_memory": "Judging a long history",
    "balance": "Plans of moves",
    "moves": "Moves of replicas",
    "damage": "Damage",
    "rolls": "Rolls in groups",
    "at_rest": "The Kubernetes API at rest",
    "migration": "Import from Kafka",
}
HEAD = """# Measured

Every line comes from `make bench` (one script per section in `benchmarks/`, raw lines in
`benchmarks/results/`). The machine had 2 shared cores, on which absolute times vary by half: read
the ratios, which compare with a peer or a limit in the same run. Kafka is Apache Kafka 4.3 with its
defaults, driven by confluent-kafka (the handler per record: aiokafka); both sides acknowledge with
acks=all into the page cache. A figure must stay below its limit and should reach its goal.

The results for failover, idle brokers, encoding and verify were measured beside other work on the
same two cores (load 4 to 11), all others on an otherwise idle machine.
"""


def section(script: str, title: str) -> str:
    """One script's figures as a table, and its notes; empty if it has no results."""
    path = RESULTS / f"{script}.jsonl"
    if not path.exists():
        return ""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    with_goals = any("goal" in line for line in lines)
    rows = ["| figure | value | compared with | its value | ratio |", "|---|---|---|---|---|"]
    if with_goals:
        rows = [rows[0] + " goal |", rows[1] + "---|"]
    for line in lines:
        value = f"{line['value']:,} {line['unit']}"
        peer = f"{line['vs_value']:,}" if line.get("vs_value") is not None else ""
        ratio = line["ratio"] if line["ratio"] is not None else ""
        row = f"| {line['name']} | {value} | {line['vs'] or ''} | {peer} | {ratio} |"
        rows.append(row + f" {line.get('goal', '')} |" if with_goals else row)
    notes = RESULTS / f"{script}.md"
    more = f"\n{notes.read_text()}" if notes.exists() else ""
    return f"\n## {title}\n\n`python -m benchmarks.{script}`\n\n" + "\n".join(rows) + "\n" + more


def main() -> None:
    PAGE.write_text(HEAD + "".join(section(*item) for item in TITLES.items()))


if __name__ == "__main__":
    main()
