"""Profiles: clusters by a name of the user's choice, with what to trust and to show there.

    $XDG_CONFIG_HOME/penstock/profiles.yaml   ~/.config/penstock/profiles.yaml if not set

    current: production
    profiles:
      production: {bootstrap: "broker.example.com:9092", ca_file: /etc/ca.crt, token_file: …}
      air: {cluster: air/flights, context: admin@air}

The file has paths of tokens and keys, never tokens or keys. It is read when a command needs a
cluster, so that a broken one stops no other command. Options of a command are about another
cluster: with an address of its own, a command takes nothing from the current profile, lest one
cluster's token be shown to another.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from penstock.cli.usage import WrongUsageError
from penstock.errors import ErrorCode, MisuseError

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
FILE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Profile:
    """One cluster: `bootstrap` or, on Kubernetes, `cluster`. None = not given.

    Attributes:
        bootstrap: HOST:PORT of brokers, separated by commas.
        cluster: [NAMESPACE/]NAME, reached as `kubectl penstock` does.
    """

    bootstrap: str | None = None
    cluster: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    ca_file: str | None = None
    token_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        """Raises MisuseError."""
        empty = [name for name, value in asdict(self).items() if value == ""]
        if empty:
            raise _wrong(f"its {', '.join(empty)} is empty (an unset variable?)")
        if (self.bootstrap is None) == (self.cluster is None):
            raise _wrong("it must have either bootstrap or cluster")
        kubernetes = [self.namespace, self.context, self.kubeconfig]
        if self.bootstrap is not None and any(kubernetes):
            raise _wrong("namespace, context and kubeconfig are for a cluster on Kubernetes")
        if (self.certificate_file is None) != (self.key_file is None):
            raise _wrong("certificate and key belong together: give both")

    @property
    def given(self) -> dict[str, str]:
        """What was given, as it is written."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Profiles:
    """All of them. `current`: of commands that name no cluster; None = there is none."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Profile:
        """Raises MisuseError that lists the known ones."""
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise MisuseError(
                f"there is no profile {name!r}; known are: {known}. Make one with "
                "`penstock profile set`",
                ErrorCode.INVALID_REQUEST,
            )
        return found


def check_name(name: str) -> None:
    """Raises MisuseError."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise WrongUsageError(
            f"{name!r} cannot be the name of a profile: use up to 63 letters, digits, '.', '_' and "
            "'-', with a letter or digit first"
        )


def file() -> Path:
    """Where profiles are, or would be."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "penstock" / "profiles.yaml"


def load() -> Profiles:
    """None are there if there is no file. Raises MisuseError that names it."""
    import yaml  # noqa: PLC0415 - not needed for --help

    path = file()
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise _unusable(path, f"it is larger than {FILE_BYTES_MAX} bytes")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise _unusable(path, f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _unusable(path, f"it is not UTF-8 text (byte {error.start})") from error
    except yaml.YAMLError as error:
        raise _unusable(path, " ".join(str(error).split())) from error
    return _decoded(path, document)


def save(profiles: Profiles) -> None:
    """Replaces the file as a whole; only its user can read it. Raises MisuseError."""
    import yaml  # noqa: PLC0415 - not needed for --help

    document = {
        **({"current": profiles.current} if profiles.current is not None else {}),
        "profiles": {name: one.given for name, one in sorted(profiles.by_name.items())},
    }
    path = file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as new:  # 0600
            try:
                yaml.safe_dump(document, new, sort_keys=False, allow_unicode=True)
                new.flush()
                Path(new.name).replace(path)
            except BaseException:
                Path(new.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _unusable(path, f"it cannot be written: {error.strerror}") from error


def _decoded(path: Path, document: Any) -> Profiles:
    if document is None:
        return Profiles()
    entries = document.get("profiles") if isinstance(document, dict) else None
    current = document.get("current") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not isinstance(current, str | None):
        raise _unusable(path, "it must have `profiles`, by name, and may have `current`, a name")
    known = {one.name for one in fields(Profile)}
    found = {}
    for name, values in entries.items():
        good = isinstance(name, str) and isinstance(values, dict)
        if not good or not all(isinstance(value, str) for value in values.values()):
            raise _unusable(path, f"profile {name!r} must have texts by name, as {sorted(known)}")
        if odd := [str(key) for key in values if key not in known]:
            raise _unusable(
                path, f"profile {name!r} has {', '.join(odd)}; known is {sorted(known)}"
            )
        try:
            check_name(name)
            found[name] = Profile(**values)
        except MisuseError as error:
            raise _unusable(path, f"profile {name!r}: {error.message}") from error
    if current is not None and current not in found:
        raise _unusable(path, f"current is {current!r}, and there is no such profile")
    return Profiles(found, current)


def _wrong(text: str) -> WrongUsageError:
    return WrongUsageError(f"the profile cannot be used: {text}")


def _unusable(path: Path, text: str) -> MisuseError:
    return MisuseError(f"profiles in {path} cannot be used: {text}", ErrorCode.INVALID_CONFIG)
