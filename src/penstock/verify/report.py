"""A verdict, as text for people and programs."""

from penstock.verify.verdict import RULES, Verdict


def summary(verdict: Verdict) -> list[tuple[str, str]]:
    """Label and text of each figure, in reading order."""
    return [
        ("records sent", f"{verdict.sent:,}"),
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("failed, nothing appended", f"{verdict.failed:,}"),
        ("outcome unknown", f"{verdict.unknown:,}"),
        ("in the log at the end", f"{verdict.final:,}"),
        ("read while written", f"{verdict.read:,}"),
        *_group(verdict),
        *_transactions(verdict),
        *_bank(verdict),
        *([("in the pipe's target", f"{verdict.piped:,}")] if verdict.piped else []),
        *_ring(verdict),
        ("longest write gap", _seconds(verdict.write_gap_ms)),
        ("longest write gap of one partition", _seconds(verdict.partition_write_gap_ms)),
        ("longest read gap", _seconds(verdict.read_gap_ms)),
    ]


def _group(verdict: Verdict) -> list[tuple[str, str]]:
    if not verdict.delivered:
        return []
    return [
        ("delivered to the group", f"{verdict.delivered:,}"),
        ("of these delivered again", f"{verdict.redelivered:,}"),
    ]


def _transactions(verdict: Verdict) -> list[tuple[str, str]]:
    if not (verdict.committed or verdict.aborted or verdict.undecided):
        return []
    return [
        ("transactions committed", f"{verdict.committed:,}"),
        ("transactions aborted", f"{verdict.aborted:,}"),
        ("transactions of unknown outcome", f"{verdict.undecided:,}"),
    ]


def _bank(verdict: Verdict) -> list[tuple[str, str]]:
    if not verdict.transfers:
        return []
    return [
        ("transfers in the log", f"{verdict.transfers:,}"),
        ("sum of all accounts", f"{verdict.balance:,}"),
    ]


def _ring(verdict: Verdict) -> list[tuple[str, str]]:
    if not verdict.passed_on:
        return []
    return [
        ("passed on in the ring", f"{verdict.passed_on:,}"),
        ("by transactions that committed", f"{verdict.ring_committed:,}"),
    ]


def verdict_lines(verdict: Verdict) -> list[str]:
    """PASS, or a line per broken rule with its first records: first, because a pipe may end there.
    Then what was allowed."""
    lines = ["PASS: nothing lost, duplicated, reordered or changed"] if verdict.passed else []
    for rule, breach in verdict.breaches.items():
        what = "threads" if rule == "ended" else "records"
        lines.append(f"FAIL: {breach.records:,} {what} {rule}: {RULES[rule]}")
        lines.extend(f"    {example}" for example in breach.examples)
        if breach.records > len(breach.examples):
            lines.append("    …")
    for rule, breach in verdict.allowed.items():
        lines.append(
            f"note: {breach.records:,} records {rule} ({RULES[rule]}): "
            "allowed, because acks was not ALL"
        )
    return lines


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s"
