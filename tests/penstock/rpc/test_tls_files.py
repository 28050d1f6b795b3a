"""TLS files that change while they are read."""

from pathlib import Path

import pytest
from support.secure import Certificates

from penstock.errors import MisuseError
from penstock.rpc import tls as module
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import Authority


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_key_and_a_certificate_are_of_one_generation(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are replaced after the certificate was read, and before the key is."""
    files, other = certificates.controller().files, Authority.new("the next CA")
    assert files.key is not None
    certificates.trust(certificates.authority, other)
    real, renewed = Path.read_bytes, list[Path]()

    def read(path: Path) -> bytes:
        if path == files.key and not renewed:
            renewed.append(path)
            certificates.renew(other)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    tls = Tls(files)
    assert renewed
    pair = tls._loaded.pair
    assert pair is not None
    assert pair[0] == real(files.key)
    assert pair[1] == tls.certificates[1]


def test_files_that_never_rest_are_an_error_that_says_so(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates.controller().files
    real = module._load

    def load(files: TlsFiles) -> object:
        loaded = real(files)
        files.ca.write_bytes(files.ca.read_bytes() + b"\n")
        return loaded

    monkeypatch.setattr(module, "_load", load)
    with pytest.raises(MisuseError, match=r"changed 5 times while they were read"):
        Tls(files)


def test_a_file_that_went_away_changes_nothing(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates.controller().files
    tls = Tls(files)
    before = tls.certificates

    def gone(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    files.ca.write_bytes(files.ca.read_bytes() + b"\n")
    monkeypatch.setattr(Path, "read_bytes", gone)
    tls.look_now()
    assert tls.certificates == before
    assert "cannot be read: No such file or directory" in tls.problem
