"""When alerts fire over recorded series, asked of promtool.

    recorded/<fault>.json ──▶ healthy for 20 minutes, then the fault ──promtool──▶ alert: seconds

A recording lasts for seconds, and alerts wait for minutes. So a series goes on as it ended: gauges
hold their last value, counters grow as they grew, and ages that have grown for a while. Nothing
else is added, but for an operator in health where a fault was recorded without any.

A recording of health is repeated instead: a gauge that moves must not stand still for minutes.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from support.missing import cannot_run
from support.recordings import HEALTHY_S, RULES, Series, load

ROOT: Final = Path(__file__).resolve().parents[2]
STEP_S: Final = 15
HEALTH_S: Final = 1_200
FAULT_S: Final = 2_100
REPEATED_S: Final = 32
"""Groups are looked at twice in it; and samples, `STEP_S` apart, come to each of its seconds."""
_AGES: Final = re.compile(r"penstock_\w+(_lag|_open|_finishing|_waiting|_stalled|_pass)_seconds\{")
_FIRING: Final = re.compile(r'\{alertname="(\w+)"\}')
_ASKED: Final = 'count by (alertname) (ALERTS{alertstate="firing"})'


def promtool() -> str:
    """Its path; it is built at the first call, which needs Go."""
    path, problem = _promtool()
    if problem:
        cannot_run(f"no promtool: {problem}")
    return path


@cache
def _promtool() -> tuple[str, str]:
    """Its path, or why there is none."""
    try:
        made = subprocess.run(
            [ROOT / "tools" / "promtool.sh"], capture_output=True, text=True, check=True
        )
    except subprocess.CalledProcessError as error:
        return "", (error.stderr.strip() or "it was not built in time").splitlines()[-1]
    return made.stdout.strip(), ""


def recorded(fault: str) -> Series:
    """Prometheus scrapes operators, too."""
    found = load(fault)
    return found if any(map(_is_operators, found)) else {**_operator(), **found}


@cache
def _operator() -> Series:
    """In health."""
    found = load("pod-not-ready")
    return {name: found[name][:HEALTHY_S] for name in found if _is_operators(name)}


def _is_operators(series: str) -> bool:
    return series.startswith("penstock_operator_")


def fires(series: Series, rules: Path = RULES, fault_s: int = FAULT_S) -> dict[str, int]:
    """By alert, without the prefix: how many seconds after the health it fires first.

    Negative: in health. The resolution is `STEP_S`. `fault_s`: for how long it is looked at.
    """
    steps = fault_s // STEP_S
    values = {name: _values(name, one, steps) for name, one in series.items()}
    times = [*range(0, HEALTH_S, 300), *range(HEALTH_S, HEALTH_S + fault_s + 1, STEP_S)]
    return _fires(values, rules, times)


def fires_in_health(series: Series, rules: Path = RULES) -> set[str]:
    """The alerts, without the prefix, that ever fire while nothing is wrong."""
    times = range(0, HEALTH_S + FAULT_S + 1, STEP_S)
    return set(_fires({name: _repeated(name, one) for name, one in series.items()}, rules, times))


def _fires(values: Mapping[str, str], rules: Path, times: Iterable[int]) -> dict[str, int]:
    """`values`: by series, in promtool's notation. `times`: when it is looked at, in seconds."""
    inputs = [{"series": name, "values": shown} for name, shown in values.items()]
    asked = [{"expr": _ASKED, "eval_time": f"{when}s", "exp_samples": []} for when in times]
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [{"interval": f"{STEP_S}s", "input_series": inputs, "promql_expr_test": asked}],
    }
    found: dict[str, int] = {}
    for when_s, names in _answers(test):
        for name in names:
            alert = name.removeprefix("Penstock")
            found[alert] = min(found.get(alert, when_s - HEALTH_S), when_s - HEALTH_S)
    return found


def _answers(test: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """What fires when: promtool shows it as what it did not expect."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "test.yaml"
        path.write_text(yaml.safe_dump(test))
        done = subprocess.run(
            [promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False
        )
    said = done.stdout + done.stderr
    parts = said.split("expr:")
    assert done.returncode == 0 or len(parts) > 1, said
    for part in parts[1:]:
        shown = re.search(r"time: (?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?,", part)
        assert shown is not None, part
        hours, minutes, seconds = (int(number or 0) for number in shown.groups())
        yield hours * 3_600 + minutes * 60 + seconds, _FIRING.findall(part)


def _values(name: str, values: Sequence[float | None], faulty_steps: int) -> str:
    """In promtool's notation, one per `STEP_S`."""
    before, after = values[:HEALTHY_S], values[HEALTHY_S:]
    first = next((one for one in before if one is not None), None)
    text, end = _held(name, before, [first], HEALTH_S // STEP_S)
    if not after:
        return text + " " + _held(name, before, [end], faulty_steps)[0]
    shift = 0.0
    if _is_counter(name) and end is not None and before[-1] is not None and after[0] is not None:
        shift = end - before[-1] if after[0] >= before[-1] else 0.0
    shown = [None if one is None else one + shift for one in after[::STEP_S]]
    if end is not None and shown[0] is None:
        text += " stale"
    return text + " " + _held(name, after, shown, faulty_steps)[0]


def _repeated(name: str, values: Sequence[float | None]) -> str:
    """The recording once, then its end again and again; counters go on from where they were."""
    repeated_s = min(REPEATED_S, len(values) - 1)
    began = len(values) - repeated_s
    last, first = values[-1], values[began - 1]
    growth = 0.0
    if _is_counter(name) and last is not None and first is not None:
        growth = last - first
    words = []
    for when in range(0, HEALTH_S + FAULT_S + 1, STEP_S):
        rounds, rest = divmod(max(0, when - began), repeated_s)
        one = values[when] if when < began else values[began + rest]
        words.append("_" if one is None else repr(one + rounds * growth))
    return " ".join(words)


def _is_counter(name: str) -> bool:
    return re.match(r"\w+_(total|bucket|count|sum)\{", name) is not None


def _grows(name: str, tail: Sequence[float]) -> bool:
    """Ages that fall in between are looked at again and again: they stay about as they are."""
    is_old = _AGES.match(name) is not None and len(tail) == STEP_S
    return _is_counter(name) or (is_old and list(tail) == sorted(tail))


def _held(
    name: str, seen: Sequence[float | None], shown: Sequence[float | None], steps: int
) -> tuple[str, float | None]:
    """`shown`, then as it was `seen` to go on, for so many steps; and the last value."""
    words = ["_" if one is None else repr(float(one)) for one in shown]
    last = shown[-1] if shown else None
    if last is None:
        return " ".join([*words, f"_x{steps}"]), None
    tail = [one for one in seen[-STEP_S:] if one is not None]
    slope = 0.0
    if _grows(name, tail) and len(tail) > 1:
        slope = max(0.0, (tail[-1] - tail[0]) / (len(tail) - 1) * STEP_S)
    words[-1] = f"{last!r}+{slope!r}x{steps}"
    return " ".join(words), last + slope * steps
