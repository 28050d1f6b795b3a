"""What a client trusts and shows: where it is found, and when it is shown again."""

import time
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
from support.certificates import write

from penstock.client.cluster import credentials as credentials_module
from penstock.client.cluster.credentials import Credentials, credentials_of
from penstock.client.config import SecurityConfig
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock_broker.certificates.authority import Authority, Subject

SECRET = "a secret of forty-two characters, not more."


def token(age_s: float, life_s: float = 3600, **claims: object) -> str:
    now_s = time.time_ns() / 1e9
    times = {"iat": now_s - age_s, "exp": now_s - age_s + life_s}
    return jwt.encode({**times, **claims}, SECRET)


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing in the environment; an empty folder in place of the pod's; files are read again if
    there is a reason, and not because time has passed."""
    for variable in credentials_module.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    mount = tmp_path / "mount"
    mount.mkdir()
    monkeypatch.setattr(credentials_module, "MOUNT", mount)
    monkeypatch.setattr(credentials_module, "LOOK_EVERY_S", 3_600.0)
    return mount


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return write(tmp_path / "ca", Authority.new("test"), None).ca


def found(ca: Path, path: Path, text: str) -> Credentials:
    path.write_text(text)
    return credentials_of(SecurityConfig(ca_file=ca, token_file=path))


def test_without_files_a_client_is_in_plaintext_and_shows_nothing() -> None:
    plain = credentials_of(SecurityConfig())
    assert plain.tls is None
    assert plain.metadata() is None
    assert not plain.is_outdated(plain.shown())


def test_a_pods_files_are_found(no_files: Path, ca: Path) -> None:
    (no_files / "ca.crt").write_bytes(ca.read_bytes())
    (no_files / "token").write_text("opaque\n")
    assert credentials_of(SecurityConfig()).metadata() == (("authorization", "Bearer opaque"),)
    assert credentials_of(SecurityConfig(ca_file="")).tls is None
    assert credentials_of(SecurityConfig(token_file="")).metadata() is None


def test_the_environment_comes_before_the_pods_files(
    no_files: Path, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_files / "token").write_text("mounted")
    (tmp_path / "given").write_text("given")
    monkeypatch.setenv("PENSTOCK_CA_FILE", str(ca))
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "given"))
    assert credentials_of(SecurityConfig()).metadata() == (("authorization", "Bearer given"),)


def test_a_mounted_token_is_not_sent_in_plaintext(no_files: Path) -> None:
    (no_files / "token").write_text("mounted")
    assert credentials_of(SecurityConfig()).metadata() is None


def test_a_token_that_was_asked_for_needs_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MisuseError, match=r"token_file .* over TLS only: give ca_file"):
        credentials_of(SecurityConfig(token_file=tmp_path / "token"))
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(MisuseError, match="over TLS only"):
        credentials_of(SecurityConfig())
    assert credentials_of(SecurityConfig(ca_file="")).tls is None  # plaintext was asked for


@pytest.mark.parametrize("text", ["", "\n", "two words", "x" * 10_000, "bell\x07"])
def test_a_file_that_holds_no_token_is_refused(ca: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(MisuseError, match="must hold one token") as raised:
        found(ca, tmp_path / "token", text)
    assert not text.strip() or text not in raised.value.message


def test_a_file_that_is_missing_is_named(ca: Path, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="nowhere cannot be read"):
        credentials_of(SecurityConfig(ca_file=ca, token_file=tmp_path / "nowhere"))


@pytest.fixture
def pair(tmp_path: Path) -> SecurityConfig:
    """A certificate and its key, with the CA that brokers have."""
    authority = Authority.new("users")
    files = write(tmp_path / "pair", authority, authority.issue(Subject(common_name="ada")))
    return SecurityConfig(ca_file=files.ca, certificate_file=files.certificate, key_file=files.key)


def test_a_certificate_needs_its_key_and_a_key_its_certificate(
    pair: SecurityConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("certificate_file", "key_file"):
        with pytest.raises(MisuseError, match=r"certificate_file .* and key_file .* go together"):
            credentials_of(replace(pair, **{name: None}))
    monkeypatch.setenv("PENSTOCK_KEY_FILE", str(pair.key_file))
    assert credentials_of(replace(pair, key_file=None)).tls is not None


def test_a_pair_that_does_not_fit_is_not_used_and_the_next_that_does_is(
    pair: SecurityConfig, tmp_path: Path
) -> None:
    credentials = credentials_of(pair)
    tls, shown = credentials.tls, credentials.shown()
    assert tls is not None
    former = tls.certificates[1]
    authority = Authority.new("next")
    following = authority.issue(Subject(common_name="ada"))
    Path(str(pair.key_file)).write_bytes(following.key)
    tls.look_now()
    assert not credentials.is_outdated(shown), "half of the pair is there"
    assert "fits the key" in tls.problem
    assert tls.certificates[1] == former
    Path(str(pair.certificate_file)).write_bytes(following.certificate)
    tls.look_now()
    assert credentials.is_outdated(shown)
    assert tls.certificates[1] == following.certificate


def test_a_key_that_all_users_can_read_is_warned_of_once(
    pair: SecurityConfig, caplog: pytest.LogCaptureFixture
) -> None:
    key = Path(str(pair.key_file))
    key.chmod(0o640)
    credentials_of(replace(pair, key_file=str(key)))
    assert not caplog.records
    open_key = key.with_name("open.key")
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o644)
    for _ in range(2):
        credentials_of(replace(pair, key_file=open_key))
    (record,) = caplog.records
    assert f"{open_key} can be read by all users" in record.message


def test_a_stream_is_opened_again_once_there_is_a_newer_token(ca: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    using = found(ca, path, token(age_s=3000))
    shown = using.shown()
    assert not using.is_outdated(shown)  # it is old, but there is no other
    path.write_text(token(age_s=0))
    assert using.has_newer(ClusterError("expired", ErrorCode.CREDENTIALS_EXPIRED), shown.metadata)
    assert using.is_outdated(shown)
    assert not using.is_outdated(using.shown())


def test_a_stream_keeps_a_token_that_is_young(ca: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    using = found(ca, path, token(age_s=600))
    shown = using.shown()
    path.write_text(token(age_s=0))
    assert using.has_newer(ClusterError("?", ErrorCode.UNAUTHENTICATED), shown.metadata)
    assert not using.is_outdated(shown)


def test_only_a_refusal_makes_it_look_at_once(ca: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    using = found(ca, path, "first")
    shown = using.metadata()
    path.write_text("second")
    assert not using.has_newer(ClusterError("no", ErrorCode.PERMISSION_DENIED), shown)
    assert using.metadata() == shown  # looked at lately
    assert using.has_newer(ClusterError("no", ErrorCode.UNAUTHENTICATED), shown)
    assert not using.has_newer(ClusterError("no", ErrorCode.UNAUTHENTICATED), using.metadata())


def test_a_refused_stream_may_be_tried_again_only_with_another_token(
    ca: Path, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    using = found(ca, path, "first")
    shown = using.shown()
    refusal = ClusterError("unknown key", ErrorCode.UNAUTHENTICATED)
    assert using.judged(refusal, shown) is refusal
    path.write_text("second")
    assert using.judged(refusal, shown).retriable


def test_a_broken_file_leaves_the_former_token(ca: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    using = found(ca, path, "first")
    path.write_text("half a\ntoken")
    assert not using.has_newer(ClusterError("?", ErrorCode.UNAUTHENTICATED), using.metadata())
    assert using.metadata() == (("authorization", "Bearer first"),)


def test_a_token_is_not_shown_to_people(ca: Path, tmp_path: Path) -> None:
    using = found(ca, tmp_path / "token", "do-not-show")
    assert "do-not-show" not in repr(using.shown())
