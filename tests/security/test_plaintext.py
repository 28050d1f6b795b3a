"""Servers without TLS and authentication must not be open to a network that nobody meant.

Position: anyone on the network of a machine. Attempt: call a broker or controller that was started
on all addresses. Outcome: it does not start, unless whoever started it has said that they know.
"""

import os
from pathlib import Path

import pytest
from support import forked
from support.processes import HOST
from support.secure import Certificates

from penstock.errors import MisuseError
from penstock_broker.serving.plaintext import check_plaintext

ELSEWHERE = "192.0.2.1:0"
"""An address of documentation: no machine has it, so nothing listens whatever the process does."""


def start(*words: str, **environment: str) -> tuple[int, str]:
    """A process that must refuse to start: its exit code and what it says."""
    done = forked.run(
        forked.BROKER, ["-m", "penstock_broker", *words], env={**os.environ, **environment}
    )
    return done.returncode, done.stderr.strip().splitlines()[-1]


def broker(path: Path, **listeners: str) -> list[str]:
    options = {
        "broker-id": "0",
        "data-dir": str(path / "data"),
        "controllers": f"{HOST}:1",
        "listen": f"{HOST}:0",
        **listeners,
    }
    return ["broker", *(word for key, value in options.items() for word in (f"--{key}", value))]


def controller(path: Path, listen: str) -> list[str]:
    return ["controller", "--metadata-dir", str(path / "metadata"), "--listen", listen]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ELSEWHERE, "example.com:9092"])
def test_a_broker_refuses_to_serve_strangers(tmp_path: Path, listen: str) -> None:
    code, told = start(*broker(tmp_path, listen=listen))
    assert code == 2
    assert f"--listen {listen} is not a loopback address" in told
    assert "--insecure" in told
    assert "127.0.0.1" in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"replication-listen": ELSEWHERE},
        {"external-listen": ELSEWHERE, "external-advertise": "example.com:1"},
    ],
    ids=["replication", "external"],
)
def test_each_of_its_ports_counts(tmp_path: Path, more: dict[str, str]) -> None:
    code, told = start(*broker(tmp_path, **more))
    assert code == 2
    assert f"--{next(iter(more))} {ELSEWHERE} is not a loopback address" in told


def test_a_controller_refuses_to_serve_strangers(tmp_path: Path) -> None:
    code, told = start(*controller(tmp_path, ELSEWHERE))
    assert code == 2
    assert f"--listen {ELSEWHERE} is not a loopback address" in told


@pytest.mark.parametrize("way", ["option", "variable"])
@pytest.mark.parametrize("who", [broker, controller])
def test_whoever_says_so_is_obeyed(tmp_path: Path, way: str, who: object) -> None:
    """It goes on to bind the address, which nobody has."""
    words = broker(tmp_path, listen=ELSEWHERE) if who is broker else controller(tmp_path, ELSEWHERE)
    if way == "option":
        code, told = start(*words, "--insecure")
    else:
        code, told = start(*words, PENSTOCK_INSECURE="true")
    assert code == 2
    assert "loopback" not in told
    assert f"--listen {ELSEWHERE}" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tls-ca", "/nowhere/ca.crt"], "--tls-certificate, --tls-key is missing"),
        (
            [w for o in ("ca", "certificate", "key") for w in (f"--tls-{o}", f"/nowhere/{o}")],
            "/nowhere/ca cannot be used for TLS: No such file",
        ),
        (["--internal-listen", f"{HOST}:0"], "--internal-listen go together"),
    ],
    ids=["one of three", "no files", "a port between servers without TLS"],
)
def test_half_of_tls_is_refused(tmp_path: Path, options: list[str], told: str) -> None:
    code, line = start(*broker(tmp_path), *options)
    assert code == 2
    assert told in line
    assert not (tmp_path / "data").exists()


def test_with_tls_a_broker_may_listen_anywhere(tmp_path: Path) -> None:
    """It goes on to bind the address, which nobody has."""
    secured = Certificates(tmp_path / "certificates").broker(0).options
    code, told = start(*broker(tmp_path, listen=ELSEWHERE), *secured)
    assert code == 2
    assert "--internal-listen go together" in told, "clients and servers have a port each"
    words = broker(tmp_path, **{"listen": ELSEWHERE, "internal-listen": ELSEWHERE})
    code, told = start(*words, *secured)
    assert code == 2
    assert "loopback" not in told
    assert f"--listen {ELSEWHERE}" in told


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1:9092", True),
        ("127.8.0.1:0", True),
        ("[::1]:9092", True),
        ("localhost:9092", True),
        ("", True),
        ("0.0.0.0:9092", False),
        ("[::]:9092", False),
        ("10.0.0.7:9092", False),
        ("localhost.example.com:9092", False),
        ("127.0.0.1.example.com:9092", False),
    ],
)
def test_what_counts_as_loopback(address: str, allowed: bool) -> None:
    if allowed:
        check_plaintext({"--listen": address}, insecure=False)
    else:
        with pytest.raises(MisuseError, match=r"--listen .* is not a loopback address"):
            check_plaintext({"--listen": address}, insecure=False)


# ------------------------------------------------------------ TLS beside plaintext


def migrating(path: Path, **listeners: str) -> list[str]:
    holder = Certificates(path / "certificates").broker(0)
    named = {"internal-listen": f"{HOST}:0", "secure-listen": f"{HOST}:0", **listeners}
    given = {option: address for option, address in named.items() if address}
    return [*broker(path, **given), *holder.options, "--migrate"]


def test_tls_beside_plaintext_opens_plaintext_to_nobody_else(tmp_path: Path) -> None:
    """TLS alone may listen anywhere; what is in plaintext beside it must be asked for, as ever."""
    code, told = start(*migrating(tmp_path, **{"stream-listen": "0.0.0.0:0"}))
    assert code == 2
    assert "--stream-listen 0.0.0.0:0 is not a loopback address" in told


@pytest.mark.parametrize("process", ["broker", "controller"])
def test_what_migrates_has_tls_and_a_port_for_it(tmp_path: Path, process: str) -> None:
    words = broker(tmp_path) if process == "broker" else controller(tmp_path, f"{HOST}:0")
    code, told = start(*words, "--migrate")
    assert code == 2
    assert "--migrate is TLS beside plaintext: give --tls-ca" in told
    code, told = start(*words, PENSTOCK_SECURE_LISTEN=f"{HOST}:0")
    assert code == 2
    assert f"--secure-listen {HOST}:0 needs --tls-ca" in told
    code, told = start(*migrating(tmp_path, **{"secure-listen": ""}))
    assert code == 2
    assert "--secure-listen" in told
