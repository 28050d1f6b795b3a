"""`spec.upgrade` and `spec.balance` of a Cluster: how pods restart, and how replicas move.

The rows, what they mean, and the values they come to. Local mode ignores both.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.core.limits import COPY_RATE_MAX
from penstock.core.manifest.fields import Values
from penstock.core.manifest.problems import Report
from penstock.core.manifest.rows import Field, Kind
from penstock.core.offset_reset import parse_duration_ms
from penstock.core.quantities import QUANTITY_PATTERN, parse_bytes

THROTTLE: Final = "spec.balance.throttle"
NO_LIMIT: Final = "none"
_SHARE_PATTERN: Final = r"[1-9][0-9]{0,3}|([1-9][0-9]?|100)%"
_SHARE_DOC: Final = "a whole number of 1 or more, or 1% to 100%"
_DAYS: Final = "[0-9]{1,3}d"
_HOURS: Final = "[0-9]{1,4}h"
_MINUTES: Final = "[0-9]{1,5}m"
_DURATION_PATTERN: Final = (
    f"{_DAYS}|({_DAYS})?{_HOURS}|({_DAYS})?({_HOURS})?{_MINUTES}|"
    f"({_DAYS})?({_HOURS})?({_MINUTES})?[0-9]{{1,6}}s"
)
_DURATION_DOC: Final = "a duration such as 90s, 1h30m or 2d"
_RATE_DOC: Final = "bytes per second, as 40Mi or 1048576, or none for no limit"

UPGRADE: Final = Field(
    name="upgrade",
    kind=Kind.OBJECT,
    doc="What an upgrade of the operator means for the pods that run, and how they restart. "
    "Ignored in local mode.",
    optional=True,
    fields=(
        Field(
            name="policy",
            kind=Kind.TEXT,
            doc="When pods get the image and the template of a newer operator. WhenAsked = when "
            "somebody approves (kubectl penstock upgrade), and the template alone also with the "
            "next change of the spec that restarts them. Automatic = at once. Absent = WhenAsked.",
            choices=("WhenAsked", "Automatic"),
        ),
        Field(
            name="finalize",
            kind=Kind.TEXT,
            doc="When the stored metadata gets the format of a newer release, after which the "
            "release before cannot be started again. Manual = when somebody says so (kubectl "
            "penstock cluster finalize). Automatic = once every broker and controller has run that "
            "release for an hour. Absent = Manual.",
            choices=("Manual", "Automatic"),
        ),
        Field(
            name="maxParallel",
            kind=Kind.SCALAR,
            doc="How many brokers may restart together, as a number or as a share such as 34%, "
            "rounded down and never below 1: only brokers of one rack, never two that have a "
            "partition in common. The first one with a new template restarts alone. Absent = 25%.",
            minimum=1,
            max_length=4,
            pattern=_SHARE_PATTERN,
            pattern_doc=_SHARE_DOC,
        ),
        Field(
            name="soak",
            kind=Kind.TEXT,
            doc="How long the first broker with another image or release has to be ready, without "
            "a break, before the others restart with it, such as 1h30m or 2d. It holds up neither "
            "scaling nor repairs, nor the way back. Absent = 0s, not at all.",
            max_length=20,
            pattern=_DURATION_PATTERN,
            pattern_doc=_DURATION_DOC,
        ),
    ),
)

BALANCE: Final = Field(
    name="balance",
    kind=Kind.OBJECT,
    doc="How replicas are spread over brokers. Ignored in local mode.",
    optional=True,
    fields=(
        Field(
            name="mode",
            kind=Kind.TEXT,
            doc="When new brokers get their share of the replicas. OnScale = once all of them "
            "serve. Manual = when somebody approves status.plan (kubectl penstock approve). "
            "Absent = OnScale.",
            choices=("OnScale", "Manual"),
        ),
        Field(
            name="throttle",
            kind=Kind.SCALAR,
            doc="Bytes per second that each broker copies of partitions that move, in and out, "
            "such as 40Mi; none = no limit. Absent = what `penstock partitions throttle` says, "
            "else each broker's replica.copy.bytes.per.second.",
            minimum=1,
            max_length=20,
            pattern=f"{NO_LIMIT}|{QUANTITY_PATTERN}",
            pattern_doc=_RATE_DOC,
        ),
    ),
)


class UpgradePolicy(Enum):
    """When pods get what a newer operator would give them."""

    WHEN_ASKED = "WhenAsked"
    AUTOMATIC = "Automatic"


class FinalizePolicy(Enum):
    """When the stored metadata gets the format of a newer release."""

    MANUAL = "Manual"
    AUTOMATIC = "Automatic"


class BalanceMode(Enum):
    """When new brokers get their share of the replicas."""

    ON_SCALE = "OnScale"
    MANUAL = "Manual"


@dataclass(frozen=True, slots=True)
class Parallel:
    """How many brokers may restart together: `brokers`, or else `percent` of all."""

    percent: int = 25
    brokers: int = 0

    def of(self, brokers: int) -> int:
        """1 at least."""
        return max(1, self.brokers or brokers * self.percent // 100)


@dataclass(frozen=True, slots=True)
class Upgrading:
    """`spec.upgrade`. `soak_s`: how long the first broker shows another image; 0: no time."""

    policy: UpgradePolicy = UpgradePolicy.WHEN_ASKED
    max_parallel: Parallel = field(default_factory=Parallel)
    finalize: FinalizePolicy = FinalizePolicy.MANUAL
    soak_s: int = 0

    @classmethod
    def from_values(cls, upgrade: Values | None) -> "Upgrading":
        if upgrade is None:
            return cls()
        soak = upgrade.text("soak")
        return cls(
            UpgradePolicy(upgrade.text("policy") or UpgradePolicy.WHEN_ASKED.value),
            _parallel(upgrade.text("maxParallel")),
            FinalizePolicy(upgrade.text("finalize") or FinalizePolicy.MANUAL.value),
            parse_duration_ms(soak) // 1_000 if soak else 0,
        )


def _parallel(share: str) -> Parallel:
    if share.endswith("%"):
        return Parallel(percent=int(share.removesuffix("%")))
    return Parallel(brokers=int(share)) if share else Parallel()


def balance_from_values(balance: Values | None) -> tuple[BalanceMode, int | None]:
    """The mode, and the copy rate in bytes per second: 0 = no limit, None = not managed."""
    if balance is None:
        return BalanceMode.ON_SCALE, None
    mode = BalanceMode(balance.text("mode") or BalanceMode.ON_SCALE.value)
    text = balance.text("throttle")
    if not text:
        return mode, None
    return mode, 0 if text == NO_LIMIT else parse_bytes(text)


def rate_text(rate: int | None) -> str:
    """As one writes it: 40Mi, none; None: what brokers are set to."""
    if rate is None:
        return "replica.copy.bytes.per.second"
    if not rate:
        return NO_LIMIT
    units = iter(("", "Ki", "Mi", "Gi", "Ti"))
    unit = next(units)
    while rate % 1024 == 0 and unit != "Ti":
        rate, unit = rate // 1024, next(units)
    return f"{rate}{unit}"


def check_copy_rate(rate: int | None, report: Report) -> None:
    """As the controller does."""
    if rate is not None and rate > COPY_RATE_MAX:
        report.add(THROTTLE, f"is {rate} bytes per second; it must be at most {COPY_RATE_MAX}")
